"""Where the log's bench writes: SQLite files and a PostgreSQL server, both as durable as in use."""

from __future__ import annotations

import contextlib
import itertools
import pathlib
import sqlite3
import tempfile
from collections.abc import Iterator
from typing import Protocol

import psycopg
import sqlalchemy as sa
from tests import fixtures_postgres, ports

from smgate.log import open as log_open

DURABLE = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "max_connections": "200",
    # As most servers are reached. The library's pipeline, given 1,000 events at once, was also seen
    # to wait for ever at the smaller buffers of a Unix socket.
    "listen_addresses": "127.0.0.1",
}


class Place(Protocol):
    """One kind of database. Every call of a method makes a database of its own, as a URL."""

    kind: str

    def log(self) -> str:
        """Migrated and empty."""
        ...

    def empty(self) -> str:
        """Without any table."""
        ...


class Sqlite:
    """Files of one folder."""

    kind = "sqlite"

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        self._numbers = itertools.count(1)

    def log(self) -> str:
        url = self.empty()
        log_open.upgrade(url)
        return url

    def empty(self) -> str:
        return f"sqlite:///{self._folder / f'{next(self._numbers)}.db'}"


class Postgres:
    """Databases of one server."""

    kind = "postgres"

    def __init__(self, server: sa.URL) -> None:
        self._server = server
        self._numbers = itertools.count(1)
        for name in ("fsync", "synchronous_commit"):
            with psycopg.connect(server.render_as_string(hide_password=False)) as connection:
                found = connection.execute(f"SHOW {name}".encode()).fetchone()
            assert found == ("on",), f"{name} is {found}: not a durable server"

    def log(self) -> str:
        url = self.empty()
        log_open.upgrade(url)
        return url

    def empty(self) -> str:
        name = f"bench_{next(self._numbers)}"
        url = self._server.render_as_string(hide_password=False)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE IF EXISTS {name}".encode())
            connection.execute(f"CREATE DATABASE {name} TEMPLATE template0".encode())
        return self._server.set(database=name).render_as_string(hide_password=False)


@contextlib.contextmanager
def places(kinds: list[str]) -> Iterator[list[Place]]:
    """Every kind asked for; gone at the end."""
    with contextlib.ExitStack() as closing:
        made: list[Place] = []
        if "sqlite" in kinds:
            folder = closing.enter_context(tempfile.TemporaryDirectory(prefix="smgate-bench-"))
            made.append(Sqlite(pathlib.Path(folder)))
        if "postgres" in kinds:
            settings = DURABLE | {"port": str(ports.free_port())}
            made.append(Postgres(closing.enter_context(fixtures_postgres.serving(settings))))
        yield made


def raw_sqlite(url: str) -> sqlite3.Connection:
    """The driver's own connection: write-ahead log, synchronous=FULL, transactions by hand."""
    path = sa.make_url(url).database
    assert path is not None
    connection = sqlite3.connect(path, isolation_level=None, timeout=10, check_same_thread=False)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    return connection


def library_environment(url: str) -> dict[str, str]:
    """The library's settings for this database; all else is its default."""
    parsed = sa.make_url(url)
    if parsed.drivername == "sqlite":
        return {"PERSISTENCE_MODULE": "eventsourcing.sqlite", "SQLITE_DBNAME": str(parsed.database)}
    return {
        "PERSISTENCE_MODULE": "eventsourcing.postgres",
        "POSTGRES_DBNAME": str(parsed.database),
        "POSTGRES_HOST": str(parsed.query.get("host") or parsed.host),
        "POSTGRES_PORT": str(parsed.port or 5432),
        "POSTGRES_USER": parsed.username or "postgres",
        "POSTGRES_PASSWORD": parsed.password or "",
    }
