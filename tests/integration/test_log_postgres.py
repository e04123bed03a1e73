"""What only a real PostgreSQL shows: waits on the head row, time-outs, lost connections."""

from __future__ import annotations

import concurrent.futures
import contextlib
import time
from collections.abc import Callable, Iterator

import psycopg
import pytest
import sqlalchemy as sa
from tests.log_records import record, run

from smgate.log import arrays, open as log_open, port, postgres, sql, tables, verify

pytestmark = pytest.mark.postgres


@pytest.fixture
def store(postgres_url: str) -> Iterator[sql.SqlStore]:
    opened = log_open.open_sql_store(postgres_url, clock_us=lambda: 0)
    yield opened
    opened.close()


@pytest.fixture
def other(postgres_url: str) -> Iterator[psycopg.Connection]:
    """A connection beside the store's, in a transaction of its own."""
    with psycopg.connect(postgres_url) as connection:
        yield connection


def wait_until_blocked(connection: psycopg.Connection) -> None:
    """Return when some other backend of this database waits for a lock."""
    for _ in range(400):
        # Within a transaction the first look would be remembered.
        connection.execute("SELECT pg_stat_clear_snapshot()")
        waiting = connection.execute(
            "SELECT count(*) FROM pg_stat_activity "
            "WHERE datname = current_database() AND wait_event_type = 'Lock'"
        ).fetchone()
        if waiting == (1,):
            return
        time.sleep(0.01)
    pytest.fail("nobody ever waited for the lock")


def while_head_row_is_locked(
    other: psycopg.Connection, statement: str, work: Callable[[], port.Appended]
) -> concurrent.futures.Future[port.Appended]:
    """Run `statement` uncommitted, start `work`, and commit once it waits."""
    other.execute(statement.encode())
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        future = pool.submit(work)
        wait_until_blocked(other)
        other.commit()
        concurrent.futures.wait([future], 10)
    return future


def test_a_stale_leader_that_waited_for_the_head_row_is_fenced(
    store: sql.SqlStore, other: psycopg.Connection
) -> None:
    """The epoch must be read after the wait. Read beside it, the stale write would be accepted."""
    epoch = store.take_epoch(holder="one")
    future = while_head_row_is_locked(
        other,
        "UPDATE log_head SET epoch = epoch + 1, holder = 'two'",
        lambda: store.append([record("decisions", 1)], writer="one", epoch=epoch),
    )
    with pytest.raises(port.FencedError) as caught:
        future.result()
    assert (caught.value.epoch, caught.value.current, caught.value.holder) == (1, 2, "two")
    assert store.head().position == 0


def test_a_leader_of_the_current_epoch_that_waited_is_not_fenced(
    store: sql.SqlStore, other: psycopg.Connection
) -> None:
    epoch = store.take_epoch(holder="one")
    future = while_head_row_is_locked(
        other,
        "UPDATE log_head SET holder = holder",
        lambda: store.append([record("decisions", 1)], writer="one", epoch=epoch),
    )
    assert future.result().positions == (1,)


def test_time_is_taken_under_the_head_row_and_chained_as_stored(
    store: sql.SqlStore, other: psycopg.Connection
) -> None:
    released_us: list[int] = []

    def append() -> port.Appended:
        return store.append([record("a", 1)], writer="w")

    other.execute("UPDATE log_head SET holder = holder")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        future = pool.submit(append)
        wait_until_blocked(other)
        time.sleep(0.05)
        row = other.execute(
            "SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint)"
        ).fetchone()
        assert row is not None
        released_us.append(row[0])
        other.commit()
        appended = future.result(10)
    assert appended.head.recorded_at_us >= released_us[0]
    assert verify.verify(store).ok


def test_recorded_time_does_not_go_back_with_the_servers_clock(
    store: sql.SqlStore, postgres_url: str
) -> None:
    """A head row from the future stands for a server whose clock was set back."""
    future_us = 4_000_000_000_000_000
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("UPDATE log_head SET recorded_at_us = %s", (future_us,))
    first = store.append([record("a", 1)], writer="w")
    second = store.append([record("a", 2)], writer="w")
    assert first.head.recorded_at_us == second.head.recorded_at_us == future_us


def test_a_predecessor_that_is_not_committed_yet_is_missing(
    store: sql.SqlStore, other: psycopg.Connection
) -> None:
    """Waiting for it would be a guess: it may be rolled back, and then there would be a gap."""
    other.execute(
        "WITH h AS (UPDATE log_head SET position = position + 1 RETURNING position) "
        "INSERT INTO log_event (position, stream, version, type, schema_version, occurred_at_us, "
        "recorded_at_us, actor, data, leaf) "
        "SELECT position, 'a', 1, 't', 1, 0, 0, 'n', '', '' FROM h"
    )
    with pytest.raises(port.GapError):
        store.append([record("a", 2)], writer="w", gapless=True)
    other.commit()
    assert store.append([record("a", 2)], writer="w", gapless=True).positions == (2,)


def test_waiting_too_long_for_the_head_row_is_unavailable_and_writes_nothing(
    store: sql.SqlStore, other: psycopg.Connection
) -> None:
    other.execute("UPDATE log_head SET holder = holder")
    with pytest.raises(port.LogUnavailableError) as caught:
        store.append([record("a", 1)], writer="w")
    assert caught.value.reason == "timeout"
    assert isinstance(caught.value.__cause__, sa.exc.DBAPIError)
    other.rollback()
    assert store.append([record("a", 1)], writer="w").positions == (1,)


