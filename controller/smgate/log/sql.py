"""Owns what the two SQL stores share: reads, leases and epochs. They differ in how they append."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from smgate.log import batch, chain, floor_rows, group, port, postgres_engine, tables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smgate.log import database

_EVENT = tables.LOG_EVENT.c
_BATCH = tables.LOG_BATCH.c
_HEAD = tables.LOG_HEAD.c
_LEASE = tables.LEASE.c

# In the order of the fields of port.StoredRecord.
_RECORD_COLUMNS = (
    _EVENT.position,
    _EVENT.stream,
    _EVENT.version,
    _EVENT.type,
    _EVENT.schema_version,
    _EVENT.occurred_at_us,
    _EVENT.recorded_at_us,
    _EVENT.actor,
    _EVENT.counter_actor,
    _EVENT.data,
    _EVENT.leaf,
)

READ: Final = (
    sa.select(*_RECORD_COLUMNS)
    .where(
        _EVENT.position > sa.bindparam("after"),
        # What a cut left over, or somebody put there, is no part of the log.
        ~sa.exists().where(_HEAD.floor_position > sa.bindparam("after"), _HEAD.floor_position > 0),
    )
    .order_by(_EVENT.position)
    .limit(sa.bindparam("limit"))
    .execution_options(**{postgres_engine.BINARY: True})
)
READ_STREAM: Final = (
    sa.select(*_RECORD_COLUMNS)
    .where(
        _EVENT.stream == sa.bindparam("stream"),
        _EVENT.version > sa.bindparam("after"),
        _EVENT.position > floor_rows.FLOOR.scalar_subquery(),
    )
    .order_by(_EVENT.version)
    .limit(sa.bindparam("limit"))
    .execution_options(**{postgres_engine.BINARY: True})
)
BELOW_FLOOR: Final = (
    sa.select(*_RECORD_COLUMNS)
    .where(
        _EVENT.position > sa.bindparam("after"),
        _EVENT.position <= floor_rows.FLOOR.scalar_subquery(),
    )
    .order_by(_EVENT.position)
    .limit(sa.bindparam("limit"))
)
LAST_BATCH: Final = (
    sa.select(_BATCH.first_position, _BATCH.count, _BATCH.chain)
    .order_by(_BATCH.first_position.desc())
    .limit(1)
)
READ_BATCHES: Final = (
    sa.select(
        _BATCH.first_position,
        _BATCH.count,
        _BATCH.root,
        _BATCH.chain,
        _BATCH.recorded_at_us,
        _BATCH.writer,
    )
    .where(_BATCH.first_position > sa.bindparam("after"))
    .order_by(_BATCH.first_position)
    .limit(sa.bindparam("limit"))
    .execution_options(**{postgres_engine.BINARY: True})
)
STREAM_VERSION: Final = sa.select(sa.func.max(_EVENT.version)).where(
    _EVENT.stream == sa.bindparam("stream")
)
CHAIN_AT: Final = (
    sa.select(_BATCH.chain, _BATCH.first_position + _BATCH.count - 1)
    .where(_BATCH.first_position <= sa.bindparam("position"))
    .order_by(_BATCH.first_position.desc())
    .limit(1)
)
POSITION_AT: Final = (
    sa.select(_BATCH.first_position + _BATCH.count - 1)
    .where(_BATCH.recorded_at_us <= sa.bindparam("at"))
    .order_by(_BATCH.first_position.desc())
    .limit(1)
)
HEAD: Final = sa.select(
    _HEAD.position,
    _HEAD.chain,
    _HEAD.epoch,
    _HEAD.holder,
    _HEAD.incarnation,
    _HEAD.recorded_at_us,
    _HEAD.floor_position,
).where(_HEAD.id == 1)

# Gives the lease a row to lock before anybody reads it.
_ENSURE_LEASE: Final = sa.text(
    "INSERT INTO lease (name, holder, expires_at_us) VALUES (:name, '', 0) "
    "ON CONFLICT (name) DO NOTHING"
)


def _records(found: sa.CursorResult[Any]) -> list[port.StoredRecord]:
    """The driver's rows as they are: SQLAlchemy's take half as long again to make as to read."""
    assert found.cursor is not None, "a SELECT has one"
    rows = found.cursor.fetchall()
    found.close()
    return [tuple.__new__(port.StoredRecord, row) for row in rows]


class SqlStore(floor_rows.FloorRows, abc.ABC):
    """The reads, leases and epochs of a log in SQL. `database` serves the other tables too."""

    def __init__(self, database: database.Database) -> None:
        super().__init__(database)
        self.above: frozenset[tuple[str, int]] = frozenset()

    def append(
        self,
        records: Sequence[port.NewRecord],
        *,
        writer: str,
        epoch: int | None = None,
        gapless: bool = False,
    ) -> port.Appended:
        """See `port.Store.append`."""
        prepared = batch.prepare(records, gapless=gapless, above=self.above)
        return group.only(self.append_group([prepared], writer=writer, epoch=epoch))

    @abc.abstractmethod
    def append_group(
        self, asked: Sequence[batch.Prepared], *, writer: str, epoch: int | None = None
    ) -> list[port.Appended | port.LogError]:
        """See `port.Store.append_group`."""

    @abc.abstractmethod
    def _now_us(self, connection: sa.Connection) -> int:
        """The database's clock."""

    def head(self) -> port.Head:
        """See `port.Store.head`."""
        with self.database.statement() as connection:
            return head_of(connection)

    def read(self, *, after: int, limit: int = port.READ_LIMIT) -> list[port.StoredRecord]:
        """See `port.Store.read`."""
        with self.database.statement() as connection:
            found = _records(connection.execute(READ, {"after": after, "limit": limit}))
            if not found:
                self._check_floor(connection, after)
            return found

    def read_stream(
        self, stream: str, *, after_version: int = 0, limit: int = port.READ_LIMIT
    ) -> list[port.StoredRecord]:
        """See `port.Store.read_stream`."""
        bound = {"stream": stream, "after": after_version, "limit": limit}
        with self.database.statement() as connection:
            found = _records(connection.execute(READ_STREAM, bound))
            if not found or found[0].version != after_version + 1:
                self._check_stream(connection, stream, after_version)
            return found

    def below_floor(self, *, after: int, limit: int) -> list[port.StoredRecord]:
        """See `port_archive.Archives`."""
        with self.database.statement() as connection:
            if not connection.execute(floor_rows.FLOOR).scalar():
                return []
            return _records(connection.execute(BELOW_FLOOR, {"after": after, "limit": limit}))

    def stream_version(self, stream: str) -> int:
        """See `port.Store.stream_version`."""
        with self.database.statement() as connection:
            found = connection.execute(STREAM_VERSION, {"stream": stream}).scalar()
            if found is None:
                found = connection.execute(floor_rows.STREAM_FLOOR, {"stream": stream}).scalar()
            return int(found or 0)

    def read_batches(self, *, after: int, limit: int = port.READ_LIMIT) -> list[port.Batch]:
        """See `port.Store.read_batches`."""
        with self.database.statement() as connection:
            self._check_floor(connection, after)
            rows = connection.execute(READ_BATCHES, {"after": after, "limit": limit})
            return [
                port.Batch(
                    first_position=first,
                    count=count,
                    root=root,
                    chain=chain,
                    recorded_at_us=recorded_at_us,
                    writer=writer,
                )
                for first, count, root, chain, recorded_at_us, writer in rows
            ]

    def position_at(self, *, recorded_at_us: int) -> int:
        """See `port.Store.position_at`."""
        with self.database.statement() as connection:
            found = int(connection.execute(POSITION_AT, {"at": recorded_at_us}).scalar() or 0)
            return found or self._floor_at(connection, recorded_at_us)

    def chain_at(self, position: int) -> bytes | None:
        """See `port.Store.chain_at`."""
        if position == 0:
            return chain.GENESIS
        with self.database.statement() as connection:
            row = connection.execute(CHAIN_AT, {"position": position}).first()
            if row is None or row[1] != position:
                row = connection.execute(floor_rows.CHAIN_AFTER, {"position": position}).first()
        return None if row is None else bytes(row[0])

    def erase(self, position: int) -> None:
        """See `port.Store.erase`."""
        with self.database.writing() as connection:
            connection.execute(
                sa.update(tables.LOG_EVENT).where(_EVENT.position == position).values(data=b"")
            )
            for table in tables.MADE_OF_THE_LOG:
                connection.execute(sa.delete(table))

    def take_epoch(self, *, holder: str, lease: str | None = None) -> int:
        """See `port.Store.take_epoch`."""
        with self.database.writing() as connection:
            # The lease's row stays locked until the epoch is committed, so that nobody can take
            # the lease in between and be fenced by its former holder.
            if lease is not None:
                held_by, expires_at_us = _locked_lease(connection, lease)
                if held_by != holder or expires_at_us <= self._now_us(connection):
                    raise port.LeaseLostError(lease, holder)
            taken = connection.execute(
                sa.update(tables.LOG_HEAD)
                .where(_HEAD.id == 1)
                .values(epoch=_HEAD.epoch + 1, holder=holder)
                .returning(_HEAD.epoch)
            ).scalar()
            if taken is None:
                raise port.LogNotReadyError("The event log has no head row.")
            return int(taken)

    def lease_lives(self, name: str) -> bool:
        """True while somebody holds the lease."""
        with self.database.statement() as connection:
            row = connection.execute(
                sa.select(tables.LEASE.c.expires_at_us).where(tables.LEASE.c.name == name)
            ).scalar()
            return row is not None and int(row) > self._now_us(connection)

    def begin_incarnation(self, incarnation: str) -> None:
        """From now on this is another log than the one its backup is of."""
        with self.database.writing() as connection:
            connection.execute(
                sa.update(tables.LOG_HEAD).where(_HEAD.id == 1).values(incarnation=incarnation)
            )

    def acquire_lease(self, name: str, *, holder: str, ttl_s: float) -> port.Lease | None:
        """See `port.Store.acquire_lease`."""
        with self.database.writing() as connection:
            connection.execute(_ENSURE_LEASE, {"name": name})
            held_by, expires_at_us = _locked_lease(connection, name)
            now_us = self._now_us(connection)
            if held_by != holder and expires_at_us > now_us:
                return None
            return _grant(
                connection,
                port.Lease(
                    name=name,
                    holder=holder,
                    acquired_at_us=now_us,
                    expires_at_us=now_us + port.ttl_us(ttl_s),
                    previous_holder=held_by or None,
                    previous_expires_at_us=expires_at_us if held_by else None,
                ),
            )

    def renew_lease(self, name: str, *, holder: str, ttl_s: float) -> port.Lease | None:
        """See `port.Store.renew_lease`."""
        with self.database.writing() as connection:
            held_by, expires_at_us = _locked_lease(connection, name)
            now_us = self._now_us(connection)
            if held_by != holder or expires_at_us <= now_us:
                return None
            return _grant(
                connection,
                port.Lease(
                    name=name,
                    holder=holder,
                    acquired_at_us=now_us,
                    expires_at_us=now_us + port.ttl_us(ttl_s),
                    previous_holder=held_by,
                    previous_expires_at_us=expires_at_us,
                ),
            )

    def release_lease(self, name: str, *, holder: str) -> bool:
        """See `port.Store.release_lease`."""
        with self.database.writing() as connection:
            held_by, expires_at_us = _locked_lease(connection, name)
            now_us = self._now_us(connection)
            if held_by != holder or expires_at_us <= now_us:
                return False
            _grant(
                connection,
                port.Lease(name=name, holder=holder, acquired_at_us=now_us, expires_at_us=now_us),
            )
            return True

    def close(self) -> None:
        """See `port.Store.close`."""
        self.database.close()


