"""A log of every revision there ever was is brought up with its records; a release can be put back."""

from __future__ import annotations

import json
import os
import pathlib
import sqlite3

import pytest
import sqlalchemy as sa
from tests import cli_fakes
from tests.log_records import run
from tests.migration import old_log

from smgate.log import codec, database, formats, migrate, open as log_open, port, sql, verify
from smgate.service import fold

HERE = pathlib.Path(__file__).parent
REVISIONS = sorted(one.revision for one in migrate._script().walk_revisions())
LEVEL = sa.table("log_format", sa.column("level"))


def execute(url: str, statement: sa.Executable) -> None:
    engine = sa.create_engine(database.normalize(url), poolclass=sa.NullPool)
    with engine.begin() as connection:
        connection.execute(statement)


def opened(url: str) -> sql.SqlStore:
    return log_open.open_sql_store(url, clock_us=lambda: 1)


@pytest.mark.parametrize("revision", REVISIONS)
def test_a_log_of_any_revision_is_brought_up_and_replays_to_the_same(
    bare_url: str, revision: str
) -> None:
    old_log.make(bare_url, revision)
    assert log_open.upgrade(bare_url) == migrate.newest()
    assert log_open.check(bare_url) == []
    store = opened(bare_url)
    report = verify.verify(store)
    assert (report.ok, report.positions) == (True, 83)
    unit = fold.fleet_at(store, report.positions).units["two"]
    assert unit.override is not None
    decided = unit.override
    assert (decided.form, decided.value, decided.code) == (
        "append",
        "flashinfer_mxfp4",
        "granted",
    )
    assert store.append(run("new", 1, 2), writer="w").positions == (84, 85)
    assert verify.verify(store).ok
    store.close()


