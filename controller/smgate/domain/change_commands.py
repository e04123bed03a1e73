"""Commands about changes that wait for a person.

Author and accepter differ: here and by the log's own constraint.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from smgate.domain import (
    bodies,
    break_glass as glass,
    changes,
    commands,
    rulings,
    shadow,
    values,
)
from smgate.domain.errors import RejectedError
from smgate.domain.events import Event
from smgate.domain.policy import Policy
from smgate.domain.state import Fleet
from smgate.domain.state_changes import Change

Decide = Callable[[commands.Command, str], tuple[Event, ...]]
"""What a command of a person comes to as things stand now."""


def same(fleet: Fleet, command: commands.Command) -> Change | None:
    """The open change of a person that is this very command."""
    name, body = bodies.name_of(command), bodies.of_command(command)
    for change in fleet.waiting_changes():
        if (change.command, change.body) == (name, body):
            return change
    return None


def ask(fleet: Fleet, command: commands.Command, *, by: str) -> tuple[Event, ...]:
    """A command waits for another person; asked for twice it is the same change."""
    if same(fleet, command) is not None:
        return ()
    return (
        rulings.ChangeAsked(
            command=bodies.name_of(command),
            body=bodies.of_command(command),
            by=by,
            reason=command.reason,
        ),
    )


def check_break_glass(
    fleet: Fleet, command: commands.Command, direction: values.Direction, *, expires_s: int
) -> None:
    """Refuse a break-glass where none is needed, and one for too long."""
    rollout = (
        fleet.rollouts.get(command.rollout) if isinstance(command, commands.StartRollout) else None
    )
    agreed = isinstance(command, commands.AcceptChange) or (
        rollout is not None and rollout.phase == "approved"
    )
    if direction == "narrows" or agreed:
        raise RejectedError(
            code="break_glass_not_needed",
            message="Nobody else has to agree to this.",
            next_step="Give the same command without the break-glass.",
        )
    if not 1 <= expires_s <= fleet.policy.break_glass_max_s:
        raise RejectedError(
            code="bad_expiry",
            message=f"Alone for {expires_s} s: at most {fleet.policy.break_glass_max_s} s.",
            next_step="Give less, and have another person accept it meanwhile.",
        )
    if isinstance(command, commands.PublishPolicy) and _who_agrees(command.policy) != _who_agrees(
        fleet.policy
    ):
        raise RejectedError(
            code="no_break_glass",
            message="Nobody decides alone who must agree, nor for how long one may go alone.",
            next_step="Leave out the break-glass and have another person accept the change.",
        )


def _who_agrees(policy: Policy) -> tuple[object, ...]:
    return policy.second_person, policy.break_glass_max_s


def break_glass(
    fleet: Fleet,
    command: commands.Command,
    events: tuple[Event, ...],
    *,
    by: str,
    expires_s: int,
) -> tuple[Event, ...]:
    """One person does it alone, and it is known what undoes it.

    Raises:
        RejectedError: `no_break_glass`, for what cannot be undone; `break_glass_not_needed`, where
            another person has asked for the same.
    """
    undo = [one for event in events for one in glass.undo_of(fleet, event).values()]
    if not undo:
        raise RejectedError(
            code="no_break_glass",
            message="What this command does cannot be undone by itself when the time runs out.",
            next_step="Leave out the break-glass and have another person accept the change.",
        )
    waiting = same(fleet, command)
    if waiting is not None and waiting.by != by:
        raise RejectedError(
            code="break_glass_not_needed",
            message=f"{waiting.by} asked for the same, and you are the second person.",
            next_step=f"smgate change accept {waiting.id}",
        )
    withdrawn = () if waiting is None else (_instead(waiting),)
    used = rulings.BreakGlassUsed(
        command=bodies.name_of(command),
        body=bodies.of_command(command),
        by=by,
        reason=command.reason,
        expires_s=expires_s,
        events=len(events),
        undo=glass.in_words(undo),
    )
    return (*withdrawn, used, *events)


def _instead(waiting: Change) -> Event:
    return rulings.ChangeWithdrawn(
        change=waiting.id, code="break_glass", reason="Done alone meanwhile, for a time."
    )


ENDED: Final = {
    None: "it waits",
    "accepted": "another person has accepted it",
    "withdrawn": "it was withdrawn",
    "lapsed": "nobody accepted it in time",
    "undone": "nobody accepted it in time, so it was undone",
    "overtaken": "people have ruled otherwise since",
}


def _refuse_ended(change: Change) -> RejectedError:
    return RejectedError(
        code=f"change_{change.ended}",
        message=f"Change {change.id} does not wait any more: {ENDED[change.ended]}.",
        next_step="Ask for it again if it is still wanted.",
    )


def asked(change: Change) -> commands.Command:
    """The command that a person asked for."""
    assert change.command is not None
    return bodies.to_command(change.command, change.body, reason=change.reason)


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
    assert change.by is not None
    try:
        return (accepted, *anew(asked(change), change.by))
    except RejectedError as error:
        raise RejectedError(
            code=error.code,
            message=f"Change {change.id} cannot be done as things stand. {error.message}",
            next_step=f"{error.next_step} Or drop it: smgate change withdraw {change.id}",
        ) from error


def withdraw(fleet: Fleet, command: commands.WithdrawChange, by: str) -> tuple[Event, ...]:
    """What follows when a change is not wanted any more."""
    change = changes.find_change(fleet, command.change)
    if change.ended == "withdrawn":
        return ()
    if not change.open:
        raise _refuse_ended(change)
    again = shadow.still_planned(fleet, change)
    if again:
        raise RejectedError(
            code="still_planned",
            message=f"The rules would change {len(again)} units of it again at once, "
            f"among them {again[0].unit}.",
            next_step="Take away the cause first: pause or abort the rollout, exclude the units, or "
            "go back to the release before.",
        )
    withdrawn = rulings.ChangeWithdrawn(change=change.id, reason=command.reason)
    return (withdrawn, *glass.putting_back(fleet, change, f"was withdrawn: {command.reason}"))
