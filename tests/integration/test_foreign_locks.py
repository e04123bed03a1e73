"""Somebody's own transaction in the database: appends go on, or are refused with who holds them up."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import psycopg
import pytest
import sqlalchemy as sa
from tests import controller_bench as cb

from smgate.log import database, holders

pytestmark = pytest.mark.postgres

HARMLESS = (
    "SELECT count(*) FROM log_event",
    "LOCK TABLE log_event, log_head IN ACCESS SHARE MODE",
    "LOCK TABLE log_event, log_head, log_batch IN ROW EXCLUSIVE MODE",
)
IN_THE_WAY = (
    "LOCK TABLE log_event IN ACCESS EXCLUSIVE MODE",
    "LOCK TABLE log_head IN ACCESS EXCLUSIVE MODE",
    "LOCK TABLE log_event IN SHARE MODE",
    "UPDATE log_head SET holder = holder",
    "SELECT FROM log_head FOR SHARE",
)


@pytest.fixture
def bench(postgres_url: str, tmp_path: pathlib.Path) -> Iterator[cb.Bench]:
    with cb.running(cb.settings(postgres_url, tmp_path)) as made:
        yield made


@pytest.fixture
def other(postgres_url: str) -> Iterator[psycopg.Connection]:
    """A transaction that somebody left open."""
    with psycopg.connect(postgres_url, application_name="a forgotten psql") as connection:
        yield connection
        connection.rollback()


@pytest.mark.parametrize("statement", HARMLESS)
def test_readers_and_writers_beside_it_stop_nothing(
    bench: cb.Bench, other: psycopg.Connection, statement: str
) -> None:
    machine = bench.enrol("n1")
    other.execute(statement.encode())
    machine.send(cb.reported())
    bench.lead()
    assert bench.http.get("/readyz").json() == {"status": "ready", "problems": []}


def test_a_user_who_may_not_see_others_transactions_is_told_whose_it_is(
    bench: cb.Bench, other: psycopg.Connection, postgres_url: str
) -> None:
    """The server hides from it when that began."""
    other.execute("UPDATE log_head SET holder = holder")
    with psycopg.connect(postgres_url) as made:
        made.execute("CREATE ROLE smgate_ordinary")
    try:
        engine = sa.create_engine(database.normalize(postgres_url), poolclass=sa.NullPool)
        with engine.connect() as connection:
            connection.exec_driver_sql("SET ROLE smgate_ordinary")
            told = holders.said(connection)
    finally:
        with psycopg.connect(postgres_url) as made:
            made.execute("DROP ROLE smgate_ordinary")
    assert f"Process {other.info.backend_pid} of the server (" in told
    assert "a forgotten psql) has held log_head (RowExclusiveLock); have it end" in told


@pytest.mark.parametrize("statement", IN_THE_WAY)
def test_an_append_that_is_kept_out_is_refused_and_readiness_names_who_does_it(
    bench: cb.Bench, other: psycopg.Connection, statement: str
) -> None:
    machine = bench.enrol("n1")
    machine.send(cb.reported())
    other.execute(statement.encode())
    batch = machine.batch(cb.reported(agent_version="2"))
    refused = bench.http.post("/v1/agent/facts", headers=machine.headers, json=batch)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "log_unavailable")
    assert "timeout" in refused.json()["error"]["message"]
    ready = bench.http.get("/readyz")
    assert ready.status_code == 503
    told = " ".join(one["sentence"] for one in ready.json()["problems"])
    pid = other.info.backend_pid
    assert f"Process {pid} of the server" in told
    assert "a forgotten psql, idle in transaction" in told
    assert f"pg_terminate_backend({pid})" in told
    other.rollback()
    assert bench.http.get("/readyz").json() == {"status": "ready", "problems": []}
    machine.send(cb.reported(agent_version="2"))
    bench.lead()
