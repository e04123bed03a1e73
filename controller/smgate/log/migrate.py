"""Owns bringing a database to the shape this version needs, and saying what keeps it from that."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import stat
from typing import TYPE_CHECKING

import alembic.command
import alembic.config
import alembic.migration
import alembic.script
import filelock
import sqlalchemy as sa

import smgate
from smgate.log import (
    archive,
    database,
    failures,
    formats,
    holders,
    port,
    postgres_engine,
    server,
    tables,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

WAIT_S = 60.0  # How long to wait for another process that is migrating the same database.
LOCK_TIMEOUT_MS = 5_000  # A migration that cannot get its table lock must not queue readers.
STATEMENT_TIMEOUT_MS = 600_000
_ADVISORY_KEY = 0x736D_6761_7465  # "smgate": the same number in every version.


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Which stored forms a log may hold (`formats`)."""

    level: int
    newest: int
    """What this release knows."""
    finalizing_enables: tuple[str, ...]


def upgrade(url: str) -> str:
    """Bring the database to the newest revision, creating an SQLite file; return that revision.

    Safe to run from several processes at once: one migrates, the others wait and find it done. A
    database that a newer version migrated stays as it is: what is only added can be done without.

    Raises:
        LogTooNewError: a newer version finalized it; nothing was changed.
    """
    parsed = database.normalize(url)
    lock = _sqlite_upgrade if parsed.drivername == "sqlite" else _postgres_upgrade
    with failures.translated(), lock(parsed) as connection:
        server.check(connection)
        current = revision_of(connection)
        if current is not None and current not in known():
            check_readable(connection, current)
            return current
        alembic.command.upgrade(config(connection), "head")
        if current is None:
            # No release before ever wrote into it, so none has to be able to read it.
            connection.execute(sa.update(tables.LOG_FORMAT).values(level=formats.LEVEL))
    return newest()


def finalize(url: str) -> Level:
    """Let this release write all it can; the release before cannot use the log from then on.

    Raises:
        LogTooNewError: a newer version finalized it.
        LogNotReadyError: it is not migrated.
    """
    opened = database.connect(url)
    try:
        with opened.writing() as connection:
            before = level_of(connection)
            connection.execute(sa.update(tables.LOG_FORMAT).values(level=formats.LEVEL))
    finally:
        opened.close()
    return _level(before)


def level(url: str) -> Level:
    """The level of the log, and what this release could write if it were finalized. As `finalize`."""
    opened = database.connect(url, read_only=True)
    try:
        with opened.statement() as connection:
            return _level(level_of(connection))
    finally:
        opened.close()


def level_of(connection: sa.Connection) -> int:
    """The level of a log.

    Raises:
        LogTooNewError: a newer version finalized it.
        LogNotReadyError: it has none.
    """
    found = connection.execute(sa.select(tables.LOG_FORMAT.c.level)).scalar()
    if found is None:
        raise port.LogNotReadyError("The event log has no level.")
    if found > formats.LEVEL:
        raise port.LogTooNewError(
            f"The log was finalized at level {found}; this version reads {formats.LEVEL} and below."
        )
    return int(found)


def _level(found: int) -> Level:
    enables = sorted(f"{name} version {version}" for name, version in formats.above(found))
    return Level(level=found, newest=formats.LEVEL, finalizing_enables=tuple(enables))


def check_readable(connection: sa.Connection, revision: str) -> None:
    """A revision this version does not know is of a newer one; it may use it until it is finalized."""
    if not sa.inspect(connection).has_table(tables.LOG_FORMAT.name):
        raise port.LogTooNewError(
            f"The database is at revision {revision}, which this version does not know."
        )
    level_of(connection)


def newest() -> str:
    """The newest revision this version knows."""
    head = _script().get_current_head()
    assert head is not None, "the distribution holds at least one migration"
    return head


def config(connection: sa.Connection | None = None) -> alembic.config.Config:
    """Alembic's configuration, on a connection whose transaction the caller owns."""
    made = alembic.config.Config()
    made.set_main_option("script_location", str(location()).replace("%", "%%"))
    made.attributes["connection"] = connection
    return made


def location() -> pathlib.Path:
    """The folder of this installation's migrations."""
    assert smgate.__file__ is not None
    return locate(pathlib.Path(smgate.__file__).parent)


def locate(package: pathlib.Path) -> pathlib.Path:
    """The migrations that belong to a package: inside an installed wheel, or its repository's."""
    for folder in (package / "_migrations", package.parents[1] / "migrations"):
        if (folder / "env.py").is_file():
            return folder
    raise port.LogNotReadyError(f"The migrations are missing beside {package}.")


def _script() -> alembic.script.ScriptDirectory:
    return alembic.script.ScriptDirectory.from_config(config())


