"""The plan: what the controller decides next, from the state and the time alone.

One call gives the events of one stage, the first that has any; the leader appends them, folds
them back and plans again until nothing is left. So every decision is made on a state that the log
already has, and can be recomputed from its own position.

`plan` looks at every unit. A `Planner` remembers that it found nothing to do and looks only at what
changed since, or came due; a property test holds that both say the same. So a stage looks at
`look.units` and no others; what it needs to know of the rest it takes from a `census`, from
`look.held`, or from something of which a fleet has few: gates, kernel keys, rollouts, open alarms. A
test holds that planning a unit again takes as many steps in a large fleet as in a small one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from smgate.domain import (
    alarms,
    alike,
    break_glass,
    decisions,
    drains,
    evidence,
    exposure,
    grants,
    readings,
    restoring,
    rules,
    shadow,
    touches,
    turns,
    waits,
    waves,
)
from smgate.domain.events import Event
from smgate.domain.state import Fleet, Unit
from smgate.domain.waits import SECOND_US

LIMITS = ("max_in_flight", "exposure_limit")
"""Refusals that end when some other unit changes."""
MAY_BE_LIMITED = (*LIMITS, "granted", "standing")
"""What observe mode would say of a unit that starts as soon as a limit allows it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to record now, and when to look again even if nothing happens."""

    events: tuple[Event, ...]
    next_due_us: int | None


@dataclass(slots=True, kw_only=True)
class Look:
    """One look at the fleet: which units, and what is remembered of all others."""

    fleet: Fleet
    now_us: int
    names: Sequence[str]
    units: Sequence[Unit] = field(init=False)
    """Those of these names: each stage looks at them anew, and a name costs a search."""
    held: alarms.Held = field(default_factory=alarms.Held)
    timers: waits.Timers = field(default_factory=waits.Timers)
    alike: bool = False
    """Whether units that are alike may be asked about once."""
    needs: dict[str, drains.Need] = field(default_factory=dict)
    """Units that must be restarted onto the safe value; right from the stage of the drains on."""

    def __post_init__(self) -> None:
        self.units = list(map(self.fleet.units.__getitem__, self.names))

    def sorted_needs(self) -> dict[str, drains.Need]:
        """The needs by name, as `drains.needs`."""
        return dict(sorted(self.needs.items()))


def _breaker(look: Look) -> list[Event]:
    fleet, now_us = look.fleet, look.now_us
    if fleet.breaker_position is not None:
        return []
    since = fleet.led_us(now_us) - fleet.policy.breaker_window_s * SECOND_US
    units = sorted({unit for at, unit in fleet.bad_signs if at > since})
    if len(units) < fleet.policy.breaker_bad_units:
        return []
    return [decisions.BreakerTripped(units=tuple(units), window_s=fleet.policy.breaker_window_s)]


def _run_out(look: Look) -> list[Event]:
    """Break-glasses whose time has run out: each ends with what puts back what it changed."""
    fleet = look.fleet
    glasses = [w for w in waits.of_changes(fleet, look.now_us) if w.code == "break_glass"]
    found: list[Event] = []
    for ended in waits.timed_out(fleet, glasses):
        found += [
            ended,
            *break_glass.putting_back(fleet, fleet.changes[ended.subject], "has run out."),
        ]
    return found


def _judgements(look: Look) -> list[Event]:
    rollouts = look.fleet.rollouts
    found = (waves.judge(look.fleet, rollouts[r], look.now_us) for r in sorted(rollouts))
    return list(chain.from_iterable(found))


def _advances(look: Look) -> list[Event]:
    rollouts = look.fleet.rollouts
    found: list[Event] = []
    for name in sorted(rollouts):
        found += waves.advance(look.fleet, rollouts[name], look.names, look.now_us)
        found += waves.join(look.fleet, rollouts[name], look.names, look.now_us)
    return found


def launch_ready(fleet: Fleet, unit: Unit, now_us: int) -> bool:
    """True if a unit launch can be decided: all ranks are in and no asked check is open.

    At the gather deadline it is decided with what is known; a check has its own timer.
    """
    launch = unit.launch
    assert launch is not None
    if any(
        w.open for launch_id in launch.launch_ids for w in fleet.launch_wants.get(launch_id, ())
    ):
        return False
    waited = fleet.led_us(now_us) - launch.opened_led_us
    return launch.complete or waited >= fleet.policy.gather_s * SECOND_US


def _overrides(look: Look) -> list[Event]:
    once = look.alike and len(look.units) > 1
    stands = alike.once(look.fleet) if once else alike.stands
    found: list[Event] = []
    flying: dict[str, int] = {}
    for unit in look.units:
        event = override_for(look.fleet, unit, look.now_us, stands=stands)
        if event is not None and _has_place(look.fleet, event, flying):
            found.append(event)
    return shadow.limited(look.fleet, found, look.now_us)


def _has_place(fleet: Fleet, event: decisions.OverrideSet, flying: dict[str, int]) -> bool:
    """False if others that start at this moment took the last places: it is decided after them."""
    unit = fleet.units[event.unit]
    grant = readings.grant_in_force(fleet, unit)
    rollout = fleet.rollouts.get(grant.rollout or "") if grant is not None else None
    starts = event.launch_ids and exposure.is_target(fleet, event)
    if grant is None or grant.launched or rollout is None or not starts:
        return True
    name, places = rollout.plan.id, rollout.plan.max_in_flight
    flying.setdefault(name, exposure.in_flight(fleet, rollout))
    flying[name] += 1
    return flying[name] <= places or rollout.phase == "completed"


def override_for(
    fleet: Fleet, unit: Unit, now_us: int, *, stands: alike.Stands = alike.stands
) -> decisions.OverrideSet | None:
    """The `override_set` this unit needs now, or None if what it was told still holds."""
    if not unit.live:
        return None
    launch = unit.launch
    if launch is not None and launch.decided is None:
        if not launch_ready(fleet, unit, now_us):
            return None
        return rules.decide_unit(fleet, unit.id, now_us).event
    if launch is not None and launch.decided is not None:
        told = launch.decided.launch_ids
        if told != launch.launch_ids and not set(launch.launch_ids).issubset(told):
            # A late rank gets what the others got.
            nodes = {rank.node for rank in launch.ranks.values()}
            return replace(
                launch.decided,
                launch_ids=launch.launch_ids,
                nodes=tuple(sorted(nodes.union(launch.decided.nodes))),
                as_of_position=fleet.position,
                now_us=now_us,
            )
    before = unit.override
    stood = before is not None and stands(fleet, unit, before, now_us)
    if stood and not restoring.to_confirm(fleet, unit):
        return None
    return replace(rules.decide_unit(fleet, unit.id, now_us).event, launch_ids=())


def _drains(look: Look) -> list[Event]:
    for unit in look.units:
        found = drains.need(look.fleet, unit, look.now_us)
        if found is not None:
            look.needs[unit.id] = found
        else:
            look.needs.pop(unit.id, None)
    return drains.plan(look.fleet, look.sorted_needs(), look.now_us)


def _episodes(look: Look) -> list[Event]:
    look.held.look(look.fleet, look.units, look.now_us)
    return alarms.episodes(look.fleet, look.held, look.now_us)


def _time_outs(look: Look) -> list[Event]:
    of_units = look.timers.look(look.fleet, look.units, look.now_us)
    of_world = waits.of_world(look.fleet, look.sorted_needs(), look.now_us)
    return [*waits.timed_out(look.fleet, chain(of_units, of_world))]


Stage = Callable[[Look], list[Event]]

STAGES: tuple[Stage, ...] = (
    _run_out,
    lambda look: turns.thaw(look.fleet, look.now_us),
    lambda look: grants.disagreements(look.fleet, look.units),
    lambda look: evidence.standings(look.fleet),
    lambda look: [
        *grants.endings(look.fleet, look.units, look.now_us),
        *grants.faults(look.fleet, look.units, look.now_us),
    ],
    _breaker,
    _judgements,
    _advances,
    lambda look: evidence.asks(look.fleet, look.units, look.now_us),
    lambda look: shadow.limited(
        look.fleet, grants.starts(look.fleet, look.names, look.now_us), look.now_us
    ),
    _overrides,
    lambda look: shadow.waiting(look.fleet, look.names, look.now_us),
    _drains,
    lambda look: grants.adoptions(look.fleet, look.units),
    _episodes,
    _time_outs,
)
"""In this order: bad news first, then what it ends, what may open, what units are told, and whom to restart."""


def _plan(look: Look) -> Plan:
    for stage in STAGES:
        events = stage(look)
        if events:
            return Plan(events=tuple(events), next_due_us=look.now_us)
    return Plan(events=(), next_due_us=_next_due_us(look))


def plan(fleet: Fleet, now_us: int) -> Plan:
    """Plan once, looking at everything and remembering nothing: the reference.

    Args:
        fleet: the folded log.
        now_us: the leader's time, never below `fleet.now_us`.

    Returns:
        The events of the first stage that has any; none if everything is said. What waits then is
        listed by `waits.collect`.
    """
    fleet.censuses.clear()
    return _plan(Look(fleet=fleet, now_us=now_us, names=sorted(fleet.units)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Common:
    """Answers of a whole fleet on which those of its units hang."""

    limits: tuple[object, ...]
    """Which limits are reached. More or less beyond that changes nothing for anybody."""
    in_doubt: tuple[str, ...]
    """Running rollouts that take nobody in for now."""


def _common(fleet: Fleet, now_us: int) -> _Common:
    running = [r for _, r in sorted(fleet.rollouts.items()) if r.phase == "running"]
    limits: list[object] = [
        name
        for name, r in sorted(fleet.rollouts.items())
        if exposure.in_flight(fleet, r) >= r.plan.max_in_flight
    ]
    limit = fleet.policy.exposure_limit_units
    if limit is not None:
        sms = sorted(fleet.candidate_sms)
        over = ((sm, exposure.exposed_count(fleet, sm) - limit) for sm in sms)
        # A unit that counts itself is refused by one more than the limit, others by the limit.
        limits += [(sm, min(1, by)) for sm, by in over if by >= 0]
    return _Common(
        limits=tuple(limits),
        in_doubt=tuple(r.plan.id for r in running if waves.evidence_in_doubt(fleet, r, now_us)),
    )


class Planner:
    """Plans one fold of one log again and again. Make a new one for a new fold."""

    def __init__(self) -> None:
        self._settled: int | None = None
        self._turn_us: int | None = None
        self._last = Plan(events=(), next_due_us=None)
        self._common: _Common | None = None
        self._held = alarms.Held()
        self._timers = waits.Timers()
        self._needs: dict[str, drains.Need] = {}
        self._due: set[str] = set()
        """Units whose timers ran out since the last quiet plan."""
        self._hanging: set[str] = set()
        """Units whose answers hang on what others do."""

    def plan(self, fleet: Fleet, now_us: int) -> Plan:
        """As `plan`, looking only at what changed or came due since the last quiet plan."""
        common = _common(fleet, now_us)
        names = self._names(fleet, common, now_us)
        if names is None:
            return self._last
        look = Look(
            fleet=fleet,
            now_us=now_us,
            names=names,
            held=self._held,
            timers=self._timers,
            needs=self._needs,
            alike=True,
        )
        found = _plan(look)
        for unit in look.units:
            self._note(unit)
        if not found.events:
            self._settled, self._last, self._common = fleet.position, found, common
            self._turn_us = turns.next_us(fleet, now_us)
            self._due.clear()
        return found

    def _note(self, unit: Unit) -> None:
        override, launch = unit.override, unit.launch
        # One that waits to be decided may be asked for the check that another did not answer.
        hangs = launch is not None and launch.decided is None
        if override is not None and not hangs:
            would = override.would
            hangs = override.code in LIMITS or (would is not None and would.code in MAY_BE_LIMITED)
        if hangs:
            self._hanging.add(unit.id)
        else:
            self._hanging.discard(unit.id)

    def _names(self, fleet: Fleet, common: _Common, now_us: int) -> list[str] | None:
        """What to look at; None if nothing changed and nothing is due."""
        settled = self._settled
        turned = self._turn_us is not None and now_us >= self._turn_us
        recent = None if settled is None or turned else touches.since(fleet, settled)
        before = self._common
        if (
            settled is None
            or recent is None
            or before is None
            or common.in_doubt != before.in_doubt
        ):
            self._held, self._timers, self._needs = alarms.Held(), waits.Timers(), {}
            self._due.clear()
            return sorted(fleet.units)
        due = self._last.next_due_us is not None and now_us >= self._last.next_due_us
        if fleet.position == settled and not due:
            return None
        self._due |= self._timers.take_due(fleet.led_us(now_us))
        found = self._due.union(recent)
        if common.limits != before.limits or fleet.checks_position > settled:
            found |= self._hanging
        return sorted(found)


def _next_due_us(look: Look) -> int | None:
    fleet, now_us = look.fleet, look.now_us
    led_us = fleet.led_us(now_us)
    of_units = look.timers.next_led_us()
    due = [] if of_units is None else [of_units - led_us]
    due += [
        wait.due_led_us - led_us
        for wait in waits.of_world(fleet, look.sorted_needs(), now_us)
        if wait.due_led_us is not None and wait.due_led_us > led_us
    ]
    due += [
        left
        for episode in alarms.open_episodes(fleet).values()
        if episode.absent_led_us is not None
        and (left := alarms.quiet_left_us(fleet, episode, now_us)) > 0
    ]
    turn_us = turns.next_us(fleet, now_us)
    if turn_us is not None:
        due.append(turn_us - now_us)
    return now_us + min(due) if due else None
