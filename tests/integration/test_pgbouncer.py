"""PgBouncer lends a server for one transaction: what a session was told is not there in the next."""

from __future__ import annotations

import concurrent.futures
import os
import pathlib
import subprocess
import time
from collections.abc import Callable, Iterator

import httpx2
import psycopg
import pytest
import sqlalchemy as sa
from tests import controller_bench, controller_process, ports
from tests.log_records import record

from smgate.log import commit, open as log_open, port, verify

pytestmark = pytest.mark.postgres

ROOT = pathlib.Path(__file__).parents[2]
SERVERS = 2  # Fewer than what one controller opens.
WAIT_S = 30
INI = """
[databases]
* = {place} user={role}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {servers}
max_client_conn = 200
query_wait_timeout = 5
{more}
"""
DROPPED = "ignore_startup_parameters = options"

Start = Callable[[str], str]
"""Starts PgBouncer with more lines in its settings; the URL of the database behind it."""


@pytest.fixture
def role(postgres_server: sa.URL, bare_postgres_url: str) -> Iterator[str]:
    """A user of its own, as smgate should have one, who owns the database."""
    database = sa.make_url(bare_postgres_url).database
    name = f"{database}_user"
    at_server(postgres_server, f"CREATE ROLE {name} LOGIN")
    at_server(postgres_server, f"ALTER DATABASE {database} OWNER TO {name}")
    yield name
    at_server(postgres_server, f"ALTER DATABASE {database} OWNER TO CURRENT_USER")
    with psycopg.connect(bare_postgres_url, autocommit=True) as connection:
        connection.execute(f"DROP OWNED BY {name} CASCADE".encode())
    at_server(postgres_server, f"DROP ROLE {name}")


