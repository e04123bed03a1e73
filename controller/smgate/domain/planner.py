"""The plan: what the controller decides next, from the state and the time alone.

One call gives the events of one stage, the first that has any; the leader appends them, folds
them back and plans again until nothing is left. So every decision is made on a state that the log
already has, and can be recomputed from its own position.

`plan` looks at every unit. A `Planner` remembers that it found nothing to do and looks only at what
changed since, or came due; a property test holds that both say the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, takewhile

from smgate.domain import (
    alarms,
    break_glass,
    decisions,
    drains,
    evidence,
    grants,
    rules,
    waits,
    waves,
)
from smgate.domain.events import Event
from smgate.domain.state import Fleet, Unit
from smgate.domain.waits import SECOND_US

LIMITS = ("max_in_flight", "exposure_limit")
"""Refusals that end when some other unit changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to record now, what waits, and when to look again even if nothing happens."""

    events: tuple[Event, ...]
    waits: tuple[waits.Wait, ...]
    next_due_us: int | None


@dataclass(slots=True, kw_only=True)
class Look:
    """One look at the fleet: which units, and what is remembered of all others."""

    fleet: Fleet
    now_us: int
    units: Sequence[str]
    unit_waits: dict[str, tuple[waits.Wait, ...]] = field(default_factory=dict)
    unit_conditions: dict[str, tuple[alarms.Condition, ...]] = field(default_factory=dict)
    unit_needs: dict[str, drains.Need] = field(default_factory=dict)

    def waits(self) -> list[waits.Wait]:
        """Everything that waits now, in the order of `waits.collect`."""
        fleet, now_us, kept = self.fleet, self.now_us, self.unit_waits
        for name in self.units:
            found = tuple(waits.of_unit(fleet, fleet.units[name], now_us))
            kept.pop(name, None)
            if found:
                kept[name] = found
        of_units = (wait.at(fleet, now_us) for name in sorted(kept) for wait in kept[name])
        return [*of_units, *waits.of_world(fleet, self.needs(), now_us)]

    def needs(self) -> dict[str, drains.Need]:
        """Every unit that must be restarted onto the safe value, by name."""
        kept = self.unit_needs
        for name in self.units:
            found = drains.need(self.fleet, self.fleet.units[name], self.now_us)
            kept.pop(name, None)
            if found is not None:
                kept[name] = found
        return dict(sorted(kept.items()))

    def conditions(self) -> list[alarms.Condition]:
        """Every alarm condition that holds now."""
        fleet, kept = self.fleet, self.unit_conditions
        for name in self.units:
            found = alarms.of_unit(fleet, fleet.units[name], self.now_us)
            kept.pop(name, None)
            if found:
                kept[name] = found
        return [*chain.from_iterable(kept.values()), *alarms.of_world(fleet)]


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
        found += [ended, *break_glass.putting_back(fleet, fleet.changes[ended.subject])]
    return found


def _judgements(look: Look) -> list[Event]:
    rollouts = look.fleet.rollouts
    found = (waves.judge(look.fleet, rollouts[r], look.now_us) for r in sorted(rollouts))
    return list(chain.from_iterable(found))


def _advances(look: Look) -> list[Event]:
    rollouts = look.fleet.rollouts
    found: list[Event] = []
    for name in sorted(rollouts):
        found += waves.advance(look.fleet, rollouts[name], look.now_us)
        found += waves.join(look.fleet, rollouts[name], look.units, look.now_us)
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
    found: list[Event] = []
    for name in look.units:
        event = override_for(look.fleet, look.fleet.units[name], look.now_us)
        if event is not None:
            found.append(event)
    return found


def override_for(fleet: Fleet, unit: Unit, now_us: int) -> decisions.OverrideSet | None:
    """The `override_set` this unit needs now, or None if what it was told still holds."""
    if not unit.live:
        return None
    launch = unit.launch
    if launch is not None and launch.decided is None:
        if not launch_ready(fleet, unit, now_us):
            return None
        return rules.decide_unit(fleet, unit.id, now_us).event
    if launch is not None and launch.decided is not None:
        late = set(launch.launch_ids) - set(launch.decided.launch_ids)
        if late:  # a late rank gets what the others got
            nodes = {rank.node for rank in launch.ranks.values()}
            return replace(
                launch.decided,
                launch_ids=launch.launch_ids,
                nodes=tuple(sorted(nodes.union(launch.decided.nodes))),
                as_of_position=fleet.position,
                now_us=now_us,
            )
    event = rules.decide_unit(fleet, unit.id, now_us).event
    if unit.override is not None and same(unit.override, event):
        return None
    return replace(event, launch_ids=())


def same(before: decisions.OverrideSet, after: decisions.OverrideSet) -> bool:
    """True if two decisions say the same; when and from what they were made does not count."""
    return _said(before) == _said(after)


def _said(event: decisions.OverrideSet) -> tuple[object, ...]:
    return (
        event.form,
        event.value,
        event.code,
        event.would,
        event.given_for,
        event.nodes,
        event.no_safe_value,
    )


Stage = Callable[[Look], list[Event]]

STAGES: tuple[Stage, ...] = (
    _run_out,
    lambda look: grants.disagreements(look.fleet, look.units),
    lambda look: evidence.standings(look.fleet),
    lambda look: grants.endings(look.fleet, look.units, look.now_us),
    _breaker,
    _judgements,
    _advances,
    lambda look: evidence.asks(look.fleet, look.units),
    lambda look: grants.starts(look.fleet, look.units, look.now_us),
    _overrides,
    lambda look: drains.plan(look.fleet, look.needs(), look.now_us),
    lambda look: grants.adoptions(look.fleet, look.units),
    lambda look: alarms.episodes(look.fleet, look.conditions(), look.now_us),
    lambda look: [*waits.timed_out(look.fleet, look.waits())],
)
"""In this order: bad news first, then what it ends, what may open, what units are told, and whom to restart."""


def _plan(look: Look) -> Plan:
    for stage in STAGES:
        events = stage(look)
        if events:
            return Plan(events=tuple(events), waits=(), next_due_us=look.now_us)
    waiting = look.waits()
    due = _next_due_us(look.fleet, waiting, look.now_us)
    return Plan(events=(), waits=tuple(waiting), next_due_us=due)


def plan(fleet: Fleet, now_us: int) -> Plan:
    """Plan once, looking at everything.

    Args:
        fleet: the folded log.
        now_us: the leader's time, never below `fleet.now_us`.

    Returns:
        The events of the first stage that has any; none if everything is said. With no events,
        `waits` lists every waiting state.
    """
    return _plan(Look(fleet=fleet, now_us=now_us, units=sorted(fleet.units)))


class Planner:
    """Plans one fold of one log again and again. Make a new one for a new fold."""

    def __init__(self) -> None:
        self._settled: int | None = None
        self._expiry_us: int | None = None
        self._last = Plan(events=(), waits=(), next_due_us=None)
        self._waits: dict[str, tuple[waits.Wait, ...]] = {}
        self._conditions: dict[str, tuple[alarms.Condition, ...]] = {}
        self._needs: dict[str, drains.Need] = {}
        self._limited: set[str] = set()

    def plan(self, fleet: Fleet, now_us: int) -> Plan:
        """As `plan`, looking only at what changed or came due since the last quiet plan."""
        units = self._units(fleet, now_us)
        if units is None:
            return self._last
        look = Look(
            fleet=fleet,
            now_us=now_us,
            units=units,
            unit_waits=self._waits,
            unit_conditions=self._conditions,
            unit_needs=self._needs,
        )
        found = _plan(look)
        for name in units:
            self._note_limit(fleet.units[name])
        if not found.events:
            self._settled, self._last = fleet.position, found
            self._expiry_us = _expiry_us(fleet, now_us)
        return found

    def _note_limit(self, unit: Unit) -> None:
        limited = unit.override is not None and unit.override.code in LIMITS
        # One that waits to be decided may be asked for the check that another did not answer.
        undecided = unit.launch is not None and unit.launch.decided is None
        if limited or undecided:
            self._limited.add(unit.id)
        else:
            self._limited.discard(unit.id)

    def _units(self, fleet: Fleet, now_us: int) -> list[str] | None:
        """What to look at; None if nothing changed and nothing is due."""
        settled = self._settled
        expired = self._expiry_us is not None and now_us >= self._expiry_us
        folded_anew = settled is not None and fleet.position < settled
        if settled is None or folded_anew or expired or fleet.world_position > settled:
            self._waits.clear()
            self._conditions.clear()
            self._needs.clear()
            return sorted(fleet.units)
        due = self._last.next_due_us is not None and now_us >= self._last.next_due_us
        if fleet.position == settled and not due:
            return None
        recent = takewhile(lambda item: item[1] > settled, reversed(fleet.touched.items()))
        found = {name for name, _ in recent} | self._limited
        if due:
            led_us = fleet.led_us(now_us)
            found |= {
                name
                for name, waiting in self._waits.items()
                if any(w.due_led_us is not None and w.due_led_us <= led_us for w in waiting)
            }
        return sorted(found)


def _expiry_us(fleet: Fleet, now_us: int) -> int | None:
    """When evidence grows too old next: that concerns every unit of its key."""
    age_us = fleet.policy.evidence_max_age_s * SECOND_US + 1
    ends = (k.qualified_at_us + age_us for k in fleet.keys.values() if k.standing == "qualified")
    return min((end for end in ends if end > now_us), default=None)


def _next_due_us(fleet: Fleet, waiting: list[waits.Wait], now_us: int) -> int | None:
    due = [w.remaining_us for w in waiting if w.remaining_us is not None and w.remaining_us > 0]
    due += [
        left
        for episode in alarms.open_episodes(fleet).values()
        if episode.absent_led_us is not None
        and (left := alarms.quiet_left_us(fleet, episode, now_us)) > 0
    ]
    expiry_us = _expiry_us(fleet, now_us)
    if expiry_us is not None:
        due.append(expiry_us - now_us)
    return now_us + min(due) if due else None
