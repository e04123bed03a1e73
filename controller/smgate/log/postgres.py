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

from smgate.log import batch, chain, failures, port, sql

if TYPE_CHECKING:
    from collections.abc import Sequence

TRIES_MAX = 5  # Each retry needs another writer to have won the same keys meanwhile.

_EPOCH = "AND epoch = CAST(:epoch AS bigint)"
# Reads log_event as of before a wait for the lock, which can miss a predecessor (`append` looks
# again before it refuses) but never invents one: rows only ever come.
_FOLLOWS = """
  AND NOT EXISTS (
    SELECT FROM unnest(CAST(:first_streams AS text[]), CAST(:first_versions AS bigint[]))
             AS f(stream, version)
    WHERE f.version > 1 AND NOT EXISTS (
      SELECT FROM log_event e WHERE e.stream = f.stream AND e.version = f.version - 1))"""

# The clock is read once per row version, under the lock: a sub-select with a volatile function
# is not merged into its parent, so the time stored and the time chained are the same.
_APPEND = """
WITH h AS (
  UPDATE log_head SET
    position = position + CAST(:count AS int),
    (recorded_at_us, chain) = (
      SELECT c.us, sha256(log_head.chain || int8send(log_head.position + 1)
                          || int8send(c.us) || CAST(:tail AS bytea))
      FROM (SELECT greatest(
              log_head.recorded_at_us,
              CAST(floor(extract(epoch FROM clock_timestamp()) * 1000000) AS bigint)) AS us) AS c)
  WHERE id = 1 {epoch} {follows}
  RETURNING position - CAST(:count AS int) AS base, position, chain, epoch, holder, incarnation,
            recorded_at_us
), b AS (
  INSERT INTO log_batch (first_position, count, root, chain, recorded_at_us, writer)
  SELECT base + 1, CAST(:count AS int), CAST(:root AS bytea), chain, recorded_at_us,
         CAST(:writer AS text)
  FROM h
), e AS (
  INSERT INTO log_event (position, stream, version, type, schema_version, occurred_at_us,
                         recorded_at_us, actor, counter_actor, data, leaf)
  SELECT h.base + t.ord, t.stream, t.version, t.type, t.schema_version, t.occurred_at_us,
         h.recorded_at_us, t.actor, t.counter_actor, t.data, t.leaf
  FROM h, unnest(
    CAST(:streams AS text[]), CAST(:versions AS bigint[]), CAST(:types AS text[]),
    CAST(:schema_versions AS int[]), CAST(:occurred AS bigint[]), CAST(:actors AS text[]),
    CAST(:counter_actors AS text[]), CAST(:data AS bytea[]), CAST(:leaves AS bytea[]))
    WITH ORDINALITY AS t(stream, version, type, schema_version, occurred_at_us, actor,
                         counter_actor, data, leaf, ord)
)
SELECT position, chain, epoch, holder, incarnation, recorded_at_us FROM h
"""
_STATEMENTS = {
    (fenced, gapless): sa.text(
        _APPEND.format(epoch=_EPOCH if fenced else "", follows=_FOLLOWS if gapless else "")
    )
    for fenced in (False, True)
    for gapless in (False, True)
}
_STANDING = sa.text("""
SELECT e.stream, e.version, e.position, e.leaf
FROM unnest(CAST(:streams AS text[]), CAST(:versions AS bigint[])) AS k(stream, version)
JOIN log_event e ON e.stream = k.stream AND e.version = k.version
""")
_NOW_US = sa.text("SELECT CAST(floor(extract(epoch FROM clock_timestamp()) * 1000000) AS bigint)")
_REPEATED_KEY = "uq_log_event_stream_version"


class PostgresStore(sql.SqlStore):
    """A log in a PostgreSQL database. Any number of processes may append and read."""

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
        already: dict[batch.Key, int] = {}
        for _ in range(TRIES_MAX):
            if not prepared.records:
                head = self.head()
                prepared.check_epoch(head)
                return batch.answer(prepared, written={}, already=already, head=head)
            try:
                written_head = self._write(prepared)
            except sa.exc.IntegrityError as error:
                broken = failures.violated(error)
                if broken != _REPEATED_KEY:
                    raise sql.violation(prepared, broken, error) from error
                prepared, found = batch.settle(prepared, self._standing(prepared.keys))
                already |= found
                continue
            if written_head is None:
                prepared.check_epoch(self.head())
                prepared, found = batch.settle(prepared, self._standing(prepared.keys))
                already |= found
                self._check_follows(prepared)
                continue
            first = written_head.position - len(prepared.records) + 1
            written = {key: first + offset for offset, key in enumerate(prepared.keys)}
            return batch.answer(prepared, written=written, already=already, head=written_head)
        raise port.LogUnavailableError("busy", "other writers kept winning the same streams")

    def _write(self, prepared: batch.Prepared) -> port.Head | None:
        """The head after the append; None if the head row refused it."""
        bound = _bound(prepared)
        if prepared.epoch is not None:
            bound["epoch"] = prepared.epoch
        if prepared.gapless:
            firsts = prepared.firsts()
            bound["first_streams"] = list(firsts.keys())
            bound["first_versions"] = list(firsts.values())
        statement = _STATEMENTS[prepared.epoch is not None, prepared.gapless]
        with self.database.statement() as connection:
            row = connection.execute(statement, bound).first()
        return None if row is None else sql.head_from(*row)

    def _check_follows(self, prepared: batch.Prepared) -> None:
        """Raise if a predecessor is missing, as of now."""
        before = [
            (stream, version - 1) for stream, version in prepared.firsts().items() if version > 1
        ]
        standing = self._standing(before)
        for stream, version in before:
            if (stream, version) not in standing:
                raise port.GapError(stream, version + 1)

    def _standing(self, keys: Sequence[batch.Key]) -> dict[batch.Key, tuple[int, bytes]]:
        bound = {
            "streams": [stream for stream, _ in keys],
            "versions": [version for _, version in keys],
        }
        with self.database.statement() as connection:
            rows = connection.execute(_STANDING, bound)
            return {(stream, version): (position, leaf) for stream, version, position, leaf in rows}

    @typing_extensions.override
    def _now_us(self, connection: sa.Connection) -> int:
        return int(connection.execute(_NOW_US).scalar_one())


def _bound(prepared: batch.Prepared) -> dict[str, object]:
    records = prepared.records
    root = chain.merkle_root(prepared.leaves)
    return {
        "count": len(records),
        "root": root,
        "tail": chain.tail(count=len(records), root=root, writer=prepared.writer),
        "writer": prepared.writer,
        "streams": [record.stream for record in records],
        "versions": [record.version for record in records],
        "types": [record.type for record in records],
        "schema_versions": [record.schema_version for record in records],
        "occurred": [record.occurred_at_us for record in records],
        "actors": [record.actor for record in records],
        "counter_actors": [record.counter_actor for record in records],
        "data": [record.data for record in records],
        "leaves": list(prepared.leaves),
    }
