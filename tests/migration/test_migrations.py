"""The migrations and the tables of the code say the same; `check` says what keeps them apart."""

from __future__ import annotations

import concurrent.futures
import pathlib
import sqlite3

import alembic.autogenerate
import alembic.migration
import alembic.script
import pytest
import sqlalchemy as sa
from tests import cli_fakes
from tests.log_records import run

from smgate.log import database, migrate, open as log_open, port, tables


def plain_engine(url: str) -> sa.Engine:
    return sa.create_engine(database.normalize(url), poolclass=sa.NullPool)


def execute(url: str, *statements: str) -> None:
    engine = plain_engine(url)
    with engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)


def codes(url: str) -> list[str]:
    found = log_open.check(url)
    assert all(problem.sentence and problem.next_step for problem in found)
    return [problem.code for problem in found]


def shape(url: str) -> dict[str, object]:
    """What the database itself says about every table, in a form that can be compared."""
    inspector = sa.inspect(plain_engine(url))
    return {
        table: {
            "columns": [
                (one["name"], str(one["type"]), one["nullable"], one["default"])
                for one in inspector.get_columns(table)
            ],
            "primary": inspector.get_pk_constraint(table),
            "unique": sorted(map(repr, inspector.get_unique_constraints(table))),
            "checks": sorted(map(repr, inspector.get_check_constraints(table))),
            "indexes": sorted(map(repr, inspector.get_indexes(table))),
            "foreign": inspector.get_foreign_keys(table),
            "options": inspector.get_table_options(table),
        }
        for table in inspector.get_table_names()
        if table != "alembic_version"
    }


def test_there_is_one_line_of_migrations_named_in_order() -> None:
    script = alembic.script.ScriptDirectory.from_config(migrate.config())
    assert len(script.get_heads()) == 1
    revisions = [one.revision for one in script.walk_revisions()][::-1]
    assert revisions == [f"{number:04d}" for number in range(1, len(revisions) + 1)]
    for one in script.walk_revisions():
        name = pathlib.Path(one.path).name
        assert name.startswith((f"{one.revision}_expand_", f"{one.revision}_contract_"))
    assert revisions[-1] == migrate.newest()


def test_upgrading_from_nothing_gives_the_tables_of_the_code(bare_url: str) -> None:
    assert log_open.upgrade(bare_url) == migrate.newest()
    with plain_engine(bare_url).connect() as connection:
        context = alembic.migration.MigrationContext.configure(
            connection, opts={"compare_type": True}
        )
        assert alembic.autogenerate.compare_metadata(context, tables.METADATA) == []
    migrated = shape(bare_url)
    assert set(migrated) == set(tables.METADATA.tables)
    # Alembic does not compare CHECK constraints and table options; the database does.
    execute(bare_url, *(f"DROP TABLE {table}" for table in migrated))
    tables.METADATA.create_all(plain_engine(bare_url))
    assert shape(bare_url) == migrated


def test_a_migrated_database_has_no_problem_and_an_empty_log(bare_url: str) -> None:
    log_open.upgrade(bare_url)
    assert log_open.check(bare_url) == []
    store = log_open.open_store(bare_url, clock_us=lambda: 1)
    head = store.head()
    store.close()
    assert (head.position, head.chain, head.epoch) == (0, bytes(32), 0)
    assert len(head.incarnation) == 32


def test_upgrading_again_changes_nothing(bare_url: str) -> None:
    log_open.upgrade(bare_url)
    store = log_open.open_store(bare_url, clock_us=lambda: 1)
    before = store.head()
    log_open.upgrade(bare_url)
    assert store.head() == before
    store.close()


def test_upgrades_at_the_same_time_end_in_one_log(bare_url: str) -> None:
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        done = list(pool.map(log_open.upgrade, [bare_url] * 3))
    assert done == [migrate.newest()] * 3
    assert log_open.check(bare_url) == []


