"""Fold of changes that wait for a person."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from smgate.domain import bodies, break_glass, decisions, guard, rulings
from smgate.domain.events import Recorded
from smgate.domain.state import Fleet
from smgate.domain.state_changes import Change, Ended

Handler = Callable[[Fleet, Recorded, Any], None]


def _open(fleet: Fleet, recorded: Recorded, **fields: Any) -> None:  # noqa: ANN401  as in Change
    change = Change(
        id=f"c{recorded.position}",
        position=recorded.position,
        since_led_us=fleet.led_us(recorded.at_us),
        **fields,
    )
    fleet.changes[change.id] = change
    fleet.open_changes.add(change.id)


def end(fleet: Fleet, recorded: Recorded, name: str, how: Ended) -> Change | None:
    """A change waits no more; nothing if it had ended, or never was."""
    change = fleet.changes.get(name)
    if change is None or not change.open:
        return None
    change.ended, change.ended_position = how, recorded.position
    fleet.open_changes.discard(name)
    return change


def _asked(fleet: Fleet, recorded: Recorded, event: rulings.ChangeAsked) -> None:
    _open(
        fleet,
        recorded,
        kind="asked",
        code="change_asked",
        timeout_s=fleet.policy.change_timeout_s,
        by=event.by,
        reason=event.reason,
        subject=event.command,
        sentence=f"{event.by} asks for: {bodies.describe(event.command, event.body)}.",
        command=event.command,
        body=event.body,
    )


def _glass_broken(fleet: Fleet, recorded: Recorded, event: rulings.BreakGlassUsed) -> None:
    _open(
        fleet,
        recorded,
        kind="break_glass",
        code="break_glass",
        timeout_s=event.expires_s,
        by=event.by,
        reason=event.reason,
        subject=event.command,
        sentence=f"{event.by} did alone: {bodies.describe(event.command, event.body)}. "
        f"When the time runs out: {event.undo}.",
        command=event.command,
        body=event.body,
        own_until=recorded.position + event.events,
    )


def _held(fleet: Fleet, recorded: Recorded, event: decisions.ChangeHeld) -> None:
    _open(
        fleet,
        recorded,
        kind="held",
        code=event.code,
        timeout_s=event.timeout_s,
        by=None,
        reason=event.sentence,
        subject=event.subject,
        sentence=event.sentence,
        units=event.units,
        would=event.would,
        numbers=event.numbers,
        differences=event.differences,
    )
    guard.take_held(fleet, recorded, event)
    for unit in event.units if event.code == guard.RESTORE else ():
        fleet.restore.careful.pop(unit, None)


def _accepted(fleet: Fleet, recorded: Recorded, event: rulings.ChangeAccepted) -> None:
    change = end(fleet, recorded, event.change, "accepted")
    if change is not None:
        change.accepted_by = event.accepted_by
        if change.kind == "break_glass" and change.command == "rollout_start":
            rollout = fleet.rollouts.get(change.body["rollout"])
            if rollout is not None:  # begun by one person, it has its second now
                rollout.approvers.append(event.accepted_by)
        guard.release(fleet, change.id, accepted=True)


def _withdrawn(fleet: Fleet, recorded: Recorded, event: rulings.ChangeWithdrawn) -> None:
    end(fleet, recorded, event.change, "withdrawn")
    guard.release(fleet, event.change, accepted=False)


def _rules_changed(fleet: Fleet, recorded: Recorded, event: decisions.RulesChanged) -> None:
    """What was held of the rules before says nothing any more; what these would change follows."""
    for change in fleet.changes.values():
        if change.open and change.code == "no_cause":
            end(fleet, recorded, change.id, "overtaken")
            guard.release(fleet, change.id, accepted=False)


def watch(fleet: Fleet, recorded: Recorded) -> None:
    """Before an event is folded: what it would take to put it back, and what it puts an end to."""
    glasses = break_glass.still_open(fleet)
    things = break_glass.things_of(recorded.event) if glasses else ()
    if not things:
        return
    undo = break_glass.undo_of(fleet, recorded.event)
    for change in glasses:
        if recorded.position <= change.own_until:
            change.undo |= undo
            continue
        for thing in things:
            change.undo.pop(thing, None)
        if not change.undo:
            end(fleet, recorded, change.id, "overtaken")


HANDLERS: dict[type, Handler] = {
    rulings.ChangeAsked: _asked,
    rulings.ChangeAccepted: _accepted,
    rulings.ChangeWithdrawn: _withdrawn,
    rulings.BreakGlassUsed: _glass_broken,
    decisions.ChangeHeld: _held,
    decisions.RulesChanged: _rules_changed,
}
