"""Owns what a database error means to the caller: try again, upgrade, or a bug of ours."""

from __future__ import annotations

import contextlib
import sqlite3
from typing import TYPE_CHECKING

import sqlalchemy as sa

from smgate.log import port

if TYPE_CHECKING:
    from collections.abc import Iterator

# By SQLSTATE, exactly or by its class (the first two characters).
_POSTGRES_REASONS = {
    "08": "connection",
    "25006": "read_only",
    "40": "busy",
    "53100": "disk_full",
    "53": "connection",
    "55P03": "timeout",
    "57014": "timeout",
    "57": "connection",
    "58": "io",
    "25P03": "timeout",
    "28": "connection",
    "3D": "connection",
    "3F": "no_schema",
    "42501": "forbidden",
    "42P07": "occupied",
    "XX001": "corrupt",
    "XX002": "corrupt",
}
_POSTGRES_NO_LOCK = "55P03"
_POSTGRES_NOT_READY = {"42P01", "42703"}  # No such table, no such column.

_SQLITE_REASONS = {
    sqlite3.SQLITE_BUSY: "busy",
    sqlite3.SQLITE_LOCKED: "busy",
    sqlite3.SQLITE_FULL: "disk_full",
    sqlite3.SQLITE_READONLY: "read_only",
    sqlite3.SQLITE_IOERR: "io",
    sqlite3.SQLITE_CANTOPEN: "connection",
    sqlite3.SQLITE_PERM: "io",
    sqlite3.SQLITE_PROTOCOL: "busy",
    sqlite3.SQLITE_CORRUPT: "corrupt",
    sqlite3.SQLITE_NOTADB: "corrupt",
}
_SQLITE_PRIMARY_CODE = 0xFF  # The low byte; the rest says in which way.


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Turn what the driver raises into the port's errors; leave what is a bug of ours alone."""
    try:
        yield
    except sa.exc.TimeoutError as error:
        raise port.LogUnavailableError("busy", "every connection is in use") from error
    except (sa.exc.DBAPIError, sqlite3.Error) as error:
        meaning = _meaning(error)
        if meaning is None:
            raise
        raise meaning from error


def violated(error: BaseException | None) -> str:
    """What a driver's integrity error broke: the constraint's name, or on SQLite its columns."""
    if isinstance(error, sqlite3.Error):
        return str(error).rpartition(": ")[2]
    return str(getattr(getattr(error, "diag", None), "constraint_name", ""))


def is_lock(error: sa.exc.DBAPIError) -> bool:
    """True if a lock was waited for in vain, in PostgreSQL."""
    return getattr(error.orig, "sqlstate", None) == _POSTGRES_NO_LOCK


def _meaning(error: sa.exc.DBAPIError | sqlite3.Error) -> port.LogError | None:
    origin = error if isinstance(error, sqlite3.Error) else error.orig
    detail = (str(origin).strip() or type(origin).__name__).splitlines()[0]
    if isinstance(origin, sqlite3.Error):
        if "no such table" in detail or "no such column" in detail:
            return port.LogNotReadyError(f"The database has no event log ({detail}).")
        if detail.startswith("table ") and detail.endswith("already exists"):
            return port.LogUnavailableError("occupied", detail)
        primary = getattr(origin, "sqlite_errorcode", 0) & _SQLITE_PRIMARY_CODE
        reason = _SQLITE_REASONS.get(primary)
    else:
        assert not isinstance(error, sqlite3.Error), "that is its own origin"
        state = getattr(origin, "sqlstate", None) or ""
        if state in _POSTGRES_NOT_READY:
            return port.LogNotReadyError(f"The database has no event log ({detail}).")
        reason = _POSTGRES_REASONS.get(state) or _POSTGRES_REASONS.get(state[:2])
        if reason is None and (error.connection_invalidated or not state):
            # Only a lost or refused connection comes without a state from the server.
            reason = "connection" if isinstance(error, sa.exc.OperationalError) else None
    return None if reason is None else port.LogUnavailableError(reason, detail)