def test_two_logs_have_two_incarnations(tmp_path: pathlib.Path) -> None:
    heads = set()
    for name in ("one", "two"):
        url = f"sqlite:///{tmp_path / name}.db"
        log_open.upgrade(url)
        store = log_open.open_store(url, clock_us=lambda: 1)
        heads.add(store.head().incarnation)
        store.close()
    assert len(heads) == 2


def test_check_tells_a_database_that_was_never_migrated(bare_url: str) -> None:
    if bare_url.startswith("sqlite"):
        execute(bare_url, "CREATE TABLE somebody_elses (id INTEGER)")
    assert codes(bare_url) == ["not_migrated"]
    with pytest.raises(port.LogNotReadyError, match="smgate db upgrade"):
        log_open.open_store(bare_url, clock_us=lambda: 1)


def test_check_tells_a_database_of_a_newer_version(bare_url: str) -> None:
    log_open.upgrade(bare_url)
    execute(
        bare_url,
        "UPDATE alembic_version SET version_num = '9999'",
        "DROP TABLE log_format",  # one that says its level may be used: test_upgrades
    )
    assert codes(bare_url) == ["too_new"]
    with pytest.raises(port.LogTooNewError, match="9999"):
        log_open.upgrade(bare_url)
    assert codes(bare_url) == ["too_new"]


def test_check_tells_a_changed_schema_and_a_missing_head(bare_url: str) -> None:
    log_open.upgrade(bare_url)
    execute(bare_url, "DELETE FROM log_head")
    assert codes(bare_url) == ["head_missing"]
    execute(bare_url, "ALTER TABLE log_event ADD COLUMN note TEXT")
    assert codes(bare_url) == ["tables_differ"]


def test_check_tells_a_database_that_does_not_answer(tmp_path: pathlib.Path) -> None:
    missing = tmp_path / "no" / "such.db"
    assert codes(f"sqlite:///{missing}") == ["unavailable"]
    assert not missing.parent.exists()
    assert codes(f"postgresql://nobody@/none?host={tmp_path}") == ["unavailable"]
    garbage = tmp_path / "garbage.db"
    garbage.write_bytes(b"not a database, whatever its name says" * 100)
    assert codes(f"sqlite:///{garbage}") == ["unavailable"]


def test_check_tells_an_sqlite_file_without_a_write_ahead_log(tmp_path: pathlib.Path) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    log_open.upgrade(url)
    raw = sqlite3.connect(tmp_path / "log.db")
    raw.execute("PRAGMA journal_mode=DELETE")
    raw.close()
    assert codes(url) == ["journal_mode"]
    log_open.upgrade(url)
    assert codes(url) == []


def test_an_upgrade_that_cannot_write_says_so(tmp_path: pathlib.Path) -> None:
    with pytest.raises(port.LogUnavailableError) as caught:
        log_open.upgrade(f"sqlite:///{tmp_path}/no/such/folder/log.db")
    assert caught.value.reason == "io"
    assert not (tmp_path / "no").exists()


@pytest.mark.postgres
def test_a_failed_migration_leaves_nothing_behind(bare_postgres_url: str) -> None:
    execute(bare_postgres_url, "CREATE TABLE outbox_owner (id int)")  # The last one to be made.
    with pytest.raises(port.LogUnavailableError, match=r"occupied.*already exists"):
        log_open.upgrade(bare_postgres_url)
    inspector = sa.inspect(plain_engine(bare_postgres_url))
    assert inspector.get_table_names() == ["outbox_owner"]


def test_a_failed_migration_leaves_nothing_behind_on_sqlite(tmp_path: pathlib.Path) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    execute(url, "CREATE TABLE outbox_owner (id INTEGER)")
    with pytest.raises(port.LogUnavailableError, match=r"occupied.*already exists"):
        log_open.upgrade(url)
    assert sa.inspect(plain_engine(url)).get_table_names() == ["outbox_owner"]


def test_only_known_schemes_open() -> None:
    for url in ("mysql://x/y", "sqlite://", "sqlite:///:memory:"):
        with pytest.raises(ValueError, match=r"sqlite:///|scheme"):
            log_open.open_store(url, clock_us=lambda: 1)


