"""What another policy would have decided: the log from a moment on, decided anew beside it.

Facts and people's rulings are taken as they stand in the log; what the leader decided is left out and
decided again. So servers still report what they did under the decisions that were really made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any, Final

from smgate.domain import decisions, evolve, exposure, facts, planner, policy, rulings, why
from smgate.domain.events import Event, Recorded
from smgate.domain.evolve_checks import BAD_OUTCOMES
from smgate.domain.state import Fleet
from smgate.domain.state_changes import Change

SEEN: Final = (
    *(decisions.LeadershipTaken, decisions.NodeWentSilent, decisions.NodeReturned),
    *(
        decisions.FleetUnreachable,
        decisions.FleetReachable,
        decisions.RulesChanged,
        decisions.LogRestored,
        decisions.OpeningRecorded,
    ),
    rulings.NodeRetired,
)
"""What a leader wrote down and did not decide."""
HOLDS: Final = (
    decisions.BuildSuspected,
    decisions.BuildFailed,
    decisions.BreakerTripped,
    rulings.RolloutHalted,
)
OF_A_ROLLOUT: Final = (
    rulings.RolloutPaused
    | rulings.RolloutResumed
    | rulings.RolloutHalted
    | rulings.RolloutAborted
    | rulings.RolloutStarted
)
ANSWERS: Final = rulings.ChangeAccepted | rulings.ChangeWithdrawn
SAMPLES: Final = 50
ROUNDS_MAX: Final = 100_000
CAVEAT: Final = (
    "Facts are as they happened: servers ran what they were really told, so what follows from other "
    "decisions is not in them."
)
Said = tuple[str, str | None, str]
US_PER_HOUR: Final = 3_600_000_000


@dataclass(slots=True, kw_only=True)
class Course:
    """One course of events: a fleet, and what its units were told on the way."""

    fleet: Fleet
    told: dict[str, list[Said]] = field(default_factory=dict)
    told_us: dict[str, list[int]] = field(default_factory=dict)
    """When each of `told` was told."""
    exposed: set[str] = field(default_factory=set)
    """Units that the decisions let run the target: what servers report is of the real course."""
    exposed_unit_us: int = 0
    """Microseconds that each of them was, summed."""
    reached_us: int = 0
    holds: list[tuple[int, Event]] = field(default_factory=list)
    planner: planner.Planner = field(default_factory=planner.Planner)
    due_us: int | None = None

    def __post_init__(self) -> None:
        self.reached_us = self.fleet.now_us
        self._look(self.fleet.units)

    def take(self, recorded: Recorded) -> None:
        """One event, at the end of this course."""
        self.reach(recorded.at_us)
        fleet, before = self.fleet, self.fleet.position
        evolve.evolve(fleet, recorded._replace(position=before + 1))
        if isinstance(recorded.event, rulings.GatePublished):
            self._look(fleet.units)  # another target may be another exposure for each
        else:
            self._look(n for n, _ in takewhile(_after(before), reversed(fleet.touched.items())))
        event = recorded.event
        if isinstance(event, HOLDS):
            self.holds.append((recorded.at_us, event))
        if isinstance(event, decisions.OverrideSet):
            said = (event.form, event.value, event.code)
            steps = self.told.setdefault(event.unit, [])
            if not steps or steps[-1] != said:
                steps.append(said)
                self.told_us.setdefault(event.unit, []).append(recorded.at_us)

    def reach(self, now_us: int) -> None:
        """Time passes: what is exposed stays so until then."""
        self.exposed_unit_us += len(self.exposed) * max(0, now_us - self.reached_us)
        self.reached_us = max(self.reached_us, now_us)

    def _look(self, names: Iterable[str]) -> None:
        for name in names:
            unit = self.fleet.units[name]
            may = unit.live and (
                unit.grant is not None
                or unit.adoption == "adopted"
                or exposure.told_target(self.fleet, unit)
            )
            (self.exposed.add if may else self.exposed.discard)(name)

    def decide(self, event: Event, now_us: int) -> None:
        """Take in what this course's leader decides."""
        self.take(
            Recorded(
                position=0,
                at_us=now_us,
                occurred_at_us=now_us,
                stream="controller",
                version=0,
                actor="controller",
                event=event,
            )
        )

    def settle(self, now_us: int) -> None:
        """Plan until there is nothing more to say."""
        for _ in range(ROUNDS_MAX):
            found = self.planner.plan(self.fleet, now_us)
            self.due_us = found.next_due_us
            if not found.events:
                return
            for event in found.events:
                self.decide(event, now_us)
        raise AssertionError("the planner does not come to an end")

    def until(self, now_us: int) -> None:
        """Let come due what does before a moment."""
        while self.due_us is not None and self.due_us < now_us:
            self.settle(self.due_us)


def _after(position: int) -> Callable[[tuple[str, int]], bool]:
    return lambda item: item[1] > position


def decided(recorded: Recorded) -> bool:
    """True for what the leader decided: it is decided anew."""
    if recorded.actor != "controller" or isinstance(recorded.event, SEEN):
        return False
    return not isinstance(
        recorded.event, rulings.GatePublished | rulings.IssuePublished | rulings.PolicyPublished
    )


