"""Waves: when one opens, and how it is judged.

A wave passes only on evidence: a unit that was never heard of is no success, and a wave whose
sample is too small or whose success share was missed is inconclusive, which pauses.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

from smgate.domain import (
    census,
    decisions,
    exposure,
    membership,
    policy,
    readings,
    rulings,
    windows,
)
from smgate.domain.events import Event
from smgate.domain.state import Fleet, Unit
from smgate.domain.state_counts import Census, Kinds
from smgate.domain.state_rollouts import Rollout, Wave
from smgate.domain.waits import SECOND_US

Outcome = Literal["good", "bad", "fell_back", "pending", "silent", "gone"]
"""`fell_back` is bad too, and halts by itself."""
_KINDS: Final[dict[tuple[Outcome, bool], Kinds]] = {
    (outcome, late): ((outcome, late),) for outcome in get_args(Outcome) for late in (False, True)
}
"""What a member of a wave counts as, by its outcome and whether the wave passes without it."""
OpenVerdict = Literal["passed", "failed", "inconclusive", "running"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How many units of one wave have which outcome: all that its verdict rests on."""

    good: int
    bad: int
    pending: int
    silent: int
    late_pending: int
    late_silent: int

    @property
    def sample(self) -> int:
        """Units with an outcome: the denominator."""
        return self.good + self.bad


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Outcomes of one wave. Units that are gone or taken out by a person are in none of these."""

    good: tuple[str, ...]
    bad: tuple[str, ...]
    pending: tuple[str, ...]
    silent: tuple[str, ...] = ()
    """Nobody hears of these: nothing is waited for, and nothing is known that could pass."""
    late: frozenset[str] = frozenset()
    """Those of `pending` and `silent` that the wave passes without: they came while it was open, or
    were lost before they ever started on the target, and so hide nothing about it."""

    @property
    def counts(self) -> Counts:
        """How many they are."""
        return Counts(
            good=len(self.good),
            bad=len(self.bad),
            pending=len(self.pending),
            silent=len(self.silent),
            late_pending=len(self.late.intersection(self.pending)),
            late_silent=len(self.late.intersection(self.silent)),
        )


def tally(fleet: Fleet, rollout: Rollout, wave: Wave) -> Tally:
    """The outcomes of a wave, member by member."""
    counted = _counted(fleet, rollout, wave)
    found: dict[Outcome, list[str]] = {"good": [], "bad": [], "pending": [], "silent": []}
    late = []
    for name in wave.units:
        outcome, passed_without = counted.of_unit[name][0]
        if outcome != "gone":
            found["bad" if outcome == "fell_back" else outcome].append(name)
        if passed_without and outcome in ("pending", "silent"):
            late.append(name)
    return Tally(
        good=tuple(found["good"]),
        bad=tuple(found["bad"]),
        pending=tuple(found["pending"]),
        silent=tuple(found["silent"]),
        late=frozenset(late),
    )


def count(fleet: Fleet, rollout: Rollout, wave: Wave) -> Counts:
    """How many members of a wave have which outcome."""
    totals = _counted(fleet, rollout, wave).totals
    return Counts(
        good=totals["good", False] + totals["good", True],
        bad=totals["bad", False] + totals["bad", True] + _fallen_back(totals),
        pending=totals["pending", False] + totals["pending", True],
        silent=totals["silent", False] + totals["silent", True],
        late_pending=totals["pending", True],
        late_silent=totals["silent", True],
    )


def _fallen_back(totals: Mapping[Hashable, int]) -> int:
    return totals["fell_back", False] + totals["fell_back", True]


def _counted(fleet: Fleet, rollout: Rollout, wave: Wave) -> Census:
    """Members by (outcome, whether the wave passes without them)."""

    def kinds_of(name: str) -> Kinds:
        outcome = _outcome(fleet, rollout, wave, name)
        lost_before = outcome == "silent" and not _started(fleet.units[name])
        return _KINDS[outcome, name in wave.late or lost_before]

    name = ("wave", rollout.plan.id, str(wave.number))
    return census.taken(fleet, name, wave.members, kinds_of)


def _outcome(fleet: Fleet, rollout: Rollout, wave: Wave, name: str) -> Outcome:
    unit = fleet.units.get(name)
    if unit is not None and fell_back(fleet, unit):
        return "fell_back"
    if name in wave.bad:
        return "bad"
    if unit is None or not unit.live or unit.taken_out or revoked(fleet, rollout, wave, name):
        return "gone"
    if _silent(fleet, unit):
        return "silent"
    return "good" if exposure.good(fleet, unit, rollout) else "pending"


def revoked(fleet: Fleet, rollout: Rollout, wave: Wave, name: str) -> bool:
    """True if a person took back what this member had been granted, and it may not be granted again."""
    if name not in wave.revoked:
        return False
    unit = fleet.units[name]
    return exposure.granted_by(fleet, unit, rollout) is None and readings.barred(fleet, unit)


def _silent(fleet: Fleet, unit: Unit) -> bool:
    nodes = [fleet.nodes.get(rank.node) for rank in unit.known_ranks.values()]
    return any(node is None or node.silent for node in nodes)


def _started(unit: Unit) -> bool:
    """It was launched on what it was granted: from then on, silence may hide a bad sign."""
    return any(grant.launched for grant in unit.grants)


def fell_back(fleet: Fleet, unit: Unit) -> bool:
    """A granted launch that was seen in BF16: the override was not delivered.

    What the unit was before, or still is while it waits for its restart, says nothing of that.
    """
    grant = readings.grant_in_force(fleet, unit)
    if grant is None or not grant.launched or unit.launch is None:
        return False
    ids = unit.launch.launch_ids
    return any(i.fallback is not None and i.launch_id in ids for i in unit.instances.values())


def verdict(rollout: Rollout, counted: Counts) -> tuple[OpenVerdict, str]:
    """Judge a wave's outcomes by the plan recorded with the rollout. Boundaries count as reached."""
    plan = rollout.plan
    bad, sample = counted.bad, counted.sample
    awaited = counted.pending - counted.late_pending
    members = sample + awaited + counted.silent - counted.late_silent
    needed = plan.min_sample if plan.min_sample is not None else members
    enough = sample > 0 and sample >= needed
    if bad >= plan.failures_max:
        return "failed", f"{bad} of {sample} went bad; {plan.failures_max} halt."
    if bad and enough and bad >= policy.share(plan.failure_percent, sample):
        return "failed", f"{bad} of {sample} went bad; {plan.failure_percent:g} % halt."
    if enough and counted.good >= policy.share(plan.success_percent, sample):
        return "passed", f"{counted.good} of {sample} baked."
    if awaited or (counted.pending and not enough):
        return "running", f"{counted.pending} have no outcome yet, {sample} have."
    if not enough:
        silent = f" {counted.silent} are silent." if counted.silent else ""
        return "inconclusive", f"{sample} have an outcome; {max(1, needed)} are needed.{silent}"
    return (
        "inconclusive",
        f"{counted.good} of {sample} baked; {plan.success_percent:g} % are needed.",
    )


