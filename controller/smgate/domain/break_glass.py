"""Widening alone, for a time: what puts each thing back when the time runs out.

A thing is what a ruling is about. While a break-glass is open, any later ruling on its thing takes
that thing out of it: what people said last stands. So what is left stands as the break-glass left it,
and putting it back narrows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

from smgate.domain import decisions, rulings
from smgate.domain.events import Event
from smgate.domain.state import Fleet
from smgate.domain.state_changes import Change, Thing

REASON: Final = "The time of a break-glass has run out."
OVER: Final = "break_glass_over"
"""Code of a rollout that stopped because nobody else had agreed in time."""


def _named(kind: str, field: str) -> Callable[[Any], tuple[Thing, ...]]:
    return lambda event: ((kind, getattr(event, field)),)


def _switches(event: rulings.GateDisabled | rulings.GateEnabled) -> tuple[Thing, ...]:
    return tuple(("switch", event.gate, sm) for sm in event.sms)


_THINGS: Final[dict[type, Callable[[Any], tuple[Thing, ...]]]] = {
    rulings.GateModeSet: lambda event: (("mode", event.gate, event.sm),),
    rulings.GateDisabled: _switches,
    rulings.GateEnabled: _switches,
    rulings.PolicyPublished: lambda _: (("policy",),),
    rulings.IssuePublished: lambda event: (("issue", event.issue.id),),
    rulings.IssueWithdrawn: _named("issue", "issue_id"),
    rulings.UnitExcluded: _named("hands_off", "unit"),
    rulings.UnitIncluded: _named("hands_off", "unit"),
    rulings.OverrideReleased: _named("hands_off", "unit"),
    rulings.PinSet: _named("pin", "unit"),
    rulings.PinRemoved: _named("pin", "unit"),
    rulings.AdoptionDecided: _named("adoption", "unit"),
    rulings.FreezeDeclared: _named("freeze", "id"),
    rulings.FreezeLifted: _named("freeze", "id"),
    rulings.BreakerReset: lambda _: (("breaker",),),
    decisions.BreakerTripped: lambda _: (("breaker",),),
    rulings.RolloutStarted: _named("rollout", "rollout"),
    rulings.RolloutPaused: _named("rollout", "rollout"),
    rulings.RolloutResumed: _named("rollout", "rollout"),
    rulings.RolloutHalted: _named("rollout", "rollout"),
    rulings.RolloutAborted: _named("rollout", "rollout"),
}


def things_of(event: Event) -> tuple[Thing, ...]:
    """What a ruling is about; nothing for an event that replaces no ruling."""
    find = _THINGS.get(type(event))
    return () if find is None else find(event)


def undo_of(fleet: Fleet, event: Event) -> dict[Thing, Event]:
    """What puts back what an event is about to change, thing by thing; nothing where nothing can.

    What stood before the first glass was broken counts: a second one on top of it has the same end.
    """
    find = _UNDO.get(type(event))
    found = () if find is None else find(fleet, event)
    undo = {thing: one for one in found for thing in things_of(one)}
    for earlier in still_open(fleet):
        undo |= {thing: one for thing, one in earlier.undo.items() if thing in undo}
    return undo


def still_open(fleet: Fleet) -> list[Change]:
    """Every break-glass that is in force and that nobody else has accepted, the newest first."""
    return [c for c in reversed(fleet.changes.values()) if c.open and c.kind == "break_glass"]


def _mode(fleet: Fleet, event: rulings.GateModeSet) -> Iterator[Event]:
    yield replace(event, mode=fleet.mode_of(event.gate, event.sm), reason=REASON)


def _switch(fleet: Fleet, event: rulings.GateEnabled) -> Iterator[Event]:
    for sm in event.sms:
        yield rulings.GateDisabled(gate=event.gate, sms=(sm,), reason=REASON)


def _policy(fleet: Fleet, event: rulings.PolicyPublished) -> Iterator[Event]:
    yield rulings.PolicyPublished(policy=fleet.policy, reason=REASON)


def _issue(fleet: Fleet, event: rulings.IssuePublished | rulings.IssueWithdrawn) -> Iterator[Event]:
    name = event.issue.id if isinstance(event, rulings.IssuePublished) else event.issue_id
    if name in fleet.issues:
        yield rulings.IssuePublished(issue=fleet.issues[name], reason=REASON)


def _include(fleet: Fleet, event: rulings.UnitIncluded) -> Iterator[Event]:
    yield rulings.UnitExcluded(unit=event.unit, reason=REASON)


def _release(fleet: Fleet, event: rulings.OverrideReleased) -> Iterator[Event]:
    unit = fleet.units.get(event.unit)
    if unit is not None and not unit.excluded:  # to include it would end that too
        yield rulings.UnitIncluded(unit=event.unit, reason=REASON)


def _pin(fleet: Fleet, event: rulings.PinSet | rulings.PinRemoved) -> Iterator[Event]:
    unit = fleet.units.get(event.unit)
    before = None if unit is None else unit.pin
    if before is None:
        yield rulings.PinRemoved(unit=event.unit, reason=REASON)
    else:
        yield replace(before, reason=f"{before.reason} (again: {REASON})")


def _accept(fleet: Fleet, event: rulings.AdoptionDecided) -> Iterator[Event]:
    yield replace(event, ruling="taken_back", kernel_key=None, reason=REASON)


def _lift(fleet: Fleet, event: rulings.FreezeLifted) -> Iterator[Event]:
    reason = fleet.freeze_reasons.get(event.id, event.id)
    yield rulings.FreezeDeclared(id=event.id, reason=f"{reason} (again: {REASON})")


def _reset(fleet: Fleet, event: rulings.BreakerReset) -> Iterator[Event]:
    yield decisions.BreakerTripped(
        units=fleet.breaker_units, window_s=fleet.policy.breaker_window_s
    )


def _go_on(fleet: Fleet, event: rulings.RolloutStarted | rulings.RolloutResumed) -> Iterator[Event]:
    yield rulings.RolloutPaused(rollout=event.rollout, code=OVER, reason=REASON)


_UNDO: Final[dict[type, Callable[[Fleet, Any], Iterator[Event]]]] = {
    rulings.GateModeSet: _mode,
    rulings.GateEnabled: _switch,
    rulings.PolicyPublished: _policy,
    rulings.IssuePublished: _issue,
    rulings.IssueWithdrawn: _issue,
    rulings.UnitIncluded: _include,
    rulings.OverrideReleased: _release,
    rulings.PinSet: _pin,
    rulings.PinRemoved: _pin,
    rulings.AdoptionDecided: _accept,
    rulings.FreezeLifted: _lift,
    rulings.BreakerReset: _reset,
    rulings.RolloutStarted: _go_on,
    rulings.RolloutResumed: _go_on,
}


def putting_back(fleet: Fleet, change: Change) -> tuple[Event, ...]:
    """What to record to put back all that a break-glass changed and nobody has ruled on since."""
    return tuple(event for one in change.undo.values() for event in _now(fleet, one))


def _now(fleet: Fleet, event: Event) -> Iterator[Event]:
    """The event that puts one thing back, as things stand."""
    if isinstance(event, rulings.RolloutPaused):
        phase = fleet.rollouts[event.rollout].phase
        if phase == "completed":  # else units that come late would go on being granted
            yield rulings.RolloutHalted(rollout=event.rollout, code=OVER, reason=event.reason)
        elif phase == "running":
            yield event
        return
    if isinstance(event, rulings.UnitExcluded) and fleet.units[event.unit].released:
        yield rulings.UnitIncluded(unit=event.unit, reason=event.reason)
    yield event