def compare(
    then: Fleet, would: Fleet, rest: Iterable[Recorded], *, other: policy.Policy, until_us: int
) -> dict[str, Any]:
    """The real course from a moment on beside that under another policy.

    Args:
        then: the fleet at that moment; changed here.
        would: another copy of it; changed here.
        rest: the events of the log that follow.
        other: the policy to try.
        until_us: the recorded time of the last of them.
    """
    since_us, since_position = then.now_us, then.position
    real, tried = Course(fleet=then), Course(fleet=would)
    tried.decide(rulings.PolicyPublished(policy=other, reason="what if"), since_us)
    tried.settle(since_us)
    step_us = max(1, (until_us - since_us) // SAMPLES)
    samples = [_sample(real, tried, since_us)]
    bad_us, next_us, last_us, passed_over = None, since_us + step_us, since_us, 0
    for recorded in rest:
        _reach(tried, recorded, last_us)
        while recorded.at_us >= next_us:
            samples.append(_sample(real, tried, next_us))
            next_us += step_us
        last_us = recorded.at_us
        answer = recorded._replace(event=_here(real.fleet, tried.fleet, recorded.event))
        real.take(recorded)
        if bad_us is None and _bad(recorded.event):
            bad_us = recorded.at_us
        if decided(recorded):
            tried.settle(recorded.at_us)
        elif _makes_sense(tried.fleet, recorded.event):
            tried.take(answer)
        else:
            passed_over += 1
    tried.settle(max(last_us, tried.fleet.now_us))
    for course in (real, tried):
        course.reach(last_us)
    samples.append(_sample(real, tried, last_us))
    return {
        "since_position": since_position,
        "since": why.iso(since_us),
        "until": why.iso(last_us),
        "rulings_passed_over": passed_over,
        **_differences(real, tried),
        "exposed_units": samples,
        "first_bad_sign": None if bad_us is None else why.iso(bad_us),
        "then": _course(real, bad_us),
        "would": _course(tried, bad_us),
        "caveat": CAVEAT,
    }


def _reach(tried: Course, recorded: Recorded, last_us: int) -> None:
    """Come to the time of an event. Timers stand still while nobody leads."""
    event, at_us = recorded.event, recorded.at_us
    if isinstance(event, decisions.LeadershipTaken):
        at_us = max(last_us, at_us - event.away_us)
    if at_us > last_us:
        tried.settle(last_us)
        tried.until(at_us)


def _here(real: Fleet, tried: Fleet, event: Event) -> Event:
    """The answer to a change, with the id that the change has on the other course."""
    if isinstance(event, ANSWERS):
        there = real.changes.get(event.change)
        for change in reversed(tried.waiting_changes()):
            if there is not None and _asks(change) == _asks(there):
                return replace(event, change=change.id)
    return event


def _asks(change: Change) -> tuple[object, ...]:
    return change.kind, change.code, change.subject, change.body


def _makes_sense(fleet: Fleet, event: Event) -> bool:
    """False for another policy, and for a word about a rollout that has ended on this course."""
    if isinstance(event, rulings.BreakGlassUsed):
        return event.command != "policy_publish"
    if isinstance(event, OF_A_ROLLOUT):
        rollout = fleet.rollouts.get(event.rollout)
        return rollout is not None and not rollout.ended
    return not isinstance(event, rulings.PolicyPublished)


def _bad(event: Event) -> bool:
    if isinstance(event, facts.CheckFinished):
        return event.outcome in BAD_OUTCOMES
    if isinstance(event, facts.InstanceChanged):
        return event.state == "exited" and bool(event.exit_code)
    return isinstance(event, facts.MemoryFallbackSeen | facts.GpuFaultSeen)


def _sample(real: Course, tried: Course, at_us: int) -> dict[str, Any]:
    return {"at": why.iso(at_us), "then": len(real.exposed), "would": len(tried.exposed)}


def _differences(real: Course, tried: Course) -> dict[str, Any]:
    rows = [
        {"unit": unit, "then": _steps(real, unit), "would": _steps(tried, unit)}
        for unit in sorted(real.told.keys() | tried.told.keys())
        if real.told.get(unit, []) != tried.told.get(unit, [])
    ]
    return {"differing_units": len(rows), "differing": rows}


def _steps(course: Course, unit: str) -> list[dict[str, str | None]]:
    told = zip(course.told.get(unit, ()), course.told_us.get(unit, ()), strict=True)
    return [
        {"at": why.iso(at_us), "form": form, "value": value, "code": code}
        for (form, value, code), at_us in told
    ]


def _course(course: Course, bad_us: int | None) -> dict[str, Any]:
    """How long units were exposed, when it held, and how long after the first bad sign."""
    first = course.holds[0] if course.holds else None
    answers = (at_us for at_us, _ in course.holds if bad_us is not None and at_us >= bad_us)
    answered_us = next(answers, None)
    return {
        "exposed_unit_hours": round(course.exposed_unit_us / US_PER_HOUR, 3),
        "holds": len(course.holds),
        "first_hold": None if first is None else why.iso(first[0]),
        "first_hold_by": None if first is None else type(first[1]).__name__,
        "hold_after_s": None
        if answered_us is None or bad_us is None
        else (answered_us - bad_us) / 1_000_000,
    }
