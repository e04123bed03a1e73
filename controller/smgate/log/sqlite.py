"""Owns the append on SQLite: one immediate transaction under one writer connection."""

from __future__ import annotations

import functools
import itertools
import sqlite3
from typing import TYPE_CHECKING, Final, TypeVar

import sqlalchemy as sa
import typing_extensions

from smgate.log import chain, failures, group, port, sql

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smgate.log import batch, database

    _Row = TypeVar("_Row", bound=tuple[object, ...])

_HEAD = (
    "SELECT position, chain, epoch, holder, incarnation, recorded_at_us, floor_position "
    "FROM log_head"
)
_INSERT_EVENTS = (
    "INSERT INTO log_event (stream, version, type, schema_version, occurred_at_us, actor, "
    "recorded_at_us, position, data, leaf, counter_actor) VALUES {}"
)
_ROW = "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL)"
_ROW_OF_TWO = "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
ROWS_MAX: Final = 64
"""Rows, or keys, of one statement. A row each would let go of the interpreter once a row."""
_INSERT_BATCH = (
    "INSERT INTO log_batch (first_position, count, root, chain, recorded_at_us, writer) "
    "VALUES (?, ?, ?, ?, ?, ?)"
)
_UPDATE_HEAD = "UPDATE log_head SET position = ?, chain = ?, recorded_at_us = ? WHERE id = 1"
# CROSS: the keys outside, so that each is one step down the index.
_STANDING = (
    "SELECT e.stream, e.version, e.position, e.leaf FROM (VALUES {}) AS k CROSS JOIN log_event e "
    "ON e.stream = k.column1 AND e.version = k.column2"
)
_ARCHIVED = (
    "SELECT f.stream, k.column2, 0, NULL FROM (VALUES {}) AS k CROSS JOIN stream_floor f "
    "ON f.stream = k.column1 AND f.version >= k.column2"
)

_REPEATED_KEY = "log_event.stream, log_event.version"


class SqliteStore(sql.SqlStore):
    """A log in one SQLite file. Any number of processes may open it; one writes at a time."""

    def __init__(self, database: database.Database, *, clock_us: port.ClockUs) -> None:
        super().__init__(database)
        self._clock_us: Final = clock_us

    @typing_extensions.override
    def append_group(
        self, asked: Sequence[batch.Prepared], *, writer: str, epoch: int | None = None
    ) -> list[port.Appended | port.LogError]:
        """See `port.Store.append_group`."""
        group.check_writer(writer)
        # Repeats are rare, so the first try does not look for them. The second one does, and
        # under the write lock what it finds is final.
        for look in (False, True):
            try:
                with self.database.appending() as connection:
                    head = _head(connection)
                    group.check_epoch(head, epoch)
                    settled = _settled(connection, asked, look=look, cut=head.floor_position > 0)
                    first = head.position + 1
                    if settled.records:
                        head = self._write(connection, settled, head=head, writer=writer)
                return settled.answers(head, first=first)
            except sqlite3.IntegrityError as error:
                if failures.violated(error) != _REPEATED_KEY:
                    raise sql.unexpected(error) from error
        raise AssertionError("a key repeated under the write lock after it was looked for")

    def _write(
        self, connection: sqlite3.Connection, settled: group.Group, *, head: port.Head, writer: str
    ) -> port.Head:
        first = head.position + 1
        count = len(settled.records)
        root = chain.merkle_root(settled.leaves)
        recorded_at_us = max(head.recorded_at_us, self._clock_us())
        linked = chain.link(
            head.chain,
            first_position=first,
            recorded_at_us=recorded_at_us,
            tail=chain.tail(count=count, root=root, writer=writer),
        )
        form, rows = _rows(settled, first=first, recorded_at_us=recorded_at_us)
        for some in _parts(rows):
            connection.execute(_repeated(_INSERT_EVENTS, form, len(some)), _flat(some))
        connection.execute(_INSERT_BATCH, (first, count, root, linked, recorded_at_us, writer))
        connection.execute(_UPDATE_HEAD, (first + count - 1, linked, recorded_at_us))
        return port.Head(
            position=first + count - 1,
            chain=linked,
            epoch=head.epoch,
            holder=head.holder,
            incarnation=head.incarnation,
            recorded_at_us=recorded_at_us,
            floor_position=head.floor_position,
        )

    @typing_extensions.override
    def erase(self, position: int) -> None:
        """See `port.Store.erase`. The bytes leave the file, and the write-ahead log with them."""
        with self.database.writing() as connection:
            connection.exec_driver_sql("PRAGMA secure_delete=ON")
        super().erase(position)
        with self.database.statement() as connection:
            held = connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").scalar()
        if held:
            raise port.LogUnavailableError(
                "busy",
                "the payload is erased in the database, and the write-ahead log still has it, since "
                "another process reads there",
            )

    @typing_extensions.override
    def _now_us(self, connection: sa.Connection) -> int:
        del connection  # SQLite has no server, so the process's clock is the database's.
        return self._clock_us()