def head_of(connection: sa.Connection) -> port.Head:
    """The head row as this connection sees it."""
    row = connection.execute(HEAD).first()
    if row is None:
        raise port.LogNotReadyError("The event log has no head row.")
    return head_from(*row)


def head_from(
    position: int,
    chain: bytes,
    epoch: int,
    holder: str,
    incarnation: str,
    recorded_at_us: int,
    floor_position: int,
) -> port.Head:
    """A head from the columns of HEAD."""
    return port.Head(
        position=position,
        chain=chain,
        epoch=epoch,
        holder=holder,
        incarnation=incarnation,
        recorded_at_us=recorded_at_us,
        floor_position=floor_position,
    )


def _locked_lease(connection: sa.Connection, name: str) -> tuple[str, int]:
    """Holder and expiry of the lease, locked until the transaction ends."""
    row = connection.execute(
        sa.select(_LEASE.holder, _LEASE.expires_at_us).where(_LEASE.name == name).with_for_update()
    ).first()
    return ("", 0) if row is None else (str(row[0]), int(row[1]))


def _grant(connection: sa.Connection, lease: port.Lease) -> port.Lease:
    connection.execute(
        sa.update(tables.LEASE)
        .where(_LEASE.name == lease.name)
        .values(holder=lease.holder, expires_at_us=lease.expires_at_us)
    )
    return lease


def unexpected(error: BaseException | None) -> port.LogUnavailableError:
    """The port's error for a broken constraint that is not a repeated key."""
    return port.LogUnavailableError("corrupt", f"the head row contradicts the log: {error}")