def test_a_lost_connection_is_unavailable_and_the_next_call_works(
    store: sql.SqlStore, other: psycopg.Connection
) -> None:
    store.append([record("a", 1)], writer="w")
    other.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    with pytest.raises(port.LogUnavailableError) as caught:
        store.append([record("a", 2)], writer="w")
    assert caught.value.reason == "connection"
    assert store.append([record("a", 2)], writer="w").positions == (2,)


def test_a_server_that_is_not_there_is_unavailable(tmp_path) -> None:
    with pytest.raises(port.LogUnavailableError) as caught:
        log_open.open_store(f"postgresql://nobody@/none?host={tmp_path}", clock_us=lambda: 0)
    assert caught.value.reason == "connection"


def test_the_database_itself_keeps_author_and_approver_apart(
    store: sql.SqlStore, other: psycopg.Connection
) -> None:
    store.append([record("r", 1, actor="anna", counter_actor="bo")], writer="w")
    with pytest.raises(psycopg.errors.CheckViolation) as caught:
        other.execute("UPDATE log_event SET counter_actor = 'anna'")
    assert caught.value.diag.constraint_name == tables.TWO_PEOPLE


def test_a_head_row_behind_its_log_stops_appends_instead_of_looping(
    store: sql.SqlStore, postgres_url: str
) -> None:
    store.append(run("a", 1, 3), writer="w")
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("UPDATE log_head SET position = 1")
    with pytest.raises(port.LogUnavailableError) as caught:
        store.append(run("b", 1, 1), writer="w")
    assert caught.value.reason == "corrupt"


def test_an_append_is_one_statement_and_no_open_transaction(store: sql.SqlStore) -> None:
    seen: list[str] = []
    sa.event.listen(
        store.database.once, "before_cursor_execute", lambda *given: seen.append(given[2])
    )
    store.append(run("a", 1, 50), writer="w", epoch=0, gapless=True)
    assert len(seen) == 1
    with store.database.statement() as connection:
        state = connection.exec_driver_sql(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
            "AND state = 'idle in transaction'"
        ).scalar()
    assert state == 0


def test_arrays_arrive_as_they_were(other: psycopg.Connection) -> None:
    arrays.teach(other)
    columns = (
        ["a", "", "Zürich €", None],
        [b"", b"\x00\xff", b"x" * 70_000, b"{,}"],
        [0, -(2**31), 2**31 - 1, 7],
        [0, -(2**63), 2**63 - 1, 7],
    )
    makers = (arrays.texts, arrays.payloads, arrays.int4s, arrays.int8s)
    made = [make(values) for make, values in zip(makers, columns, strict=True)]
    found = other.execute("SELECT %s, %s, %s, %s", made).fetchone()
    assert found == columns
    kinds = other.execute("SELECT pg_typeof(%s)::text, pg_typeof(%s)::text", made[:2]).fetchone()
    assert kinds == ("text[]", "bytea[]")


def test_texts_are_stored_as_said_whatever_encoding_the_url_asks_for(
    store: sql.SqlStore, postgres_url: str
) -> None:
    more = "&" if "?" in postgres_url else "?"
    asked = f"{postgres_url}{more}client_encoding=latin1"
    with contextlib.closing(log_open.open_sql_store(asked, clock_us=lambda: 0)) as latin:
        latin.append([record("Zürich €", 1, actor="node:ä")], writer="w")
    (read,) = store.read(after=0)
    assert (read.stream, read.actor) == ("Zürich €", "node:ä")
    assert verify.verify(store).ok


def test_a_reading_transaction_sees_one_moment_and_cannot_write(store: sql.SqlStore) -> None:
    with store.database.reading() as connection:
        before = sql.head_of(connection)
        store.append(run("a", 1, 2), writer="w")
        assert sql.head_of(connection) == before
    with pytest.raises(port.LogUnavailableError) as caught, store.database.reading() as connection:
        connection.execute(sa.update(tables.LOG_HEAD).values(holder="x"))
    assert caught.value.reason == "read_only"


def test_other_tables_are_written_in_one_transaction(store: sql.SqlStore) -> None:
    row = {"view": "unit", "key": "u1", "position": 1, "data": "{}"}

    def fail_after_writing() -> None:
        with store.database.writing() as connection:
            connection.execute(sa.insert(tables.VIEW_ROW).values(row))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_after_writing()
    with store.database.writing() as connection:
        assert connection.execute(sa.select(tables.VIEW_ROW)).all() == []
        connection.execute(sa.insert(tables.VIEW_ROW).values(row))
    with store.database.reading() as connection:
        assert connection.execute(sa.select(tables.VIEW_ROW)).all() == [("unit", "u1", 1, "{}")]


def test_the_plain_scheme_opens_the_same_store(postgres_url: str) -> None:
    assert postgres_url.startswith("postgresql://")
    explicit = postgres_url.replace("postgresql://", "postgresql+psycopg://", 1)
    opened = log_open.open_store(explicit, clock_us=lambda: 0)
    assert isinstance(opened, postgres.PostgresStore)
    opened.close()


def test_pages_of_the_log_come_in_binary_form(store: sql.SqlStore) -> None:
    """As text, a payload comes at twice its size and is half of the time of a replay."""
    seen: dict[str, int] = {}

    def note(_connection: object, cursor: psycopg.Cursor, statement: str, *_: object) -> None:
        seen[statement] = int(cursor.format)

    store.append(run("s", 1, 3), writer="w")
    once = store.database.once
    sa.event.listen(once, "after_cursor_execute", note)
    store.read(after=0)
    store.read_stream("s")
    store.read_batches(after=0)
    sa.event.remove(once, "after_cursor_execute", note)
    of_rows = {statement: form for statement, form in seen.items() if "LIMIT" in statement}
    assert len(of_rows) == 3
    assert set(of_rows.values()) == {1}
