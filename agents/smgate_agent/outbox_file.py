"""The outbox's SQLite file: made, checked, moved aside when damaged, one transaction at a time.

Two kinds of failure: *damaged* (the file is no database any more: it is moved aside and a new one
begins) and *unavailable* (disk full, I/O error: the caller goes on without, and counts).
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from smgate_agent import clock, files
from smgate_agent.launch import whole_file

log = logging.getLogger(__name__)

T = TypeVar("T")

UNKNOWN_OUTBOX: Final = "unknown"
_PAGE_BYTES: Final = 4096
_BUSY_TIMEOUT_MS: Final = 2000
_DAMAGED: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR})
_PRIMARY_CODE: Final = 0xFF
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS fact (
    sequence INTEGER PRIMARY KEY,
    occurred_at_us INTEGER NOT NULL,
    payload BLOB NOT NULL,
    acknowledged_at_us INTEGER
);
CREATE TABLE IF NOT EXISTS reported (
    key TEXT PRIMARY KEY, salt TEXT NOT NULL, payload BLOB NOT NULL
) WITHOUT ROWID;
"""


class UnavailableError(OSError):
    """The file cannot be written or read now: full, failing or locked."""


class OutboxFile:
    """Owns the connection. Not thread-safe; the outbox has the lock."""

    def __init__(
        self,
        path: Path,
        *,
        clock_: clock.Clock,
        begin: Callable[[sqlite3.Connection, str | None], str],
        bytes_max: int,
    ) -> None:
        self._path = path
        self._id_path = path.with_suffix(".id")
        self._clock = clock_
        self._begin = begin
        self._pages_max = max(16, bytes_max // _PAGE_BYTES)
        self._db: sqlite3.Connection | None = None

    def close(self) -> None:
        """Close the file; the next transaction opens it again."""
        db, self._db = self._db, None
        if db is not None:
            with contextlib.suppress(sqlite3.Error):
                db.close()

    def transact(self, action: Callable[[sqlite3.Connection], T]) -> T:
        """Run one durable transaction; a damaged file is replaced and the action runs on the new.

        Raises:
            UnavailableError: full, failing or locked; nothing was changed.
        """
        try:
            return self._attempt(action)
        except sqlite3.Error as exc:
            if _code(exc) not in _DAMAGED:
                raise UnavailableError(str(exc)) from exc
        except UnicodeError:
            pass  # damage in a text that SQLite does not check
        self._move_aside()
        try:
            return self._attempt(action)
        except sqlite3.Error as exc:
            raise UnavailableError(str(exc)) from exc

    def remember_id(self, outbox_id: str) -> None:
        """Keep the id beside the file: if the file is lost, the loss still has a name."""
        with contextlib.suppress(OSError):
            whole_file.replace(self._id_path, outbox_id.encode())

    def _attempt(self, action: Callable[[sqlite3.Connection], T]) -> T:
        db = self._db or self._open()
        db.execute("BEGIN IMMEDIATE")
        try:
            result = action(db)
            db.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):  # SQLite may have ended it by itself
                db.execute("ROLLBACK")
            raise
        return result

    def _open(self) -> sqlite3.Connection:
        db = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        try:
            db.execute(f"PRAGMA busy_timeout={_BUSY_TIMEOUT_MS}")
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=FULL")
            db.execute(f"PRAGMA max_page_count={self._pages_max}")
            _check(db)
            db.executescript(_SCHEMA)
            row = db.execute("SELECT value FROM meta WHERE key = 'outbox_id'").fetchone()
            if row is None:
                db.execute("BEGIN IMMEDIATE")
                outbox_id = self._begin(db, self._remembered_id())
                db.execute("COMMIT")
            else:
                outbox_id = row[0]
        except BaseException:
            db.close()
            raise
        if outbox_id != self._remembered_id():
            self.remember_id(outbox_id)
        self._db = db
        return db

    def _remembered_id(self) -> str | None:
        try:
            return files.read_bounded(self._id_path, bytes_max=200).decode().strip() or None
        except (OSError, UnicodeDecodeError):
            return None

    def _move_aside(self) -> None:
        self.close()
        if not self._id_path.exists():
            self.remember_id(UNKNOWN_OUTBOX)
        aside = f".damaged-{self._clock.now_us()}"
        log.error(
            "The outbox %s is damaged: it is kept as %s%s, and a new one begins with a gap.",
            self._path,
            self._path.name,
            aside,
        )
        for suffix in ("", "-wal", "-shm"):
            part = self._path.with_name(self._path.name + suffix)
            with contextlib.suppress(OSError):
                part.rename(part.with_name(part.name + aside))


def _check(db: sqlite3.Connection) -> None:
    if db.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
        raise sqlite3.DatabaseError("the file does not pass quick_check")


def _code(exc: sqlite3.Error) -> int:
    """Primary result code; an error without one comes from the check of the file itself."""
    code = getattr(exc, "sqlite_errorcode", None)
    return sqlite3.SQLITE_CORRUPT if code is None else int(code) & _PRIMARY_CODE