@pytest.fixture
def start(
    postgres_server: sa.URL, bare_postgres_url: str, role: str, tmp_path: pathlib.Path
) -> Iterator[Start]:
    """A real PgBouncer in transaction mode."""
    found = subprocess.run(
        ["sh", str(ROOT / "ops/dev/debian.sh"), "pgbouncer", "--where"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if found.returncode:
        pytest.fail(found.stderr.strip(), pytrace=False)
    started: list[subprocess.Popen[bytes]] = []

    def begin(more: str) -> str:
        host = str(postgres_server.query.get("host") or postgres_server.host)
        if os.geteuid() == 0:
            # It refuses to stay root; whose the socket's folder is may enter it.
            owner = pathlib.Path(host).owner() if host.startswith("/") else "nobody"
            more += f"\nuser = {owner}"
        place = f"host={host} port={postgres_server.port or 5432}"
        port_ = ports.free_port()
        settings = tmp_path / "pgbouncer.ini"
        settings.write_text(
            INI.format(place=place, role=role, port=port_, servers=SERVERS, more=more)
        )
        with (tmp_path / "pgbouncer.log").open("wb") as out:
            command = [f"{found.stdout.strip()}/pgbouncer", str(settings)]
            started.append(subprocess.Popen(command, stdout=out, stderr=out))
        url = f"postgresql://{role}@127.0.0.1:{port_}/{sa.make_url(bare_postgres_url).database}"
        wait_for(url, tmp_path / "pgbouncer.log")
        return url

    yield begin
    for process in started:
        process.terminate()
        process.wait(WAIT_S)


def wait_for(url: str, log: pathlib.Path) -> None:
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            psycopg.connect(url).close()
        except psycopg.OperationalError:
            assert time.monotonic() < deadline, log.read_text(errors="replace")
            time.sleep(0.05)
        else:
            return


def at_server(server: sa.URL, statement: str) -> None:
    plain = server.render_as_string(hide_password=False)
    with psycopg.connect(plain, autocommit=True) as connection:
        connection.execute(statement.encode())


def open_as_told(url: str, server: sa.URL) -> None:
    """Do what the refusal says, word for word."""
    with pytest.raises(port.LogUnavailableError) as refused:
        log_open.open_sql_store(url, clock_us=lambda: 0)
    assert refused.value.reason == "no_timeouts"
    words = refused.value.next_step
    for name in ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout"):
        assert f"SET {name} = " in words
    at_server(server, words.partition("give: ")[2].partition(" Then")[0])
    # RECONNECT: servers that were lent before have the settings of their beginning.
    with psycopg.connect(server.render_as_string(hide_password=False), autocommit=True) as at:
        at.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s",
            (sa.make_url(url).username,),
        )
    deadline = time.monotonic() + WAIT_S
    while not opens(url):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def opens(url: str) -> bool:
    """False while PgBouncer still lends a server that was ended just now."""
    try:
        log_open.open_sql_store(url, clock_us=lambda: 0).close()
    except port.LogUnavailableError as error:
        if error.reason == "connection":
            return False
        raise
    return True


@pytest.mark.parametrize("settings", ["", DROPPED], ids=["refused", "dropped"])
def test_without_time_outs_nothing_is_appended_and_the_refusal_says_what_to_type(
    settings: str, start: Start, postgres_server: sa.URL, bare_postgres_url: str
) -> None:
    url = start(settings)
    assert log_open.upgrade(url) == log_open.newest()
    open_as_told(url, postgres_server)
    store = log_open.open_sql_store(url, clock_us=lambda: 0)
    try:
        with psycopg.connect(bare_postgres_url) as other:
            other.execute("UPDATE log_head SET holder = holder")
            with pytest.raises(port.LogUnavailableError) as caught:
                store.append([record("a", 1)], writer="w")
            assert caught.value.reason == "timeout"
        assert store.append([record("a", 1)], writer="w").positions == (1,)
    finally:
        store.close()


def test_statements_are_not_prepared_and_threads_share_two_servers(
    start: Start, postgres_server: sa.URL
) -> None:
    """The driver prepares what it sees five times, on a server that the next transaction may not get."""
    url = start(DROPPED)
    log_open.upgrade(url)
    open_as_told(url, postgres_server)
    store = log_open.open_sql_store(url, clock_us=lambda: 0)
    together = commit.GroupCommit(store, writer="w")

    def work(number: int) -> int:
        for version in range(1, 21):
            together.append([record(f"s{number}", version)], gapless=True)
            store.read(after=0, limit=5)
            store.acquire_lease(f"l{number}", holder="me", ttl_s=5)
        return store.stream_version(f"s{number}")

    try:
        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            assert list(pool.map(work, range(12))) == [20] * 12
        assert store.head().position == 240
        assert verify.verify(store).ok
    finally:
        store.close()


def test_a_controller_serves_behind_it(
    start: Start, postgres_server: sa.URL, tmp_path: pathlib.Path
) -> None:
    url = start("")
    log_open.upgrade(url)
    open_as_told(url, postgres_server)
    assert log_open.check(url) == []
    admin = controller_process.issue_token(url, "--role", "admin", "--name", "alice")
    join = controller_process.issue_token(url, "--join")
    with (
        controller_process.serving(url, tmp_path) as running,
        httpx2.Client(base_url=running.url, timeout=30) as http,
    ):
        body = {"node": "n1", "machine_id": "m", "agent_version": "1"}
        answer = http.post("/v1/agent/enroll", headers=bearer(join), json=body)
        assert answer.status_code == 200, answer.text
        node = bearer(answer.json()["credential"])
        launch = controller_bench.launch("l1", node="n1")
        body = {"node": "n1", "occurred_at_us": 1, "launch": launch}
        assert http.post("/v1/agent/launch", headers=node, json=body).status_code == 200
        deadline = time.monotonic() + WAIT_S
        while not http.get("/v1/units", headers=bearer(admin)).json()["items"]:
            assert time.monotonic() < deadline, running.log.read_text()
        assert http.get("/readyz").status_code == 200, running.log.read_text()


def bearer(token: str) -> dict[str, str]:
    return controller_bench.bearer(token)