class RevisionsError(port.LogUnavailableError):
    """The database names several revisions at once: somebody wrote into `alembic_version`."""

    def __init__(self, found: Sequence[str]) -> None:
        names = ", ".join(sorted(found))
        super().__init__("corrupt", f"the database says that it is of several revisions: {names}")


def revision_of(connection: sa.Connection) -> str | None:
    """The revision of a database; None of one that has none.

    Raises:
        RevisionsError: it has several.
    """
    found = alembic.migration.MigrationContext.configure(connection).get_current_heads()
    if len(found) > 1:
        raise RevisionsError(found)
    return found[0] if found else None


def known() -> set[str]:
    """The revisions this version knows."""
    return {one.revision for one in _script().walk_revisions()}


@contextlib.contextmanager
def _sqlite_upgrade(url: sa.URL) -> Iterator[sa.Connection]:
    path = database.sqlite_path(url)
    if not path.absolute().parent.is_dir():
        # The lock would create it, and a mistyped path would become a log.
        raise port.LogUnavailableError("io", f"the folder of {path} does not exist")
    try:
        lock = path.with_name(f"{path.name}.migrate.lock")
        if path.exists():
            _belong_like(lock, path)
        with filelock.FileLock(lock, timeout=WAIT_S):
            plain = database.sqlite_engine(url, mode="rwc", begin="", connections_max=1)
            with plain.connect() as connection:
                # Kept in the file itself. It cannot be set inside a transaction.
                connection.exec_driver_sql("PRAGMA journal_mode=WAL")
                _back_up(connection, path)
            plain.dispose()
            engine = database.sqlite_engine(
                url, mode="rw", begin="BEGIN IMMEDIATE", connections_max=1
            )
            try:
                with engine.begin() as connection:
                    yield connection
            finally:
                engine.dispose()
    except filelock.Timeout as error:
        raise port.LogUnavailableError("busy", "another process is migrating it") from error
    except OSError as error:
        raise port.LogUnavailableError("io", str(error)) from error


def backup_of(url: str) -> pathlib.Path | None:
    """The copy that an upgrade to this version's revision made beside an SQLite file, if any."""
    parsed = database.normalize(url)
    if parsed.drivername != "sqlite":
        return None
    path = _backup_path(database.sqlite_path(parsed))
    return path if path.exists() else None


def _backup_path(path: pathlib.Path) -> pathlib.Path:
    return path.with_name(f"{path.name}.before-{newest()}")


def _back_up(connection: sa.Connection, path: pathlib.Path) -> None:
    """Copy a file that is about to be migrated, whole or not at all. On a full disk nothing follows."""
    current = revision_of(connection)
    if current not in known() - {newest()}:
        return
    copy = _backup_path(path)
    beside = copy.with_name(f"{copy.name}.new")
    beside.unlink(missing_ok=True)
    _belong_like(beside, path)
    connection.commit()  # Asking for the revision began a transaction; VACUUM cannot be in one.
    connection.exec_driver_sql("VACUUM INTO ?", (str(beside),))
    # SQLite does not sync what it writes so, and the file itself is changed next.
    archive.sync(beside)
    beside.replace(copy)
    archive.sync(copy.parent)


def _belong_like(file: pathlib.Path, like: pathlib.Path) -> None:
    """Have a file, empty if it is new, be for the same people as another.

    The superuser may have made it, or be making it now, and the service has to use it afterwards.
    Whoever owns the folder may have put a link there: what is behind it is not given away.
    """
    found = like.stat()
    try:
        opened = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except FileExistsError:
        if os.geteuid() != 0:
            return
        opened = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    else:
        os.fchmod(opened, stat.S_IMODE(found.st_mode))
    try:
        if os.geteuid() == 0:
            os.fchown(opened, found.st_uid, found.st_gid)
    finally:
        os.close(opened)


@contextlib.contextmanager
def _postgres_upgrade(url: sa.URL) -> Iterator[sa.Connection]:
    engine = postgres_engine.single(url)
    try:
        with engine.begin() as connection:
            # First: waiting for another migration is a statement too, and the role may have a time-out.
            connection.exec_driver_sql(f"SET LOCAL statement_timeout = {STATEMENT_TIMEOUT_MS}")
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = {round(WAIT_S * 1000)}")
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_ADVISORY_KEY})")
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}")
            yield connection
    except sa.exc.OperationalError as error:
        with failures.translated(), engine.connect() as connection:
            holds = holders.said(connection, migrating=True) if failures.is_lock(error) else ""
        if not holds:
            raise
        raise port.LogUnavailableError("timeout", f"nothing was changed. {holds}") from error
    finally:
        engine.dispose()