def _end_wave(
    fleet: Fleet, rollout: Rollout, wave: Wave, result: OpenVerdict, sentence: str
) -> list[Event]:
    assert result != "running"
    counted = tally(fleet, rollout, wave)
    found: list[Event] = [
        decisions.WaveJudged(
            rollout=rollout.plan.id,
            wave=wave.number,
            verdict=result,
            good=counted.good,
            bad=counted.bad,
            sentence=sentence,
        )
    ]
    if result == "inconclusive":
        found.append(
            rulings.RolloutPaused(
                rollout=rollout.plan.id, code="wave_inconclusive", reason=sentence
            )
        )
    return found


def judge(fleet: Fleet, rollout: Rollout, now_us: int) -> list[Event]:
    """What the outcomes so far mean for a running or paused rollout."""
    wave = rollout.open_wave
    if rollout.phase not in ("running", "paused") or not rollout.watched:
        return []
    trouble = _trouble(fleet, rollout)
    if trouble is not None:
        halted = rulings.RolloutHalted(rollout=rollout.plan.id, code=trouble[0], reason=trouble[1])
        if wave is None:
            return [halted]
        return [*_end_wave(fleet, rollout, wave, "failed", trouble[1]), halted]
    if wave is None or rollout.phase == "paused":
        return []
    result, sentence = verdict(rollout, count(fleet, rollout, wave))
    if result == "running":
        waited = fleet.led_us(now_us) - wave.since_led_us
        if waited < rollout.plan.wave_timeout_s * SECOND_US:
            return []
        result, sentence = "inconclusive", f"The wave's time ran out: {sentence}"
    return _end_wave(fleet, rollout, wave, result, sentence)