def test_the_first_level_is_what_the_first_revisions_release_wrote() -> None:
    lines = (HERE / "revision-0001.jsonl").read_text("utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    wrote = {(row["type"], row["schema_version"]) for row in rows if row["table"] == "log_event"}
    assert wrote == {(name, 1) for name in codec.NAMES} - formats.SINCE.keys()


def test_a_new_log_may_hold_all_and_an_old_one_what_it_was_made_for(
    bare_url: str, tmp_path: pathlib.Path
) -> None:
    old_log.make(bare_url, "0001")
    log_open.upgrade(bare_url)
    log_open.upgrade(bare_url)
    assert migrate.level(bare_url).level == 1
    fresh = f"sqlite:///{tmp_path / 'fresh.db'}"
    log_open.upgrade(fresh)
    assert migrate.level(fresh).level == formats.LEVEL
    log_open.finalize(bare_url)
    done = migrate.level(bare_url)
    assert (done.level, done.finalizing_enables) == (formats.LEVEL, ())
    store = opened(bare_url)
    assert store.above == frozenset()
    store.close()


def test_the_release_before_goes_on_until_the_log_is_finalized(bare_url: str) -> None:
    """A newer release added to the tables. This one, put back, is the release before it."""
    old_log.make(bare_url, migrate.newest())
    execute(bare_url, sa.text("ALTER TABLE log_event ADD COLUMN of_tomorrow TEXT"))
    execute(bare_url, sa.text("UPDATE alembic_version SET version_num = '9999'"))
    assert log_open.upgrade(bare_url) == "9999"
    assert log_open.check(bare_url) == []
    store = opened(bare_url)
    assert store.append(run("new", 1, 1), writer="w").positions == (84,)
    store.close()

    execute(bare_url, sa.update(LEVEL).values(level=formats.LEVEL + 1))
    assert [one.code for one in log_open.check(bare_url)] == ["too_new"]
    for refused in (log_open.upgrade, log_open.finalize, opened):
        with pytest.raises(port.LogTooNewError, match=f"level {formats.LEVEL + 1}"):
            refused(bare_url)


def test_a_log_without_a_level_is_not_opened(bare_url: str) -> None:
    log_open.upgrade(bare_url)
    execute(bare_url, sa.delete(LEVEL))
    with pytest.raises(port.LogNotReadyError):
        opened(bare_url)


def test_an_sqlite_file_is_copied_before_it_is_changed(tmp_path: pathlib.Path) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    old_log.make(url, "0001")
    log_open.upgrade(url)
    copy = migrate.backup_of(url)
    assert copy == tmp_path / f"log.db.before-{migrate.newest()}"
    before = sqlite3.connect(copy)
    assert before.execute("SELECT version_num FROM alembic_version").fetchall() == [("0001",)]
    assert before.execute("SELECT count(*) FROM log_event").fetchone() == (83,)
    before.close()
    copy.unlink()
    log_open.upgrade(url)
    log_open.upgrade(f"sqlite:///{tmp_path / 'new.db'}")
    assert not list(tmp_path.glob("*.before-*")), "nothing to change, nothing to copy"


def test_where_the_copy_cannot_be_made_nothing_is_changed(tmp_path: pathlib.Path) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    old_log.make(url, "0001")
    (tmp_path / f"log.db.before-{migrate.newest()}.new").mkdir()
    with pytest.raises(port.LogUnavailableError):
        log_open.upgrade(url)
    assert [one.code for one in log_open.check(url)] == ["behind"]


def test_the_commands_say_the_level_and_raise_it(tmp_path: pathlib.Path) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    old_log.make(url, "0001")
    cli = cli_fakes.Cli(None)
    upgraded = json.loads(cli("db", "upgrade", "--database", url, "-o", "json").out)
    assert upgraded["revision"] == migrate.newest()
    assert upgraded["backup"].endswith(f"log.db.before-{migrate.newest()}")
    checked = cli("db", "check", "--database", url)
    assert checked.code == 0
    assert "level 1" in checked.err
    told = json.loads(cli("db", "check", "--database", url, "-o", "json").out)["level"]
    assert (told["level"], told["newest"]) == (1, formats.LEVEL)
    assert "fact_redacted version 1" in told["finalizing_enables"]
    assert cli("db", "finalize", "--database", url, "-o", "json").error["code"] == "needs_yes"
    assert migrate.level(url).level == 1
    finalized = json.loads(cli("db", "finalize", "--yes", "--database", url, "-o", "json").out)
    assert (finalized["level_before"], finalized["level"]) == (1, formats.LEVEL)
    assert f"level {formats.LEVEL}, the newest" in cli("db", "check", "--database", url).err
    assert cli("db", "finalize", "--database", url).code == 0, "nothing to ask about any more"


@pytest.mark.postgres
def test_a_migration_that_cannot_get_its_lock_gives_up_and_leaves_all_as_it_was(
    bare_postgres_url: str,
) -> None:
    """Else every reader would queue behind it for as long as somebody holds a table."""
    old_log.make(bare_postgres_url, "0001")
    engine = sa.create_engine(database.normalize(bare_postgres_url), poolclass=sa.NullPool)
    with engine.begin() as holding:
        holding.execute(sa.text("SELECT version_num FROM alembic_version"))
        holding.execute(sa.text("SELECT FROM log_head FOR SHARE"))
        holding.execute(sa.text("SET LOCAL application_name = 'a forgotten psql'"))
        pid = holding.execute(sa.text("SELECT pg_backend_pid()")).scalar_one()
        with pytest.raises(port.LogUnavailableError) as caught:
            log_open.upgrade(bare_postgres_url)
    assert caught.value.reason == "timeout"
    assert f"Process {pid} of the server" in str(caught.value)
    assert "a forgotten psql, idle in transaction) has held" in str(caught.value)
    assert f"pg_terminate_backend({pid})" in str(caught.value)
    assert [one.code for one in log_open.check(bare_postgres_url)] == ["behind"]
    assert log_open.upgrade(bare_postgres_url) == migrate.newest()


def test_the_copy_is_for_nobody_who_may_not_read_the_file(tmp_path: pathlib.Path) -> None:
    """It holds what the file holds: facts, and the hashes of every token."""
    url = f"sqlite:///{tmp_path / 'log.db'}"
    old_log.make(url, "0001")
    (tmp_path / "log.db").chmod(0o640)
    log_open.upgrade(url)
    copy = migrate.backup_of(url)
    assert copy is not None
    assert copy.stat().st_mode & 0o777 == 0o640


def test_the_copy_is_a_log_that_can_be_put_back(tmp_path: pathlib.Path) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    old_log.make(url, "0001")
    log_open.upgrade(url)
    store = opened(url)
    store.append(run("new", 1, 2), writer="w")
    store.close()
    copy = migrate.backup_of(url)
    assert copy is not None
    for left in tmp_path.glob("log.db-*"):
        left.unlink()
    copy.replace(tmp_path / "log.db")
    assert [one.code for one in log_open.check(url)] == ["behind"]
    log_open.upgrade(url)
    store = opened(url)
    report = verify.verify(store)
    assert (report.ok, report.positions) == (True, 83)
    store.close()


def test_what_the_superuser_upgrades_the_service_can_use_afterwards(tmp_path: pathlib.Path) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    old_log.make(url, "0001")
    # Anybody else cannot give files away, and need not.
    owner = (12_345, 23_456) if os.geteuid() == 0 else (os.getuid(), os.getgid())
    os.chown(tmp_path / "log.db", *owner)
    log_open.upgrade(url)
    made = [path.stat() for path in tmp_path.glob("log.db*")]
    assert len(made) >= 3
    assert {(one.st_uid, one.st_gid) for one in made} == {owner}
    (tmp_path / "log.db.migrate.lock").unlink()
    (tmp_path / "log.db.migrate.lock").touch()  # as a release before left it
    log_open.upgrade(url)
    assert (tmp_path / "log.db.migrate.lock").stat().st_uid == owner[0]


def test_what_is_behind_a_link_is_not_given_to_whoever_owns_the_log(tmp_path: pathlib.Path) -> None:
    """The superuser upgrades in a folder of the service's, where the service may put what it likes."""
    url, victim = f"sqlite:///{tmp_path / 'log.db'}", tmp_path / "victim"
    old_log.make(url, "0001")
    victim.write_text("of the superuser")
    before = victim.stat()
    owner = (12_345, 23_456) if os.geteuid() == 0 else (os.getuid(), os.getgid())
    os.chown(tmp_path / "log.db", *owner)
    (tmp_path / "log.db.migrate.lock").symlink_to(victim)
    with pytest.raises(port.LogUnavailableError):
        log_open.upgrade(url)
    after = victim.stat()
    assert (after.st_uid, after.st_gid, after.st_mode) == (
        before.st_uid,
        before.st_gid,
        before.st_mode,
    )
    assert victim.read_text() == "of the superuser"
