"""Owns picking the store for a URL. `upgrade` and `check` are here for whoever opens a log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smgate.log import checks, database, formats, memory, migrate, port, postgres, sqlite

if TYPE_CHECKING:
    from smgate.log import sql

MEMORY_URL = "memory://"

upgrade = migrate.upgrade
finalize = migrate.finalize
check = checks.check
newest = migrate.newest
revision_problem = checks.revision_problem


def open_store(url: str, *, clock_us: port.ClockUs, read_only: bool = False) -> port.Store:
    """The store behind `url`: memory://, sqlite:///PATH or postgresql://...

    Raises:
        port.LogNotReadyError: the database is not migrated.
        port.LogTooNewError: a newer version finalized it.
        port.LogUnavailableError: it does not answer, or the file does not exist.
        ValueError: the URL is of no supported kind.
    """
    if url == MEMORY_URL:
        return memory.MemoryStore(clock_us=clock_us)
    return open_sql_store(url, clock_us=clock_us, read_only=read_only)


def open_sql_store(url: str, *, clock_us: port.ClockUs, read_only: bool = False) -> sql.SqlStore:
    """As `open_store`, for a log whose `database` serves other tables too."""
    opened = database.connect(url, read_only=read_only)
    store: sql.SqlStore = (
        sqlite.SqliteStore(opened, clock_us=clock_us)
        if opened.url.drivername == "sqlite"
        else postgres.PostgresStore(opened)
    )
    try:
        store.head()
        with opened.statement() as connection:
            store.above = formats.above(migrate.level_of(connection))
    except BaseException:
        store.close()
        raise
    return store
