"""What only a real SQLite file shows: plans, other processes' locks, full disks."""

from __future__ import annotations

import pathlib
import sqlite3
import threading
from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import sqlite as sqlite_dialect
from tests.log_records import record, run

from smgate.log import open as log_open, port, sql, sqlite, tables, verify


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    # A name that a URI would read wrongly if it were not quoted.
    return tmp_path / "log 100%?#.db"


@pytest.fixture
def store(path: pathlib.Path) -> Iterator[sql.SqlStore]:
    url = str(sa.URL.create("sqlite", database=str(path)))
    log_open.upgrade(url)
    opened = log_open.open_sql_store(url, clock_us=lambda: 1)
    yield opened
    opened.close()


def test_the_file_is_the_one_that_was_named(store: sql.SqlStore, path: pathlib.Path) -> None:
    assert path.exists()
    store.append(run("a", 1, 1), writer="w")
    with sqlite3.connect(path) as raw:
        assert raw.execute("SELECT count(*) FROM log_event").fetchone() == (1,)
    raw.close()


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        (sql.READ, "SEARCH log_event USING INTEGER PRIMARY KEY (rowid>?)"),
        (
            sql.READ_STREAM,
            "SEARCH log_event USING INDEX sqlite_autoindex_log_event_1 (stream=? AND version>?)",
        ),
        (sql.READ_BATCHES, "SEARCH log_batch USING INTEGER PRIMARY KEY (rowid>?)"),
        (
            sql.STREAM_VERSION,
            "SEARCH log_event USING COVERING INDEX sqlite_autoindex_log_event_1 (stream=?)",
        ),
        (sql.POSITION_AT, "SCAN log_batch"),
    ],
    ids=["read", "read_stream", "read_batches", "stream_version", "position_at"],
)
def test_no_read_sorts_or_scans_what_an_index_gives(
    store: sql.SqlStore, statement: sa.Select[tuple[object, ...]], expected: str
) -> None:
    """A planner that took the other index and sorted would be fifteen times slower."""
    store.append(run("a", 1, 200) + run("b", 1, 200), writer="w")
    compiled = statement.compile(dialect=sqlite_dialect.dialect())
    values = {"after": 5, "limit": 10, "stream": "a", "at": 9}
    with store.database.statement() as connection:
        plan = connection.exec_driver_sql(
            f"EXPLAIN QUERY PLAN {compiled}",
            tuple(values.get(name, 1) for name in compiled.positiontup or ()),
        )
        steps = [row[3] for row in plan]
    # What the floor is comes from the one row of the head.
    assert [one for one in steps if "log_head" not in one and "SUBQUERY" not in one] == [expected]


def test_every_connection_is_durable_and_beside_a_write_ahead_log(store: sql.SqlStore) -> None:
    for kind in (store.database.writing, store.database.reading, store.database.statement):
        with kind() as connection:
            assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2
            assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
    with store.database.appending() as driver:
        assert driver.execute("PRAGMA synchronous").fetchone() == (2,)
        assert driver.in_transaction


@pytest.mark.parametrize("count", [1, 63, 64, 65, 191])
def test_batches_of_any_size_are_written_and_known_again_by_the_index(
    store: sql.SqlStore, count: int
) -> None:
    positions = tuple(range(1, count + 1))
    assert store.append(run("a", 1, count), writer="w", gapless=True).positions == positions
    again = store.append(run("a", 1, count + 1), writer="w", gapless=True)
    assert (again.positions, again.already) == ((*positions, count + 1), positions)
    looked_up = sqlite._repeated(sqlite._STANDING, "(?, ?)", min(count, sqlite.ROWS_MAX))
    with store.database.statement() as connection:
        plan = connection.exec_driver_sql(
            f"EXPLAIN QUERY PLAN {looked_up}", ("a", 1) * min(count, sqlite.ROWS_MAX)
        ).all()
    index = "sqlite_autoindex_log_event_1 (stream=? AND version=?)"
    assert plan[-1][3] == f"SEARCH e USING INDEX {index}"


def test_an_append_that_fails_leaves_its_transaction_behind(store: sql.SqlStore) -> None:

    def fail() -> None:
        with store.database.appending() as driver:
            driver.execute("UPDATE log_head SET position = 9")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert store.head().position == 0
    assert store.append(run("a", 1, 1), writer="w").positions == (1,)


def test_another_process_that_holds_the_write_lock_makes_it_busy_not_broken(
    store: sql.SqlStore, path: pathlib.Path
) -> None:
    with store.database.writing() as connection:
        # The one writer connection; so that the test need not wait the full time.
        connection.exec_driver_sql("PRAGMA busy_timeout=50")
    raw = sqlite3.connect(path, isolation_level=None)
    raw.execute("BEGIN IMMEDIATE")
    with pytest.raises(port.LogUnavailableError) as caught:
        store.append(run("a", 1, 1), writer="w")
    assert caught.value.reason == "busy"
    assert store.head().position == 0, "readers do not wait for a writer"
    raw.execute("ROLLBACK")
    raw.close()
    assert store.append(run("a", 1, 1), writer="w").positions == (1,)


