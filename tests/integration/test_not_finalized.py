"""A log of an earlier release refuses what that release could not read; what it says to do is done."""

from __future__ import annotations

import pathlib
import re
import subprocess

import alembic.command
import pytest
import sqlalchemy as sa
from tests import cli_fakes, controller_process, given
from tests.contract import test_cut as cuts

from smgate.log import database, migrate, open as log_open


@pytest.fixture
def url(tmp_path: pathlib.Path) -> str:
    """A log that an earlier release began, with a unit that a rollout granted the target."""
    made = f"sqlite:///{tmp_path / 'log.db'}"
    (tmp_path / "log.db").touch()
    engine = sa.create_engine(database.normalize(made), poolclass=sa.NullPool)
    with engine.begin() as connection:
        alembic.command.upgrade(migrate.config(connection), "0001")
    log_open.upgrade(made)
    store = log_open.open_store(made, clock_us=lambda: 1_764_000_000_000_000)
    fleet = given.Fleet().enforce().qualified().granted("a", bake_s=10)
    store.append(cuts.as_records(fleet), writer="test")
    store.close()
    return made


def smgate(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(controller_process.SMGATE), *words], capture_output=True, text=True, check=False
    )


def test_what_the_refusal_of_a_revoke_says_is_done_word_for_word(
    url: str, tmp_path: pathlib.Path
) -> None:
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text(controller_process.issue_token(url, "--role", "admin", "--name", "anna"))
    words = ("rollout", "revoke", "r1", "--reason", "a test", "--yes", "--token-file", str(token))
    with controller_process.serving(url, tmp_path) as running:
        refused = smgate(*words, "--url", running.url)
        assert refused.returncode == 5, refused.stderr
        assert "grant_revoked" in refused.stderr
        assert running.stop() == 0
    told = re.search(r"`smgate (db finalize --database URL)`", refused.stderr)
    assert told is not None, refused.stderr
    typed = [word.replace("URL", url) for word in told[1].split()]
    asked = cli_fakes.Cli(None)(*typed, asked="y\n", terminal=True)
    assert asked.code == 0, asked.err
    with controller_process.serving(url, tmp_path) as running:
        revoked = smgate(*words, "--url", running.url)
        assert revoked.returncode == 0, revoked.stderr


def test_a_database_that_is_not_there_is_named_and_so_is_what_names_it(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Typed without one, it must not look as if the controllers' log had to be made."""
    monkeypatch.chdir(tmp_path)
    done = cli_fakes.Cli(None)("db", "finalize", "--yes")
    assert done.code != 0
    assert "sqlite:///smgate.db" in done.err
    assert "--database, SMGATE_DATABASE_URL" in done.err
