"""Owns the append on SQLite: one immediate transaction under one writer connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import sqlalchemy as sa
import typing_extensions

from smgate.log import batch, chain, failures, port, sql

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smgate.log import database

# Plain driver SQL: on this path the compiler's work per row is most of the time.
_INSERT_EVENT = (
    "INSERT INTO log_event (position, stream, version, type, schema_version, occurred_at_us, "
    "recorded_at_us, actor, counter_actor, data, leaf) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_INSERT_BATCH = (
    "INSERT INTO log_batch (first_position, count, root, chain, recorded_at_us, writer) "
    "VALUES (?, ?, ?, ?, ?, ?)"
)
_UPDATE_HEAD = "UPDATE log_head SET position = ?, chain = ?, recorded_at_us = ? WHERE id = 1"
_STANDING = "SELECT position, leaf FROM log_event WHERE stream = ? AND version = ?"

_REPEATED_KEY = "log_event.stream, log_event.version"


class SqliteStore(sql.SqlStore):
    """A log in one SQLite file. Any number of processes may open it; one writes at a time."""

    def __init__(self, database: database.Database, *, clock_us: port.ClockUs) -> None:
        super().__init__(database)
        self._clock_us: Final = clock_us

    @typing_extensions.override
    def append(
        self,
        records: Sequence[port.NewRecord],
        *,
        writer: str,
        epoch: int | None = None,
        gapless: bool = False,
    ) -> port.Appended:
        """See `port.Store.append`."""
        prepared = batch.prepare(records, writer=writer, epoch=epoch, gapless=gapless)
        # Repeats are rare, so the first try does not look for them. The second one does, and
        # under the write lock what it finds is final.
        for look in (False, True):
            try:
                with self.database.writing() as connection:
                    return self._try(connection, prepared, look=look)
            except sa.exc.IntegrityError as error:
                broken = failures.violated(error)
                if broken != _REPEATED_KEY:
                    raise sql.violation(prepared, broken, error) from error
            except port.GapError:
                # What seems to come too early may stand already.
                if look:
                    raise
        raise AssertionError("a key repeated under the write lock after it was looked for")

    def _try(
        self, connection: sa.Connection, prepared: batch.Prepared, *, look: bool
    ) -> port.Appended:
        head = sql.head_of(connection)
        prepared.check_epoch(head)
        already: dict[batch.Key, int] = {}
        if look:
            prepared, already = batch.settle(prepared, _standing(connection, prepared.keys))
        if prepared.gapless:
            _check_follows(connection, prepared)
        written = {key: head.position + offset for offset, key in enumerate(prepared.keys, start=1)}
        if prepared.records:
            head = self._write(connection, prepared, head=head)
        return batch.answer(prepared, written=written, already=already, head=head)

    def _write(
        self, connection: sa.Connection, prepared: batch.Prepared, *, head: port.Head
    ) -> port.Head:
        first = head.position + 1
        count = len(prepared.records)
        root = chain.merkle_root(prepared.leaves)
        recorded_at_us = max(head.recorded_at_us, self._clock_us())
        linked = chain.link(
            head.chain,
            first_position=first,
            recorded_at_us=recorded_at_us,
            tail=chain.tail(count=count, root=root, writer=prepared.writer),
        )
        connection.exec_driver_sql(
            _INSERT_EVENT,
            [
                (
                    position,
                    record.stream,
                    record.version,
                    record.type,
                    record.schema_version,
                    record.occurred_at_us,
                    recorded_at_us,
                    record.actor,
                    record.counter_actor,
                    record.data,
                    leaf,
                )
                for position, record, leaf in zip(
                    range(first, first + count), prepared.records, prepared.leaves, strict=True
                )
            ],
        )
        connection.exec_driver_sql(
            _INSERT_BATCH, (first, count, root, linked, recorded_at_us, prepared.writer)
        )
        connection.exec_driver_sql(_UPDATE_HEAD, (first + count - 1, linked, recorded_at_us))
        return port.Head(
            position=first + count - 1,
            chain=linked,
            epoch=head.epoch,
            holder=head.holder,
            incarnation=head.incarnation,
            recorded_at_us=recorded_at_us,
        )

    @typing_extensions.override
    def _now_us(self, connection: sa.Connection) -> int:
        del connection  # SQLite has no server, so the process's clock is the database's.
        return self._clock_us()


def _standing(
    connection: sa.Connection, keys: Sequence[batch.Key]
) -> dict[batch.Key, tuple[int, bytes]]:
    standing: dict[batch.Key, tuple[int, bytes]] = {}
    for key in keys:
        row = connection.exec_driver_sql(_STANDING, key).first()
        if row is not None:
            standing[key] = (row[0], row[1])
    return standing


def _check_follows(connection: sa.Connection, prepared: batch.Prepared) -> None:
    for stream, version in prepared.firsts().items():
        if version > 1 and not _standing(connection, [(stream, version - 1)]):
            raise port.GapError(stream, version)
