"""Changes that wait for a person: finding one, and saying what it is."""

from __future__ import annotations

import dataclasses
from typing import Any

from smgate.domain import state_changes, waits, why_rollout
from smgate.domain.errors import RejectedError
from smgate.domain.state import Fleet
from smgate.domain.state_changes import Change


def held(fleet: Fleet, code: str, subject: str) -> Change | None:
    """The newest plan that the controller held for this reason about this, open or ended."""
    return state_changes.held(fleet.changes, code, subject)


def find_change(fleet: Fleet, name: str) -> Change:
    """A change by its id.

    Raises:
        RejectedError: `unknown_change`.
    """
    found = fleet.changes.get(name)
    if found is None:
        raise RejectedError(
            code="unknown_change",
            message=f"No change {name!r}.",
            next_step="See `smgate change ls`.",
        )
    return found


def show_open(fleet: Fleet, now_us: int) -> list[dict[str, Any]]:
    """The changes that wait, the oldest first."""
    return [show(fleet, change, now_us) for change in fleet.waiting_changes()]


def show(fleet: Fleet, change: Change, now_us: int) -> dict[str, Any]:
    """One change as people read it."""
    waiting = next((w for w in waits.of_changes(fleet, now_us) if w.subject == change.id), None)
    shown = None if waiting is None else why_rollout.show_wait(fleet, waiting, now_us)
    return {
        "id": change.id,
        "kind": change.kind,
        "code": change.code,
        "state": change.ended or "open",
        "subject": change.subject,
        "command": change.command,
        "body": change.body,
        "by": change.by,
        "reason": change.reason,
        "sentence": change.sentence,
        "units": list(change.units),
        "would": change.would,
        "numbers": change.numbers,
        "differences": [dataclasses.asdict(one) for one in change.differences],
        "position": change.position,
        "since": shown and shown["since"],
        "until": shown and shown["until"],
        "overdue": shown is not None and shown["overdue"],
        "accepted_by": change.accepted_by,
        "ended_position": change.ended_position or None,
        "next_step": shown and shown["next_step"],
    }