def test_the_migrations_of_an_installed_wheel_come_before_a_repositorys(
    tmp_path: pathlib.Path,
) -> None:
    assert (migrate.location() / "versions").is_dir()
    package = tmp_path / "controller" / "smgate"
    package.mkdir(parents=True)
    with pytest.raises(port.LogNotReadyError, match="missing"):
        migrate.locate(package)
    for folder in (tmp_path / "migrations", package / "_migrations"):
        folder.mkdir()
        (folder / "env.py").touch()
        assert migrate.locate(package) == folder


DAMAGES = {
    "head_differs": (
        "UPDATE log_head SET position = position - 1",
        "UPDATE log_head SET position = position + 5",
        "UPDATE log_head SET chain = (SELECT root FROM log_batch)",
        "DELETE FROM log_batch",
        "DELETE FROM log_event WHERE position = 3",
    ),
    "level_missing": ("DELETE FROM log_format",),
    "tables_differ": ("DROP TABLE stream_floor",),
    "corrupt": ("INSERT INTO alembic_version VALUES ('0001')",),
    "revision_missing": ("DELETE FROM alembic_version",),
    "too_new": ("UPDATE log_format SET level = 99",),
}


@pytest.mark.parametrize("code", DAMAGES)
def test_check_tells_rows_with_which_nothing_can_be_appended(bare_url: str, code: str) -> None:
    """`serve` asks the same, and refuses: on a head that lies, each append would be another lie."""
    for number, statement in enumerate(DAMAGES[code]):
        if number:
            execute(
                bare_url,
                *(f"DROP TABLE {table}" for table in (*shape(bare_url), "alembic_version")),
            )
        log_open.upgrade(bare_url)
        store = log_open.open_store(bare_url, clock_us=lambda: 1)
        store.append(run("a", 1, 3), writer="w")
        store.close()
        assert codes(bare_url) == []
        execute(bare_url, statement)
        assert codes(bare_url) == [code], statement
        if number == 0:
            writes_nothing(bare_url)


def writes_nothing(url: str) -> None:
    """What is given on the database itself, and would only add to the harm."""
    with plain_engine(url).connect() as connection:
        before = connection.execute(sa.select(tables.LOG_HEAD)).all()
    folder = str(pathlib.Path(__file__).parent)
    for command in (
        ("db", "restore-begin", "--reason", "a backup"),
        ("log", "redact", "1", "--by", "anna", "--reason", "why", "--yes"),
        ("log", "archive", "--to", folder, "--keep-days", "7"),
    ):
        done = cli_fakes.Cli(None)(*command, "--database", url, "-o", "json")
        assert done.code in (1, 7), command
        assert done.error["code"] not in ("bug", "unknown_position", "nothing_to_archive"), command
        assert done.error["next_step"]
    with plain_engine(url).connect() as connection:
        assert connection.execute(sa.select(tables.LOG_HEAD)).all() == before


@pytest.mark.postgres
@pytest.mark.parametrize(
    "constraint", ["ck_log_event_two_people", "ck_log_head_one_row", "pk_log_batch", "pk_log_event"]
)
def test_check_tells_a_constraint_that_somebody_dropped(
    bare_postgres_url: str, constraint: str
) -> None:
    log_open.upgrade(bare_postgres_url)
    table = constraint.split("_", 1)[1].removesuffix("_two_people").removesuffix("_one_row")
    execute(bare_postgres_url, f"ALTER TABLE {table} DROP CONSTRAINT {constraint}")
    assert codes(bare_postgres_url) == ["tables_differ"]


def test_check_tells_a_constraint_that_is_missing_in_a_file(tmp_path: pathlib.Path) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    log_open.upgrade(url)
    raw = sqlite3.connect(tmp_path / "log.db")
    (made,) = raw.execute("SELECT sql FROM sqlite_master WHERE name = 'log_event'").fetchone()
    checked = made.index("CONSTRAINT ck_log_event_two_people")
    without = made[:checked].rstrip().rstrip(",") + "\n) STRICT"
    raw.executescript(f"DROP TABLE log_event; {without};")
    raw.close()
    assert codes(url) == ["tables_differ"]
