"""Owns the rows of snapshots, beside the log and outside its chain: losing them costs time alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import sqlalchemy as sa

from smgate.log import port_snapshots, tables

if TYPE_CHECKING:
    from smgate.log import database

_SNAPSHOT = tables.SNAPSHOT.c

PLACES: Final = sa.select(
    _SNAPSHOT.position, _SNAPSHOT.chain, _SNAPSHOT.fold_version, _SNAPSHOT.created_at_us
).order_by(_SNAPSHOT.position.desc())
DATA: Final = sa.select(_SNAPSHOT.data).where(_SNAPSHOT.position == sa.bindparam("place"))
_KEEP: Final = sa.text("""
INSERT INTO snapshot (position, chain, fold_version, created_at_us, data)
VALUES (:position, :chain, :fold_version, :created_at_us, :data)
ON CONFLICT (position) DO UPDATE SET chain = excluded.chain, fold_version = excluded.fold_version,
  created_at_us = excluded.created_at_us, data = excluded.data
""")


class SnapshotRows:
    """What a SQL store keeps of snapshots."""

    def __init__(self, database: database.Database) -> None:
        self.database: Final = database

    def keep_snapshot(self, snapshot: port_snapshots.Snapshot, *, most: int) -> None:
        """See `port_snapshots.Snapshots`."""
        with self.database.writing() as connection:
            connection.execute(
                _KEEP,
                {
                    "position": snapshot.position,
                    "chain": snapshot.chain,
                    "fold_version": snapshot.fold_version,
                    "created_at_us": snapshot.created_at_us,
                    "data": snapshot.data,
                },
            )
            places = connection.execute(
                sa.select(_SNAPSHOT.position).where(_SNAPSHOT.position <= snapshot.position)
            ).scalars()
            stay = sorted(places)[-most:]
            connection.execute(sa.delete(tables.SNAPSHOT).where(_SNAPSHOT.position.not_in(stay)))

    def snapshots(self) -> list[port_snapshots.Snapshot]:
        """See `port_snapshots.Snapshots`."""
        with self.database.statement() as connection:
            return [
                port_snapshots.Snapshot(
                    position=position,
                    chain=bytes(chain),
                    fold_version=fold_version,
                    created_at_us=created_at_us,
                    data=b"",
                )
                for position, chain, fold_version, created_at_us in connection.execute(PLACES)
            ]

    def snapshot_data(self, position: int) -> bytes | None:
        """See `port_snapshots.Snapshots`."""
        with self.database.statement() as connection:
            found = connection.execute(DATA, {"place": position}).scalar()
        return None if found is None else bytes(found)