def _rows(
    settled: group.Group, *, first: int, recorded_at_us: int
) -> tuple[str, list[tuple[object, ...]]]:
    """The form of a row, and the rows.

    The driver asks of every bytes and None whether there is an adapter for it, which takes longer
    than binding it: so a bytearray, and a NULL that is written out.
    """
    rows: list[tuple[object, ...]] = [
        (*record[:6], recorded_at_us, position, bytearray(record.data), bytearray(leaf))
        for position, record, leaf in zip(
            itertools.count(first), settled.records, settled.leaves, strict=False
        )
    ]
    counter_actors = [record.counter_actor for record in settled.records]
    if any(one is not None for one in counter_actors):
        return _ROW_OF_TWO, [(*row, one) for row, one in zip(rows, counter_actors, strict=True)]
    return _ROW, rows


@functools.cache
def _repeated(statement: str, item: str, count: int) -> str:
    return statement.format(", ".join([item] * count))


def _parts(rows: Sequence[_Row]) -> Iterator[Sequence[_Row]]:
    """Parts of 64, 32, 16 and so on: SQLite parses a statement of each size once and keeps it."""
    begin, size = 0, ROWS_MAX
    while left := len(rows) - begin:
        while size > left:
            size //= 2
        yield rows[begin : begin + size]
        begin += size


def _flat(rows: Sequence[_Row]) -> list[object]:
    return list(itertools.chain.from_iterable(rows))


def _head(connection: sqlite3.Connection) -> port.Head:
    row = connection.execute(_HEAD).fetchone()
    if row is None:
        raise port.LogNotReadyError("The event log has no head row.")
    return sql.head_from(*row)


def _settled(
    connection: sqlite3.Connection, asked: Sequence[batch.Prepared], *, look: bool, cut: bool
) -> group.Group:
    """The group as of now. What lacks a predecessor may stand already, so it too makes one look.

    What the archive has breaks no unique index any more, so in a log that was cut it is looked for.
    """
    if not look:
        settled = group.Group(asked)
        if len(_standing(connection, settled.needed, cut=cut)) == len(settled.needed) and not (
            cut and _archived(connection, group.keys_of(asked))
        ):
            return settled
    return group.Group(asked, _standing(connection, group.keys_of(asked), cut=cut))


def _standing(
    connection: sqlite3.Connection, keys: Sequence[batch.Key], *, cut: bool
) -> group.Standing:
    found = _found(connection, _STANDING, keys)
    return _archived(connection, keys) | found if cut else found


def _archived(connection: sqlite3.Connection, keys: Sequence[batch.Key]) -> group.Standing:
    return _found(connection, _ARCHIVED, keys)


def _found(
    connection: sqlite3.Connection, statement: str, keys: Sequence[batch.Key]
) -> group.Standing:
    found: group.Standing = {}
    for some in _parts(keys):
        rows = connection.execute(_repeated(statement, "(?, ?)", len(some)), _flat(some))
        found |= {(stream, version): (position, leaf) for stream, version, position, leaf in rows}
    return found