def test_a_full_disk_is_unavailable_and_half_a_batch_is_not_written(store: sql.SqlStore) -> None:
    store.append(run("a", 1, 1), writer="w")
    with store.database.writing() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
    with store.database.writing() as connection:
        connection.exec_driver_sql(f"PRAGMA max_page_count={pages}")
    with pytest.raises(port.LogUnavailableError) as caught:
        store.append([record("a", 2, b"x" * 200_000)], writer="w")
    assert caught.value.reason == "disk_full"
    with store.database.writing() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count=1000000")
    assert store.head().position == 1
    assert store.append([record("a", 2, b"x" * 200_000)], writer="w").positions == (2,)
    assert verify.verify(store).ok


def test_a_file_that_is_not_there_is_not_created(tmp_path: pathlib.Path) -> None:
    with pytest.raises(port.LogUnavailableError) as caught:
        log_open.open_store(f"sqlite:///{tmp_path / 'none.db'}", clock_us=lambda: 1)
    assert caught.value.reason == "connection"
    assert list(tmp_path.iterdir()) == []


def test_values_of_another_type_are_refused_by_the_file_itself(
    store: sql.SqlStore, path: pathlib.Path
) -> None:
    store.append(run("a", 1, 1), writer="w")
    raw = sqlite3.connect(path, isolation_level=None)
    with pytest.raises(sqlite3.IntegrityError, match="cannot store TEXT value in BLOB"):
        raw.execute("UPDATE log_event SET data = 'text'")
    with pytest.raises(sqlite3.IntegrityError, match=tables.TWO_PEOPLE):
        raw.execute("UPDATE log_event SET counter_actor = actor")
    raw.close()


def test_a_reading_transaction_sees_one_moment(store: sql.SqlStore) -> None:
    with store.database.reading() as connection:
        before = sql.head_of(connection)
        store.append(run("a", 1, 2), writer="w")
        assert sql.head_of(connection) == before
    assert store.head().position == 2


def test_other_tables_are_written_in_turn_with_appends(store: sql.SqlStore) -> None:
    """Threads that write views and threads that append queue for one writer and none is lost."""

    def views(number: int) -> None:
        for step in range(20):
            with store.database.writing() as connection:
                connection.execute(
                    sa.insert(tables.VIEW_ROW).values(
                        view=f"v{number}", key=str(step), position=0, data="{}"
                    )
                )

    def appends(number: int) -> None:
        for version in range(1, 21):
            store.append([record(f"s{number}", version)], writer="w")

    threads = [
        threading.Thread(target=work, args=(number,))
        for work in (views, appends)
        for number in (1, 2, 3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert store.head().position == 60
    with store.database.reading() as connection:
        counted = sa.select(sa.func.count()).select_from(tables.VIEW_ROW)
        assert connection.execute(counted).scalar() == 60


@pytest.mark.parametrize("suffix", ["", "-wal"])
@pytest.mark.parametrize("replaced", [False, True], ids=["removed", "replaced"])
def test_nothing_is_acknowledged_once_the_file_was_taken_away(
    store: sql.SqlStore, path: pathlib.Path, suffix: str, *, replaced: bool
) -> None:
    store.append(run("a", 1, 1), writer="w")
    store.append(run("a", 2, 2), writer="w")
    file = path.with_name(path.name + suffix)
    kept = file.read_bytes()
    file.unlink()
    if replaced:
        file.write_bytes(kept)
    for _ in range(2):
        with pytest.raises(port.LogUnavailableError, match="removed or replaced") as refused:
            store.append(run("a", 3, 3), writer="w")
        assert refused.value.reason == "io"
    assert store.stream_version("a") == 2  # what is open can still be read


def test_what_is_erased_is_gone_from_the_write_ahead_log_or_it_is_said_that_it_is_not(
    store: sql.SqlStore, path: pathlib.Path
) -> None:
    store.append([record("a", 1, b"a token in a path")], writer="w")
    with store.database.statement() as connection:
        connection.exec_driver_sql("PRAGMA busy_timeout=50")  # So that the test need not wait.
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    assert reader.execute("SELECT count(*) FROM log_event").fetchone() == (1,)
    with pytest.raises(port.LogUnavailableError, match="another process reads") as caught:
        store.erase(1)
    assert (caught.value.reason, bool(caught.value.next_step)) == ("busy", True)
    reader.execute("ROLLBACK")
    reader.close()
    store.erase(1)
    for file in path.parent.glob(f"{path.name}*"):
        assert b"a token in a path" not in file.read_bytes(), file
