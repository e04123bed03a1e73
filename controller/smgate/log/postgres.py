"""Owns the append on PostgreSQL: one statement that locks the head row, numbers and chains.

The row lock is taken before positions exist and released after the commit is visible, so position
order is commit order and a reader never has to ask whether a gap will fill. Whatever the append
must check afresh is a column of the head row or a unique index: after a wait for the lock
PostgreSQL reads the newest version of that row, but every other table as of before the wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa
import typing_extensions

from smgate.log import arrays, chain, failures, group, port, sql

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smgate.log import batch

TRIES_MAX = 5  # Each retry needs another writer to have won the same keys meanwhile.

_EPOCH = "AND epoch = CAST(%(epoch)s AS bigint)"
# Reads log_event as of before a wait for the lock, which can miss a predecessor (so it is looked for
# again before anybody is refused) but never invents one: rows only ever come.
_FOLLOWS = """
  AND NOT EXISTS (
    SELECT FROM unnest(CAST(%(needed_streams)s AS text[]), CAST(%(needed_versions)s AS bigint[]))
             AS f(stream, version)
    WHERE NOT EXISTS (
      SELECT FROM log_event e WHERE e.stream = f.stream AND e.version = f.version))"""

# What the archive has breaks no unique index any more. This too reads as of before the wait, and misses
# nothing: what is remembered of a floor is committed before the floor, and `floor_position` is read
# under the lock.
_NOT_ARCHIVED = """
  AND NOT EXISTS (
    SELECT FROM unnest(CAST(%(streams)s AS text[]), CAST(%(versions)s AS bigint[])) AS k(stream, version)
    JOIN stream_floor s ON s.stream = k.stream AND s.version >= k.version)"""

# The clock is read once per row version, under the lock: a sub-select with a volatile function
# is not merged into its parent, so the time stored and the time chained are the same.
_APPEND = """
WITH h AS (
  UPDATE log_head SET
    position = position + CAST(%(count)s AS int),
    (recorded_at_us, chain) = (
      SELECT c.us, sha256(log_head.chain || int8send(log_head.position + 1)
                          || int8send(c.us) || CAST(%(tail)s AS bytea))
      FROM (SELECT greatest(
              log_head.recorded_at_us,
              CAST(floor(extract(epoch FROM clock_timestamp()) * 1000000) AS bigint)) AS us) AS c)
  WHERE id = 1 AND floor_position = CAST(%(floor)s AS bigint) {cut} {epoch} {follows}
  RETURNING position - CAST(%(count)s AS int) AS base, position, chain, epoch, holder, incarnation,
            recorded_at_us, floor_position
), b AS (
  INSERT INTO log_batch (first_position, count, root, chain, recorded_at_us, writer)
  SELECT base + 1, CAST(%(count)s AS int), CAST(%(root)s AS bytea), chain, recorded_at_us,
         CAST(%(writer)s AS text)
  FROM h
), e AS (
  INSERT INTO log_event (position, stream, version, type, schema_version, occurred_at_us,
                         recorded_at_us, actor, counter_actor, data, leaf)
  SELECT h.base + t.ord, t.stream, t.version, t.type, t.schema_version, t.occurred_at_us,
         h.recorded_at_us, t.actor, t.counter_actor, t.data, t.leaf
  FROM h, unnest(
    CAST(%(streams)s AS text[]), CAST(%(versions)s AS bigint[]), CAST(%(types)s AS text[]),
    CAST(%(schema_versions)s AS int[]), CAST(%(occurred)s AS bigint[]), CAST(%(actors)s AS text[]),
    CAST(%(counter_actors)s AS text[]), CAST(%(data)s AS bytea[]), CAST(%(leaves)s AS bytea[]))
    WITH ORDINALITY AS t(stream, version, type, schema_version, occurred_at_us, actor,
                         counter_actor, data, leaf, ord)
)
SELECT position, chain, epoch, holder, incarnation, recorded_at_us, floor_position FROM h
"""
_STATEMENTS = {
    (fenced, gapless, cut): _APPEND.format(
        epoch=_EPOCH if fenced else "",
        follows=_FOLLOWS if gapless else "",
        cut=_NOT_ARCHIVED if cut else "",
    )
    for fenced in (False, True)
    for gapless in (False, True)
    for cut in (False, True)
}
_STANDING = """
SELECT e.stream, e.version, e.position AS position, e.leaf
FROM unnest(CAST(%(streams)s AS text[]), CAST(%(versions)s AS bigint[])) AS k(stream, version)
JOIN log_event e ON e.stream = k.stream AND e.version = k.version
UNION ALL
SELECT k.stream, k.version, 0, NULL
FROM unnest(CAST(%(streams)s AS text[]), CAST(%(versions)s AS bigint[])) AS k(stream, version)
JOIN stream_floor s ON s.stream = k.stream AND s.version >= k.version
ORDER BY position
"""
_NOW_US = sa.text("SELECT CAST(floor(extract(epoch FROM clock_timestamp()) * 1000000) AS bigint)")
_REPEATED_KEY = "uq_log_event_stream_version"


class PostgresStore(sql.SqlStore):
    """A log in a PostgreSQL database. Any number of processes may append and read."""

    _floor = 0
    """As last seen; an append that finds another under the lock looks again."""

    @typing_extensions.override
    def append_group(
        self, asked: Sequence[batch.Prepared], *, writer: str, epoch: int | None = None
    ) -> list[port.Appended | port.LogError]:
        """See `port.Store.append_group`."""
        group.check_writer(writer)
        settled = group.Group(asked)
        for _ in range(TRIES_MAX):
            if not settled.records:
                head = self.head()
                group.check_epoch(head, epoch)
                return settled.answers(head, first=head.position + 1)
            try:
                written = self._write(settled, writer=writer, epoch=epoch)
            except sa.exc.IntegrityError as error:
                if failures.violated(error.orig) != _REPEATED_KEY:
                    raise sql.unexpected(error.orig) from error
            else:
                if written is not None:
                    first = written.position - len(settled.records) + 1
                    return settled.answers(written, first=first)
                head = self.head()
                group.check_epoch(head, epoch)
                self._floor = head.floor_position
            # What this finds stands for good; what it misses is not committed yet, and the next try
            # meets it if it is by then.
            settled = group.Group(asked, self._standing(group.keys_of(asked)))
        raise port.LogUnavailableError("busy", "other writers kept winning the same streams")

    def _write(self, settled: group.Group, *, writer: str, epoch: int | None) -> port.Head | None:
        """The head after the append; None if the head row refused it."""
        bound = _bound(settled, writer)
        bound["floor"] = self._floor
        if epoch is not None:
            bound["epoch"] = epoch
        if settled.needed:
            streams, versions = zip(*settled.needed, strict=True)
            bound["needed_streams"] = arrays.texts(streams)
            bound["needed_versions"] = arrays.int8s(versions)
        statement = _STATEMENTS[epoch is not None, bool(settled.needed), self._floor > 0]
        with self.database.statement() as connection:
            # The driver's own form: reading SQLAlchemy's anew would be most of a small append.
            row = connection.exec_driver_sql(statement, bound).first()
        return None if row is None else sql.head_from(*row)

    def _standing(self, keys: Sequence[batch.Key]) -> group.Standing:
        streams, versions = zip(*keys, strict=True)
        bound = {"streams": arrays.texts(streams), "versions": arrays.int8s(versions)}
        with self.database.statement() as connection:
            rows = connection.exec_driver_sql(_STANDING, bound)
            return {(stream, version): (position, leaf) for stream, version, position, leaf in rows}

    @typing_extensions.override
    def _now_us(self, connection: sa.Connection) -> int:
        return int(connection.execute(_NOW_US).scalar_one())


def _bound(settled: group.Group, writer: str) -> dict[str, object]:
    root = chain.merkle_root(settled.leaves)
    streams, versions, types, schema_versions, occurred, actors, data, counter_actors = zip(
        *settled.records, strict=True
    )
    count = len(streams)
    return {
        "count": count,
        "root": root,
        "tail": chain.tail(count=count, root=root, writer=writer),
        "writer": writer,
        "streams": arrays.texts(streams),
        "versions": arrays.int8s(versions),
        "types": arrays.texts(types),
        "schema_versions": arrays.int4s(schema_versions),
        "occurred": arrays.int8s(occurred),
        "actors": arrays.texts(actors),
        "counter_actors": arrays.texts(counter_actors),
        "data": arrays.payloads(data),
        "leaves": arrays.payloads(settled.leaves),
    }
