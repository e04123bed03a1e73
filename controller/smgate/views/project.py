"""Owns the read models in SQL: rows of every view, brought to the fleet's position in one go.

The checkpoint moves in the transaction that writes the rows, and only from where this process last
saw it: of two processes that project the same events one wins, and the other reads its rows.

Rows of another shape stand beside those of this one, with a checkpoint of their own. While a release
is replaced its processes and those of the next each keep and read theirs.
"""

from __future__ import annotations

import hashlib
import threading
from typing import Final

import msgspec
import sqlalchemy as sa

from smgate.domain.state import Fleet
from smgate.log import database, port, tables
from smgate.views import remake
from smgate.views.shape import Row

NAME: Final = "views"
VERSION: Final = 3
"""Raised by one with any release that changes a row's shape: its rows are made anew from the log."""

_ROW = tables.VIEW_ROW.c
_CHECKPOINT = tables.PROJECTION.c
_THIS: Final = sa.and_(_CHECKPOINT.name == NAME, _CHECKPOINT.version == VERSION)
_STORED: Final = {view: f"{VERSION}/{view}" for view in remake.MAKERS}
"""The name under which the rows of a view of this shape are stored."""

_UPSERT: Final = sa.text("""
INSERT INTO view_row (view, key, position, data) VALUES (:view, :key, :position, :data)
ON CONFLICT (view, key) DO UPDATE SET position = excluded.position, data = excluded.data
""")
_DELETE: Final = sa.text("DELETE FROM view_row WHERE view = :view AND key = :key")
_ONLY_WRITING: Final = frozenset({"disk_full", "read_only"})
"""Reasons that leave reading possible."""


class LostRaceError(Exception):
    """Another process moved the checkpoint first. Its rows are as good."""


class Views:
    """The read models of one database."""

    def __init__(self, opened: database.Database) -> None:
        self._database: Final = opened
        self._lock: Final = threading.Lock()
        self._position: int | None = None
        self._remaker: Final = remake.Remaker()
        self._digests: dict[remake.Key, bytes] = {}
        self._unwritten: tuple[int, dict[remake.Key, tuple[int, bytes]]] | None = None
        """What could not be written: people read on while the disk is full."""

    def position(self) -> int:
        """Where the views in the database are; -1 before they were ever made."""
        with self._database.statement() as connection:
            return _position(connection)

    def project(self, fleet: Fleet) -> None:
        """Bring the views to the fleet's position. The caller keeps the fleet still meanwhile."""
        with self._lock:
            if self._position == fleet.position and self._remaker.last_was(fleet):
                return
            before, self._position = self._position, None
            made = self._remaker.make(fleet)
            try:
                if not self._write(made, before, fleet.position):
                    self._write(self._remaker.make_all(fleet), None, fleet.position)
            except LostRaceError:
                self._remaker.forget()
            except port.LogUnavailableError as error:
                self._remaker.forget()
                if error.reason not in _ONLY_WRITING:
                    raise
                self._unwritten = fleet.position, remake.make(fleet).rows
                return
            except BaseException:
                self._remaker.forget()
                raise
            else:
                self._position = fleet.position
            self._unwritten = None

    def drop(self) -> None:
        """Throw all rows away; the next `project` makes them from its fleet."""
        with self._lock, self._database.writing() as connection:
            connection.execute(sa.delete(tables.VIEW_ROW))
            connection.execute(sa.delete(tables.PROJECTION).where(_CHECKPOINT.name == NAME))
            self._position, self._digests = None, {}
            self._remaker.forget()

    def rows(self, view: str) -> tuple[int, list[Row]]:
        """All rows of a view in the order of their keys, and the position they are of."""
        unwritten = self._unwritten
        if unwritten is not None:
            position, made = unwritten
            kept = sorted((key, data) for (of, key), (_, data) in made.items() if of == view)
            return position, [msgspec.json.decode(data) for _, data in kept]
        with self._database.reading() as connection:
            found = connection.execute(
                sa.select(_ROW.data).where(_ROW.view == _STORED[view]).order_by(_ROW.key)
            )
            listed = [msgspec.json.decode(data) for (data,) in found]
            return _position(connection), listed

    def row(self, view: str, key: str) -> tuple[int, Row | None]:
        """One row, if there is such a one."""
        unwritten = self._unwritten
        if unwritten is not None:
            position, made = unwritten
            held = made.get((view, key))
            return position, None if held is None else msgspec.json.decode(held[1])
        with self._database.reading() as connection:
            data = connection.execute(
                sa.select(_ROW.data).where(_ROW.view == _STORED[view], _ROW.key == key)
            ).scalar()
            return _position(connection), None if data is None else msgspec.json.decode(data)

    def _write(self, made: remake.Made, before: int | None, position: int) -> bool:
        """Write what differs; False if the rows in the database are not those it differs from."""
        with self._database.writing() as connection:
            current = _position(connection)
            if current >= position and before != current:
                raise LostRaceError  # Another process is as far or farther.
            if current < (before if before is not None else -1):
                return False
            held = self._digests if current == before else _stored(connection)
            digests = {key: hashlib.sha256(data).digest() for key, (_, data) in made.rows.items()}
            self._move(connection, current, position)
            changed = [key for key, digest in digests.items() if held.get(key) != digest]
            gone = sorted(key for key in held if key[0] in made.whole and key not in digests)
            if changed:
                connection.execute(_UPSERT, [_bound(key, *made.rows[key]) for key in changed])
            if gone:
                bound = [{"view": _STORED[view], "key": key} for view, key in gone]
                connection.execute(_DELETE, bound)
        self._digests = held
        held.update(digests)
        for key in gone:
            del held[key]
        return True

    def _move(self, connection: sa.Connection, current: int, position: int) -> None:
        """Compare and set the checkpoint; it also keeps others out until the commit."""
        if current < 0:
            try:
                connection.execute(
                    sa.insert(tables.PROJECTION).values(
                        name=NAME, version=VERSION, position=position
                    )
                )
            except sa.exc.IntegrityError as error:
                raise LostRaceError from error
            _clear_out(connection)
            return
        moved = connection.execute(
            sa.update(tables.PROJECTION)
            .where(_THIS, _CHECKPOINT.position == current)
            .values(position=position)
        )
        if moved.rowcount != 1:
            raise LostRaceError


def _position(connection: sa.Connection) -> int:
    found = connection.execute(sa.select(_CHECKPOINT.position).where(_THIS)).scalar()
    return -1 if found is None else int(found)


def _clear_out(connection: sa.Connection) -> None:
    """Throw away what no process reads any more: the release before this one may run, none before it."""
    of_any = _CHECKPOINT.name == NAME
    connection.execute(
        sa.delete(tables.PROJECTION).where(of_any, _CHECKPOINT.version < VERSION - 1)
    )
    versions = connection.scalars(sa.select(_CHECKPOINT.version).where(of_any))
    read = [_ROW.view.startswith(f"{version}/") for version in versions]
    connection.execute(sa.delete(tables.VIEW_ROW).where(~sa.or_(*read)))


def _bound(key: remake.Key, position: int, data: bytes) -> dict[str, object]:
    return {"view": _STORED[key[0]], "key": key[1], "position": position, "data": data.decode()}


def _stored(connection: sa.Connection) -> dict[remake.Key, bytes]:
    views = {stored: view for view, stored in _STORED.items()}
    found = sa.select(_ROW.view, _ROW.key, _ROW.data).where(_ROW.view.in_(views))
    return {
        (views[stored], key): hashlib.sha256(data.encode()).digest()
        for stored, key, data in connection.execute(found)
    }