def _trouble(fleet: Fleet, rollout: Rollout) -> tuple[str, str] | None:
    """A reason to halt now, in a pause too: a pause takes failures in."""
    for wave in rollout.watched:
        counted = _counted(fleet, rollout, wave)
        if _fallen_back(counted.totals):
            name = next(n for n in wave.units if counted.of_unit[n][0][0] == "fell_back")
            return "memory_fallback", f"Unit {name} was seen in BF16: it was not delivered."
    for wave in rollout.watched:
        result, sentence = verdict(rollout, count(fleet, rollout, wave))
        if result == "failed":
            name = "What was carried over" if wave is rollout.carried else f"Wave {wave.number}"
            return "wave_failed", f"{name}: {sentence}"
    failed = {key for key, evidence in fleet.keys.items() if evidence.standing == "failed"}
    granted = sorted(failed & exposure.granted_keys(fleet, rollout)) if failed else []
    if granted:
        return "build_failed", f"Kernel key {granted[0]} failed its self-test in two chassis."
    return None


def advance(fleet: Fleet, rollout: Rollout, names: Sequence[str], now_us: int) -> list[Event]:
    """Open the next wave, or complete the rollout, if nothing stands against it.

    Args:
        fleet: the folded log.
        rollout: the one in question.
        names: whoever may have become eligible since this was asked last.
        now_us: the leader's time.
    """
    if rollout.phase != "running" or rollout.open_wave is not None:
        return []
    passed = not rollout.waves or rollout.waves[-1].verdict == "passed"
    if not passed or evidence_in_doubt(fleet, rollout, now_us):
        return []
    if len(rollout.waves) == len(rollout.plan.waves):
        return [_complete(fleet, rollout)]
    if _held(fleet, rollout, now_us):
        return []
    return _open_next(fleet, rollout, names, now_us)


def _open_next(fleet: Fleet, rollout: Rollout, names: Sequence[str], now_us: int) -> list[Event]:
    number = len(rollout.waves)
    awaits = number == 0 or membership.awaits_named(fleet, rollout)
    if awaits and not membership.anybody(fleet, rollout, names, now_us):
        return []  # nothing to learn from yet: the rollout waits for units
    found = membership.eligible(fleet, rollout, now_us)
    new = membership.opening(fleet, rollout, found)
    if awaits and not new:
        return []
    opened = decisions.WaveOpened(
        rollout=rollout.plan.id, wave=number, units=new, eligible=len(found)
    )
    return [opened] if new else [opened, _adds_nobody(rollout, number)]


def _held(fleet: Fleet, rollout: Rollout, now_us: int) -> bool:
    """True if nothing may open or be joined now, whoever is eligible."""
    frozen = windows.frozen(rollout.plan.freeze_windows, now_us) is not None
    return frozen or bool(fleet.freezes) or fleet.breaker_position is not None


def join(fleet: Fleet, rollout: Rollout, names: Sequence[str], now_us: int) -> list[Event]:
    """Let late units into the open wave: those of these names that may have become eligible."""
    wave = rollout.open_wave
    if rollout.phase != "running" or wave is None:
        return []
    if _held(fleet, rollout, now_us):
        return []
    new = membership.joining(fleet, rollout, wave, names, now_us)
    if not new or evidence_in_doubt(fleet, rollout, now_us):
        return []
    return [decisions.WaveJoined(rollout=rollout.plan.id, wave=wave.number, units=new)]


def evidence_in_doubt(fleet: Fleet, rollout: Rollout, now_us: int) -> bool:
    """A key it granted is suspect, or its evidence too old.

    Units of that key are not eligible now, so a wave would seem to have nobody left to take in.
    """
    oldest_us = now_us - fleet.policy.evidence_max_age_s * SECOND_US
    return any(
        fleet.keys[key].standing != "qualified" or fleet.keys[key].qualified_at_us < oldest_us
        for key in exposure.granted_keys(fleet, rollout)
        if key in fleet.keys
    )


def _adds_nobody(rollout: Rollout, number: int) -> Event:
    named = rollout.plan.waves[number].select is not None
    return decisions.WaveJudged(
        rollout=rollout.plan.id,
        wave=number,
        verdict="passed",
        good=(),
        bad=(),
        sentence="Every unit it names was in an earlier wave, has the target or was taken out."
        if named
        else "Every eligible unit was in an earlier wave, and those passed.",
    )


def _complete(fleet: Fleet, rollout: Rollout) -> Event:
    """The keys it ran: only those that a unit with a good outcome was granted."""
    keys = {
        key
        for wave in rollout.waves
        for name in wave.good
        if (unit := fleet.units.get(name)) is not None
        for grant in unit.grants
        if grant.rollout == rollout.plan.id
        for key in grant.kernel_keys
    }
    return decisions.RolloutCompleted(rollout=rollout.plan.id, kernel_keys=tuple(sorted(keys)))
