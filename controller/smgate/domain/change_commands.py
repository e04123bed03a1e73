"""Commands about changes that wait for a person.

Author and accepter differ: here and by the log's own constraint.
"""

from __future__ import annotations

from collections.abc import Callable

from smgate.domain import bodies, break_glass, changes, commands, rulings
from smgate.domain.errors import RejectedError
from smgate.domain.events import Event
from smgate.domain.state import Fleet
from smgate.domain.state_changes import Change

Decide = Callable[[commands.Command, str], tuple[Event, ...]]
"""What a command of a person comes to as things stand now."""


def _refuse_ended(change: Change) -> RejectedError:
    return RejectedError(
        code=f"change_{change.ended}",
        message=f"Change {change.id} does not wait any more: {change.ended}.",
        next_step="Ask for it again if it is still wanted.",
    )


def accept(
    fleet: Fleet, command: commands.AcceptChange, by: str, *, anew: Decide
) -> tuple[Event, ...]:
    """What follows when a person agrees to a change; `anew` decides what was asked."""
    change = changes.find_change(fleet, command.change)
    if change.ended == "accepted" and change.accepted_by == by:
        return ()
    if not change.open:
        raise _refuse_ended(change)
    if change.by == by:
        raise RejectedError(
            code="same_person",
            message=f"{by} asked for change {change.id} and cannot accept it.",
            next_step="Ask another person with the role approver.",
        )
    accepted = rulings.ChangeAccepted(
        change=change.id, author=change.by, accepted_by=by, reason=command.reason
    )
    if change.kind != "asked":
        return (accepted,)
    assert change.command is not None
    assert change.by is not None
    asked = bodies.to_command(change.command, change.body, reason=change.reason)
    return (accepted, *anew(asked, change.by))


def withdraw(fleet: Fleet, command: commands.WithdrawChange, by: str) -> tuple[Event, ...]:
    """What follows when a change is not wanted any more."""
    change = changes.find_change(fleet, command.change)
    if change.ended == "withdrawn":
        return ()
    if not change.open:
        raise _refuse_ended(change)
    withdrawn = rulings.ChangeWithdrawn(change=change.id, reason=command.reason)
    return (withdrawn, *break_glass.putting_back(fleet, change))
