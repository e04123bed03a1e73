"""The plan: what the controller decides next, from the state and the time alone.

One call gives the events of one stage, the first that has any; the leader appends them, folds
them back and plans again until nothing is left. So every decision is made on a state that the log
already has, and can be recomputed from its own position.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from smgate.domain import alarms, decisions, evidence, grants, rules, waits, waves
from smgate.domain.events import Event
from smgate.domain.state import Fleet, Unit
from smgate.domain.waits import SECOND_US


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to record now, what waits, and when to look again even if nothing happens."""

    events: tuple[Event, ...]
    waits: tuple[waits.Wait, ...]
    next_due_us: int | None


def _breaker(fleet: Fleet, now_us: int) -> list[Event]:
    if fleet.breaker_position is not None:
        return []
    since = fleet.led_us(now_us) - fleet.policy.breaker_window_s * SECOND_US
    units = sorted({unit for at, unit in fleet.bad_signs if at > since})
    if len(units) < fleet.policy.breaker_bad_units:
        return []
    return [decisions.BreakerTripped(units=tuple(units), window_s=fleet.policy.breaker_window_s)]


def _judgements(fleet: Fleet, now_us: int) -> list[Event]:
    return [
        e for r in sorted(fleet.rollouts) for e in waves.judge(fleet, fleet.rollouts[r], now_us)
    ]


def _advances(fleet: Fleet, now_us: int) -> list[Event]:
    return [
        e for r in sorted(fleet.rollouts) for e in waves.advance(fleet, fleet.rollouts[r], now_us)
    ]


def launch_ready(fleet: Fleet, unit: Unit, now_us: int) -> bool:
    """True if a unit launch can be decided: all ranks are in and no asked check is open.

    At the gather deadline it is decided with what is known; a check has its own timer.
    """
    launch = unit.launch
    assert launch is not None
    ids = set(launch.launch_ids)
    if any(w.open and w.launch_id in ids for w in fleet.wanted.values()):
        return False
    waited = fleet.led_us(now_us) - launch.opened_led_us
    return launch.complete or waited >= fleet.policy.gather_s * SECOND_US


def _overrides(fleet: Fleet, now_us: int) -> list[Event]:
    found: list[Event] = []
    for name in sorted(fleet.units):
        event = override_for(fleet, fleet.units[name], now_us)
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
    event = replace(rules.decide_unit(fleet, unit.id, now_us).event, launch_ids=())
    return None if unit.override is not None and same(unit.override, event) else event


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


Stage = Callable[[Fleet, int], list[Event]]

STAGES: tuple[Stage, ...] = (
    lambda fleet, _: grants.disagreements(fleet),
    lambda fleet, _: evidence.standings(fleet),
    grants.endings,
    _breaker,
    _judgements,
    _advances,
    lambda fleet, _: evidence.asks(fleet),
    grants.starts,
    _overrides,
    lambda fleet, _: grants.adoptions(fleet),
    alarms.episodes,
    lambda fleet, now_us: waits.timed_out(fleet, waits.collect(fleet, now_us)),
)
"""In this order: bad news first, then what it ends, then what may open, then what units are told."""


def plan(fleet: Fleet, now_us: int) -> Plan:
    """Plan once.

    Args:
        fleet: the folded log.
        now_us: the leader's time, never below `fleet.now_us`.

    Returns:
        The events of the first stage that has any; none if everything is said. With no events,
        `waits` lists every waiting state.
    """
    for stage in STAGES:
        events = stage(fleet, now_us)
        if events:
            return Plan(events=tuple(events), waits=(), next_due_us=now_us)
    waiting = waits.collect(fleet, now_us)
    return Plan(events=(), waits=tuple(waiting), next_due_us=_next_due_us(fleet, waiting, now_us))


def _next_due_us(fleet: Fleet, waiting: list[waits.Wait], now_us: int) -> int | None:
    due = [w.remaining_us for w in waiting if w.remaining_us is not None and w.remaining_us > 0]
    due += [
        left
        for episode in alarms.open_episodes(fleet).values()
        if episode.absent_led_us is not None
        and (left := alarms.quiet_left_us(fleet, episode, now_us)) > 0
    ]
    due += [
        left
        for key in fleet.keys.values()
        if key.standing == "qualified"
        and (left := key.qualified_at_us + fleet.policy.evidence_max_age_s * SECOND_US + 1 - now_us)
        > 0
    ]
    return now_us + min(due) if due else None
