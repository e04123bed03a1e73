"""Owns the first step after a backup was put back: the log becomes another one, and says so."""

from __future__ import annotations

from smgate.clock import new_id
from smgate.domain import decisions
from smgate.log import sql
from smgate.service import leader, records, refusal, strict

WRITER = "restore"


def begin(store: sql.SqlStore, *, reason: str, at_us: int, while_led: bool = False) -> str:
    """Record that the log was restored, and begin a new incarnation; its name.

    The event comes first: a log that says so widens nothing, whatever happens to this process. Run
    again, it begins another incarnation.

    Args:
        store: the log.
        reason: what happened.
        at_us: when.
        while_led: a controller may lead; it is fenced.

    Raises:
        RefusedError: `controller_runs`; `reason_needed` and others of `strict.check_reason`.
    """
    strict.check_reason(reason)
    if not while_led and store.lease_lives(leader.LEASE):
        raise refusal.RefusedError(
            409,
            "controller_runs",
            "A controller leads this log, so it is in use and not just restored.",
            next_step="Stop every controller process; its lease ends some seconds later.",
        )
    before, incarnation = store.head().incarnation, new_id()
    store.take_epoch(holder=WRITER)  # whoever led before the loss writes no more
    store.append(
        records.of_events(
            [decisions.LogRestored(before=before, incarnation=incarnation, reason=reason)],
            stream=records.CONTROLLER,
            first_version=store.stream_version(records.CONTROLLER) + 1,
            actor=records.CONTROLLER,
            at_us=at_us,
        ),
        writer=WRITER,
    )
    store.begin_incarnation(incarnation)
    return incarnation
