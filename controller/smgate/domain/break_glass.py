"""Widening alone, for a time: what puts each thing back when the time runs out.

A thing is what a ruling is about. While a break-glass is open, any later ruling on its thing takes
that thing out of it: what people said last stands. So what is left stands as the break-glass left it,
and putting it back narrows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Final

from smgate.domain import decisions, rulings, windows
from smgate.domain.events import Event
from smgate.domain.policy import KnownIssue
from smgate.domain.state import Fleet
from smgate.domain.state_changes import Change, Thing

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


def issue_before(fleet: Fleet, name: str) -> KnownIssue | None:
    """A known issue as two people left it: what one person loosened alone does not count."""
    for change in still_open(fleet):
        before = change.undo.get(("issue", name))
        if isinstance(before, rulings.IssuePublished):
            return before.issue
    return fleet.issues.get(name)


def in_words(undo: Iterable[Event]) -> str:
    """What putting things back comes to."""
    return "; ".join(_WORDS[type(one)](one) for one in undo)


def still_open(fleet: Fleet) -> list[Change]:
    """Every break-glass that is in force and that nobody else has accepted, the newest first."""
    return [one for one in reversed(fleet.waiting_changes()) if one.kind == "break_glass"]


def _mode(fleet: Fleet, event: rulings.GateModeSet) -> Iterator[Event]:
    yield replace(event, mode=fleet.mode_of(event.gate, event.sm), reason="")


def _switch(fleet: Fleet, event: rulings.GateEnabled) -> Iterator[Event]:
    for sm in event.sms:
        yield rulings.GateDisabled(gate=event.gate, sms=(sm,), reason="")


def _policy(fleet: Fleet, event: rulings.PolicyPublished) -> Iterator[Event]:
    yield rulings.PolicyPublished(policy=fleet.policy, reason="")


def _issue(fleet: Fleet, event: rulings.IssuePublished | rulings.IssueWithdrawn) -> Iterator[Event]:
    name = event.issue.id if isinstance(event, rulings.IssuePublished) else event.issue_id
    if name in fleet.issues:
        yield rulings.IssuePublished(issue=fleet.issues[name], reason="")


def _include(fleet: Fleet, event: rulings.UnitIncluded) -> Iterator[Event]:
    yield rulings.UnitExcluded(unit=event.unit, reason="")


def _release(fleet: Fleet, event: rulings.OverrideReleased) -> Iterator[Event]:
    unit = fleet.units.get(event.unit)
    if unit is not None and not unit.excluded:  # to include it would end that too
        yield rulings.UnitIncluded(unit=event.unit, reason="")


def _pin(fleet: Fleet, event: rulings.PinSet | rulings.PinRemoved) -> Iterator[Event]:
    unit = fleet.units.get(event.unit)
    before = None if unit is None else unit.pin
    if before is None:
        yield rulings.PinRemoved(unit=event.unit, reason="")
    else:
        yield before


def _accept(fleet: Fleet, event: rulings.AdoptionDecided) -> Iterator[Event]:
    yield replace(event, ruling="taken_back", kernel_key=None, reason="")


def _lift(fleet: Fleet, event: rulings.FreezeLifted) -> Iterator[Event]:
    reason, ends_us = fleet.freeze_reasons.get(event.id, ""), fleet.freeze_ends.get(event.id)
    until = None if ends_us is None else windows.iso(ends_us)
    yield rulings.FreezeDeclared(id=event.id, reason=reason, until=until)


def _reset(fleet: Fleet, event: rulings.BreakerReset) -> Iterator[Event]:
    yield decisions.BreakerTripped(
        units=fleet.breaker_units, window_s=fleet.policy.breaker_window_s
    )


def _go_on(fleet: Fleet, event: rulings.RolloutStarted | rulings.RolloutResumed) -> Iterator[Event]:
    yield rulings.RolloutPaused(rollout=event.rollout, code=OVER, reason="")


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


CAN_UNDO: Final = frozenset(_UNDO)
"""The kinds of events that can be put back."""

_WORDS: Final[dict[type, Callable[[Any], str]]] = {
    rulings.GateModeSet: lambda one: f"SM {one.sm} is set to {one.mode} again",
    rulings.GateDisabled: lambda one: f"gate {one.gate} is disabled on SM {one.sms[0]} again",
    rulings.PolicyPublished: lambda _: "the policy before it holds again",
    rulings.IssuePublished: lambda one: f"issue {one.issue.id} is published again as it was",
    rulings.UnitExcluded: lambda one: f"unit {one.unit} is excluded",
    rulings.UnitIncluded: lambda one: f"unit {one.unit} is included again",
    rulings.PinRemoved: lambda one: f"unit {one.unit} is unpinned",
    rulings.PinSet: lambda one: f"unit {one.unit} is pinned {one.direction} as it was",
    rulings.AdoptionDecided: lambda one: f"unit {one.unit} is taken back",
    rulings.FreezeDeclared: lambda one: f"freeze {one.id} is declared again",
    decisions.BreakerTripped: lambda _: "the breaker is open again",
    rulings.RolloutPaused: lambda one: f"rollout {one.rollout} is paused",
}


def putting_back(fleet: Fleet, change: Change, why: str) -> tuple[Event, ...]:
    """What to record to put back all that a break-glass changed and nobody has ruled on since.

    Args:
        fleet: as it stands now.
        change: the break-glass.
        why: said as each event's reason, behind the one it had before.
    """
    found = [event for one in change.undo.values() for event in _now(fleet, one)]
    return tuple(
        _because(event, f"Break-glass {change.id} of {change.by} {why}") for event in found
    )


def _because(event: Event, why: str) -> Event:
    before = getattr(event, "reason", None)
    if before is None:
        return event
    reasoned: Any = event
    done: Event = replace(reasoned, reason=f"{before} ({why})" if before else why)
    return done


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
