"""A scenario's backup: a log as it was, and what nodes know that it does not."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from smgate.clock import ManualClock
from smgate.log import memory, port
from smgate.service import book
from smgate.wire import facts

OF_THE_GATE: Final = "launch_planned"
"""Kept by nobody: it is the launch gate's own fact, and the gate is gone once the server runs."""


def copy(log: memory.MemoryStore, *, until_us: int, clock: ManualClock) -> memory.MemoryStore:
    """The log up to a moment, as another incarnation."""
    times = [0]
    made = memory.MemoryStore(
        clock_us=lambda: times[0] if times else clock.now_us(),
        incarnation=f"{log.head().incarnation}+",
    )
    for batch in log.read_batches(after=0, limit=1 << 30):
        if batch.recorded_at_us > until_us:
            break
        times[0] = batch.recorded_at_us
        rows = log.read(after=batch.first_position - 1, limit=batch.count)
        made.append([_again(row) for row in rows], writer=batch.writer)
    times.clear()
    return made


def _again(row: port.StoredRecord) -> port.NewRecord:
    return port.NewRecord(
        stream=row.stream,
        version=row.version,
        type=row.type,
        schema_version=row.schema_version,
        occurred_at_us=row.occurred_at_us,
        actor=row.actor,
        counter_actor=row.counter_actor,
        data=row.data,
    )


def held(told: book.Book, node: str, before: port.Store, now: port.Head) -> facts.DirectiveHeld:
    """What a node was told by the log that was lost."""
    return facts.DirectiveHeld(
        restored_as=now.incarnation,
        incarnation=before.head().incarnation,
        generation=told.generation(node),
        units=tuple(
            facts.HeldUnit(unit=unit, form=event.form, value=event.value, code=event.code)
            for unit, (event, _) in sorted(told.units(node).items())
        ),
    )


def kept(sent: Iterable[port.NewRecord]) -> list[port.NewRecord]:
    """What a node sends again."""
    return [record for record in sent if record.type != OF_THE_GATE]
