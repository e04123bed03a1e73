"""What the people who run a PostgreSQL server set for its users, and what a log makes of it."""

from __future__ import annotations

import concurrent.futures
import uuid
from collections.abc import Callable, Iterator

import psycopg
import pytest
import sqlalchemy as sa
from tests import cli_fakes
from tests.fixtures_postgres import _administer, _named
from tests.log_records import record, run

from smgate.log import open as log_open, port, sql

pytestmark = pytest.mark.postgres

Make = Callable[..., str]
"""Makes a user with these settings, who owns the database unless told otherwise; its URL."""


@pytest.fixture
def user(postgres_server: sa.URL, bare_postgres_url: str) -> Iterator[Make]:
    name = f"u_{uuid.uuid4().hex[:8]}"
    database = sa.make_url(bare_postgres_url).database

    def make(*settings: str, owns: bool = True) -> str:
        _administer(postgres_server, f"CREATE ROLE {name} LOGIN")
        if owns:
            _administer(postgres_server, f"ALTER DATABASE {database} OWNER TO {name}")
        for setting in settings:
            _administer(postgres_server, f"ALTER ROLE {name} SET {setting}")
        url = sa.make_url(bare_postgres_url).set(username=name)
        return url.render_as_string(hide_password=False)

    yield make
    _administer(postgres_server, f"ALTER DATABASE {database} OWNER TO CURRENT_USER")
    with psycopg.connect(bare_postgres_url, autocommit=True) as connection:
        connection.execute(f"DROP OWNED BY {name} CASCADE".encode())
    _administer(postgres_server, f"DROP ROLE {name}")


def opened(url: str, *, read_only: bool = False) -> sql.SqlStore:
    return log_open.open_sql_store(url, clock_us=lambda: 0, read_only=read_only)


def setting(store: sql.SqlStore, name: str) -> str:
    with store.database.statement() as connection:
        return str(connection.exec_driver_sql(f"SHOW {name}").scalar())


@pytest.mark.parametrize(("given", "used"), [("off", "on"), ("local", "local"), ("on", "on")])
def test_what_is_acknowledged_is_durable_whatever_the_user_is_set_to(
    user: Make, given: str, used: str
) -> None:
    url = user(f"synchronous_commit = {given}")
    log_open.upgrade(url)
    store = opened(url)
    assert setting(store, "synchronous_commit") == used
    store.close()


def test_two_who_append_at_once_both_succeed_whatever_the_isolation_is_set_to(user: Make) -> None:
    url = user("default_transaction_isolation = 'serializable'")
    log_open.upgrade(url)
    store = opened(url)

    def work(stream: str) -> None:
        for version in range(1, 41):
            store.append(run(stream, version, version), writer="w", gapless=True)
            store.acquire_lease(stream, holder="me", ttl_s=5)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(work, "abcd"))
    assert store.head().position == 160
    store.close()


def test_who_only_reads_is_kept_from_writing_by_each_transaction(user: Make) -> None:
    """A pooler keeps nothing of a session, so it cannot be that."""
    url = user()
    log_open.upgrade(url)
    store = opened(url, read_only=True)
    with store.database.statement() as connection:
        connection.exec_driver_sql("SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE")
    for write in (
        lambda: store.append([record("a", 1)], writer="w"),
        lambda: store.acquire_lease("l", holder="h", ttl_s=1),
        lambda: store.erase(1),
    ):
        with pytest.raises(port.LogUnavailableError) as caught:
            write()
        assert caught.value.reason == "read_only"
    assert store.read(after=0) == []
    store.close()


def told(url: str, *command: str) -> str:
    """What the command says went wrong, which is never that smgate has a bug."""
    done = cli_fakes.Cli(None)(*command, "--database", url)
    assert done.code not in (0, None)
    assert "bug" not in done.err.lower(), done.err
    assert "internal" not in done.err.lower(), done.err
    return done.err


def test_who_may_not_do_it_is_told_and_what_to_give(user: Make) -> None:
    url = user(owns=False)
    assert "GRANT" in told(url, "db", "upgrade")
    mine = sa.make_url(url).set(username="postgres").render_as_string(hide_password=False)
    log_open.upgrade(mine)
    for command in (("db", "check"), ("log", "verify"), ("db", "finalize", "--yes")):
        assert "GRANT" in told(url, *command), command


def test_a_schema_that_is_not_there_and_tables_of_others_are_named(
    user: Make, bare_postgres_url: str
) -> None:
    url = user("search_path = nowhere")
    assert "search_path" in told(url, "db", "upgrade")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA nowhere")
        connection.execute("CREATE TABLE lease (id int)")
    assert "database of its own" in told(url, "db", "upgrade")
    with psycopg.connect(bare_postgres_url, autocommit=True) as connection:
        connection.execute("DROP TABLE nowhere.lease")
    assert log_open.upgrade(url) == log_open.newest()
    assert log_open.check(url) == []
    store = opened(url)
    assert store.append([record("a", 1)], writer="w").positions == (1,)
    store.close()


def test_nothing_is_made_in_a_database_whose_encoding_cannot_hold_a_log(
    postgres_server: sa.URL,
) -> None:
    name = f"latin_{uuid.uuid4().hex[:8]}"
    _administer(
        postgres_server,
        f"CREATE DATABASE {name} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0",
    )
    url = _named(postgres_server, name)
    try:
        assert "ENCODING 'UTF8'" in told(url, "db", "upgrade")
        [problem] = log_open.check(url)
        assert (problem.code, "UTF8" in problem.next_step) == ("encoding", True)
        with psycopg.connect(url) as connection:
            found = connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'")
            assert found.fetchone() == (0,)
    finally:
        _administer(postgres_server, f"DROP DATABASE {name} WITH (FORCE)")
