"""Owns when each node was last heard, and which directive it said it holds.

Heartbeats are not facts: they are kept in memory and written in one statement now and then, so ten
thousand nodes cost one small transaction a second. Ages are measured here and placed on the
database's clock there, so that several processes with different clocks agree.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa

from smgate.clock import Clock
from smgate.log import database, tables

_TABLE = tables.NODE_CONTACT.c

# Another process may have heard the node later; a heartbeat never moves it back.
_UPSERT: Final = sa.text("""
INSERT INTO node_contact (node, last_seen_us, held_generation)
VALUES (:node, :last_seen_us, :held_generation)
ON CONFLICT (node) DO UPDATE SET
  last_seen_us = CASE WHEN excluded.last_seen_us > node_contact.last_seen_us
                      THEN excluded.last_seen_us ELSE node_contact.last_seen_us END,
  held_generation = COALESCE(excluded.held_generation, node_contact.held_generation)
""")
_POSTGRES_NOW_US: Final = sa.text(
    "SELECT CAST(floor(extract(epoch FROM clock_timestamp()) * 1000000) AS bigint)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contact:
    """The last word of one node. `held_generation` is None until it named one."""

    last_seen_us: int
    held_generation: int | None


class Contacts:
    """Heartbeats of all nodes, from this process at once and from others as they write them."""

    def __init__(self, opened: database.Database, *, clock: Clock) -> None:
        self._database: Final = opened
        self._clock: Final = clock
        self._lock: Final = threading.Lock()
        self._dirty: dict[str, Contact] = {}

    def note(self, node: str, *, held_generation: int | None = None) -> None:
        """The node was heard now."""
        now_us = self._clock.now_us()
        with self._lock:
            before = self._dirty.get(node)
            if held_generation is None and before is not None:
                held_generation = before.held_generation
            self._dirty[node] = Contact(last_seen_us=now_us, held_generation=held_generation)

    def flush(self) -> None:
        """Write what was heard since the last time. What could not be written is kept."""
        with self._lock:
            dirty, self._dirty = self._dirty, {}
        if not dirty:
            return
        try:
            with self._database.writing() as connection:
                behind_us = self._clock.now_us() - self._now_us(connection)
                # In one order, so that two processes cannot wait for each other's rows.
                rows = [
                    {
                        "node": node,
                        "last_seen_us": dirty[node].last_seen_us - behind_us,
                        "held_generation": dirty[node].held_generation,
                    }
                    for node in sorted(dirty)
                ]
                connection.execute(_UPSERT, rows)
        except BaseException:
            with self._lock:
                self._dirty = {**dirty, **self._dirty}
            raise

    def read(self) -> dict[str, Contact]:
        """All nodes ever heard, by the database's clock."""
        self.flush()
        with self._database.statement() as connection:
            rows = connection.execute(
                sa.select(_TABLE.node, _TABLE.last_seen_us, _TABLE.held_generation)
            )
            return {
                node: Contact(last_seen_us=last_seen_us, held_generation=held)
                for node, last_seen_us, held in rows
            }

    def now_us(self) -> int:
        """The database's clock."""
        with self._database.statement() as connection:
            return self._now_us(connection)

    def _now_us(self, connection: sa.Connection) -> int:
        if connection.dialect.name == "postgresql":
            return int(connection.execute(_POSTGRES_NOW_US).scalar_one())
        return self._clock.now_us()
