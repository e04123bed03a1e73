"""Owns how the databases are connected to: engines, pragmas, timeouts, transactions."""

from __future__ import annotations

import contextlib
import os
import pathlib
import sqlite3
import urllib.parse
from typing import TYPE_CHECKING, Final

import sqlalchemy as sa

from smgate.log import failures, holders, port, postgres_engine

if TYPE_CHECKING:
    from collections.abc import Iterator

BUSY_TIMEOUT_MS = 5_000  # SQLite: how long to wait for another process's transaction.
_BEGIN_WRITING: Final = "BEGIN IMMEDIATE"
READERS_MAX = 16  # One per concurrently reading thread; more wait their turn.


class Database:
    """Engines of one database, and the two kinds of transaction that others may open on it.

    `once` runs single statements, each its own transaction; on SQLite it never writes.
    """

    def __init__(
        self, *, url: sa.URL, once: sa.Engine, writer: sa.Engine, snapshot: sa.Engine
    ) -> None:
        self.url: Final = url
        self.once: Final = once
        self._writer: Final = writer
        self._snapshot: Final = snapshot
        self._files: Final = _files_of(url) if url.drivername == "sqlite" else ()

    @contextlib.contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """One transaction that commits at the end. SQLite admits one writer at a time."""
        with self._told(), self._writer.begin() as connection:
            yield connection

    @contextlib.contextmanager
    def appending(self) -> Iterator[sqlite3.Connection]:
        """As `writing`, by the driver's own connection. SQLite only.

        The work of SQLAlchemy around each statement would be most of the time of an append.
        """
        with failures.translated(), contextlib.closing(self._writer.raw_connection()) as pooled:
            connection = pooled.driver_connection
            assert isinstance(connection, sqlite3.Connection), "the engine's driver"
            _check_files(pooled.info, self._files)
            connection.execute(_BEGIN_WRITING)
            yield connection
            connection.commit()  # What was not committed, the pool rolls back.

    @contextlib.contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """One read-only transaction that sees a single moment of the database."""
        with self._told(), self._snapshot.begin() as connection:
            yield connection

    @contextlib.contextmanager
    def statement(self) -> Iterator[sa.Connection]:
        """A connection for single statements: no BEGIN, no COMMIT, each sees the latest."""
        with self._told(), self.once.connect() as connection:
            yield connection

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Translated; of what was waited for in vain, with who holds it."""
        try:
            with failures.translated():
                yield
        except port.LogUnavailableError as error:
            holds = self._holders() if error.reason == "timeout" else ""
            if not holds:
                raise
            raise port.LogUnavailableError(
                error.reason, f"{error.detail}. {holds}"
            ) from error.__cause__

    def _holders(self) -> str:
        if self.url.drivername == "sqlite":
            return ""
        try:
            with self.once.connect() as connection:
                return holders.said(connection)
        except sa.exc.SQLAlchemyError:
            return ""  # What is being told goes before.

    def close(self) -> None:
        """Close every connection."""
        for engine in (self.once, self._writer, self._snapshot):
            engine.dispose()


def normalize(url: str) -> sa.URL:
    """The URL with its driver: `postgresql://` is served by psycopg.

    Raises:
        ValueError: the URL names neither SQLite nor PostgreSQL, or no SQLite file.
    """
    parsed = sa.make_url(postgres_engine.several_hosts(url))
    if parsed.drivername in {"postgresql", "postgres", "postgresql+psycopg"}:
        return parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername in {"sqlite", "sqlite+pysqlite"}:
        if not parsed.database or parsed.database == ":memory:":
            raise ValueError("An SQLite log needs a file: sqlite:///path/to/file.db")
        return parsed.set(drivername="sqlite")
    raise ValueError(
        f"The scheme {parsed.drivername!r} is not supported: use sqlite:///PATH or "
        "postgresql://USER@HOST/NAME."
    )


def connect(url: str, *, read_only: bool = False) -> Database:
    """Engines for `url`. Connects lazily; creates nothing."""
    parsed = normalize(url)
    if parsed.drivername == "sqlite":
        return _sqlite(parsed, read_only=read_only)
    return _postgres(parsed, read_only=read_only)


def sqlite_path(url: sa.URL) -> pathlib.Path:
    """The file behind a normalized SQLite URL."""
    assert url.database is not None, "normalize() admits no SQLite URL without a file"
    return pathlib.Path(url.database)


def sqlite_engine(url: sa.URL, *, mode: str, begin: str, connections_max: int) -> sa.Engine:
    """An engine on the file; `begin` is the statement that opens its transactions."""
    path = urllib.parse.quote(str(sqlite_path(url).absolute()))

    def open_connection() -> sqlite3.Connection:
        connection = sqlite3.connect(
            f"file:{path}?mode={mode}",
            uri=True,
            timeout=BUSY_TIMEOUT_MS / 1_000,
            # Python's own transaction handling would begin deferred ones; see `begin`.
            isolation_level=None,
            check_same_thread=False,
        )
        # FULL: an acknowledged append survives power loss, not only a killed process.
        connection.execute("PRAGMA synchronous=FULL")
        return connection

    engine = sa.create_engine(
        "sqlite://",
        creator=open_connection,
        poolclass=sa.QueuePool,
        pool_size=connections_max,
        max_overflow=0,
        pool_timeout=BUSY_TIMEOUT_MS / 1_000,
        hide_parameters=True,
    )

    files = _files_of(url)

    def start(connection: sa.Connection) -> None:
        if begin == _BEGIN_WRITING:
            _check_files(connection.info, files)
        # A transaction that begins deferred, reads and then writes can fail as busy at the write.
        connection.exec_driver_sql(begin)

    if begin:
        sa.event.listen(engine, "begin", start)
    return engine


def _files_of(url: sa.URL) -> tuple[str, ...]:
    """The file of a log and its write-ahead log."""
    path = str(sqlite_path(url).absolute())
    return path, f"{path}-wal"


def _check_files(opened: dict[str, object], files: tuple[str, ...]) -> None:
    """Refuse to write once a file was removed or replaced under the open connection.

    SQLite would go on in the file that has no name any more: acknowledged, and gone at the end.
    `opened` is what the connection keeps from one transaction to the next.
    """
    for file in files:
        try:
            found = os.stat(file)  # noqa: PTH116  a Path's takes several times as long
            identity = (found.st_dev, found.st_ino)
        except FileNotFoundError:
            identity = None
        # The write-ahead log comes with the first transaction.
        if opened.get(file) is None:
            opened[file] = identity
        if opened[file] != identity:
            raise port.LogUnavailableError(
                "io",
                f"{file} was removed or replaced while it was open; what is written now would "
                "be lost. Put the database where it was and start the controller again",
            )


def _sqlite(url: sa.URL, *, read_only: bool) -> Database:
    reading = "ro" if read_only else "rw"
    return Database(
        url=url,
        once=sqlite_engine(url, mode=reading, begin="", connections_max=READERS_MAX),
        # One connection: threads queue for it here instead of polling SQLite's file lock.
        writer=sqlite_engine(url, mode=reading, begin=_BEGIN_WRITING, connections_max=1),
        snapshot=sqlite_engine(url, mode=reading, begin="BEGIN", connections_max=READERS_MAX),
    )


def _postgres(url: sa.URL, *, read_only: bool) -> Database:
    engine = postgres_engine.pooled(url, read_only=read_only)
    # All three share one pool.
    # A reader is kept from writing by each transaction, as a pooler keeps no session to say it in.
    reader = engine.execution_options(isolation_level="READ COMMITTED", postgresql_readonly=True)
    once = reader if read_only else engine.execution_options(isolation_level="AUTOCOMMIT")
    writer = reader if read_only else engine
    return Database(
        url=url,
        once=once,
        writer=writer,
        snapshot=engine.execution_options(
            isolation_level="REPEATABLE READ", postgresql_readonly=True
        ),
    )
