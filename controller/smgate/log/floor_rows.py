"""Owns the rows that answer for what went to the archive, and how they come about, in SQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import sqlalchemy as sa

from smgate.log import port, port_archive, snapshot_rows, tables

if TYPE_CHECKING:
    from collections.abc import Sequence

_HEAD = tables.LOG_HEAD.c
_EVENT = tables.LOG_EVENT.c
_BATCH = tables.LOG_BATCH.c
_SEGMENT = tables.ARCHIVE_SEGMENT.c
_FLOOR = tables.STREAM_FLOOR.c

FLOOR: Final = sa.select(_HEAD.floor_position).where(_HEAD.id == 1)
STREAM_FLOOR: Final = sa.select(_FLOOR.version).where(_FLOOR.stream == sa.bindparam("stream"))
STREAM_FLOORS: Final = (
    sa.select(_FLOOR.stream, _FLOOR.version)
    .where(_FLOOR.stream > sa.bindparam("after"))
    .order_by(_FLOOR.stream)
    .limit(sa.bindparam("limit"))
)
SEGMENTS: Final = sa.select(
    _SEGMENT.first_position,
    _SEGMENT.last_position,
    _SEGMENT.folder,
    _SEGMENT.name,
    _SEGMENT.sha256,
    _SEGMENT.chain_before,
    _SEGMENT.chain_after,
    _SEGMENT.recorded_at_us,
).order_by(_SEGMENT.first_position)
CHAIN_AFTER: Final = sa.select(_SEGMENT.chain_after).where(
    _SEGMENT.last_position == sa.bindparam("position")
)
_FLOOR_AT: Final = sa.select(_SEGMENT.recorded_at_us).where(
    _SEGMENT.last_position == sa.bindparam("position")
)
_ADD: Final = sa.text("""
INSERT INTO archive_segment (first_position, last_position, folder, name, sha256, chain_before,
                             chain_after, recorded_at_us)
VALUES (:first_position, :last_position, :folder, :name, :sha256, :chain_before, :chain_after,
        :recorded_at_us)
ON CONFLICT (first_position) DO NOTHING
""")
_NOTE: Final = sa.text("""
INSERT INTO stream_floor (stream, version)
SELECT stream, max(version) FROM log_event WHERE position > :after AND position <= :through
GROUP BY stream
ON CONFLICT (stream) DO UPDATE SET version = excluded.version
WHERE excluded.version > stream_floor.version
""")
_DELETE: Final = sa.text("""
DELETE FROM log_event WHERE position <= (SELECT floor_position FROM log_head)
AND position < (SELECT min(position) FROM log_event) + :most
""")
_DELETE_BATCHES: Final = sa.text(
    "DELETE FROM log_batch WHERE first_position <= (SELECT floor_position FROM log_head)"
)


class FloorRows(snapshot_rows.SnapshotRows):
    """What a SQL store knows of the part of its log that is kept elsewhere."""

    def segments(self) -> list[port_archive.Segment]:
        """See `port_archive.Archives`."""
        with self.database.statement() as connection:
            return [_segment(row) for row in connection.execute(SEGMENTS)]

    def add_segment(self, segment: port_archive.Segment) -> None:
        """See `port_archive.Archives`."""
        bound = {name: getattr(segment, name) for name in segment.__slots__}
        with self.database.writing() as connection:
            connection.execute(_ADD, bound)

    def forget_segments(self) -> None:
        """See `port_archive.Archives`."""
        with self.database.writing() as connection:
            connection.execute(
                sa.delete(tables.ARCHIVE_SEGMENT).where(
                    _SEGMENT.last_position > FLOOR.scalar_subquery()
                )
            )

    def note_streams(self, *, after: int, through: int) -> None:
        """See `port_archive.Archives`."""
        with self.database.writing() as connection:
            connection.execute(_NOTE, {"after": after, "through": through})

    def stream_floors(self, *, after: str, limit: int) -> list[tuple[str, int]]:
        """See `port_archive.Archives`."""
        with self.database.statement() as connection:
            found = connection.execute(STREAM_FLOORS, {"after": after, "limit": limit})
            return [(stream, version) for stream, version in found]

    def raise_floor(self, position: int) -> None:
        """See `port_archive.Archives`."""
        with self.database.writing() as connection:
            connection.execute(
                sa.update(tables.LOG_HEAD)
                .where(
                    _HEAD.id == 1,
                    _HEAD.floor_position < position,
                    sa.exists().where(_SEGMENT.last_position == position),
                )
                .values(floor_position=position)
            )

    def delete_below_floor(self, *, most: int) -> int:
        """See `port_archive.Archives`."""
        with self.database.writing() as connection:
            gone = connection.execute(_DELETE, {"most": most}).rowcount
            if not gone:
                connection.execute(_DELETE_BATCHES)
            return int(gone)

    def _check_floor(self, connection: sa.Connection, after: int) -> None:
        """Raise BelowFloorError if what follows a position begins in the archive."""
        floor = int(connection.execute(FLOOR).scalar() or 0)
        if floor and after < floor:
            raise port.BelowFloorError(floor)

    def _check_stream(self, connection: sa.Connection, stream: str, after_version: int) -> None:
        version = int(connection.execute(STREAM_FLOOR, {"stream": stream}).scalar() or 0)
        floor = int(connection.execute(FLOOR).scalar() or 0)
        if floor and after_version < version:
            raise port.BelowFloorError(floor, version=version)

    def _floor_at(self, connection: sa.Connection, recorded_at_us: int) -> int:
        """The floor, if it had been recorded by then and nothing behind it; 0 without a floor."""
        floor = int(connection.execute(FLOOR).scalar() or 0)
        if floor:
            at_us = connection.execute(_FLOOR_AT, {"position": floor}).scalar()
            if at_us is None or at_us > recorded_at_us:
                raise port.BelowFloorError(floor)
        return floor


def _segment(row: Sequence[object]) -> port_archive.Segment:
    names = port_archive.Segment.__slots__
    return port_archive.Segment(**dict(zip(names, row, strict=True)))  # type: ignore[arg-type]
