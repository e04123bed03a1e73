"""Owns saying who holds what was waited for in vain, in PostgreSQL: a person has to end or commit it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import sqlalchemy as sa

from smgate.log import tables

if TYPE_CHECKING:
    from collections.abc import Sequence

NAMED_MAX: Final = 3
_SHORT_S: Final = 1.0
"""A transaction that began later is no reason to have waited as long as the time-outs are."""
_HARMLESS: Final = ["AccessShareLock", "ShareUpdateExclusiveLock"]
"""Of readers and of VACUUM: no append waits for them, but a migration does."""

# An ordinary user is not shown when another's transaction began, nor its state.
# What holds a row holds a lock on its table too, though one that stands in nobody's way.
_HOLDERS: Final = sa.text("""
SELECT a.pid, a.usename, a.application_name, a.state,
       CAST(extract(epoch FROM clock_timestamp() - a.xact_start) AS int), l.mode, c.relname
FROM pg_locks l
JOIN pg_class c ON c.oid = l.relation
JOIN pg_database d ON d.oid = l.database AND d.datname = current_database()
JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.granted AND l.pid <> pg_backend_pid() AND c.relname = ANY(CAST(:tables AS text[]))
  AND l.mode <> ALL(CAST(:harmless AS text[]))
  AND (a.xact_start IS NULL OR a.xact_start < clock_timestamp() - make_interval(secs => :short_s))
ORDER BY l.mode = 'AccessExclusiveLock' DESC, a.xact_start, a.pid
""")


def said(connection: sa.Connection, *, migrating: bool = False) -> str:
    """Who holds tables of the log for longer than a moment, the likeliest first; empty if nobody does.

    Args:
        connection: its own transactions are not looked at.
        migrating: readers stand in the way too.
    """
    # By name, since a migration may want what this version's tables do not have yet.
    names = [*tables.METADATA.tables, "alembic_version"]
    bound = {
        "tables": names,
        "harmless": [] if migrating else _HARMLESS,
        "short_s": _SHORT_S,
    }
    seen: dict[int, str] = {}
    for row in connection.execute(_HOLDERS, bound):
        seen.setdefault(row[0], _sentence(row))
    return " ".join(list(seen.values())[:NAMED_MAX])


def _sentence(row: Sequence[object]) -> str:
    pid, user, application, state, for_s, mode, table = row
    who = ", ".join(str(part) for part in (user, application, state) if part)
    since = "" if for_s is None else f" for {for_s} s"
    return (
        f"Process {pid} of the server ({who}) has held {table} ({mode}){since}; "
        f"have it end its transaction, or give SELECT pg_terminate_backend({pid})."
    )
