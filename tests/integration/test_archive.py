"""The archive as people meet it: by the CLI and the API, with its files and without."""

from __future__ import annotations

import json
import pathlib

import pytest
from tests import cli_fakes, controller_bench as cb
from tests.contract import test_cut as cuts
from tests.integration import test_api_history as histories

from smgate.log import open as log_open
from smgate.service import cut, fold


@pytest.fixture
def url(tmp_path: pathlib.Path) -> str:
    """A log of a fleet, weeks ago; something was said since."""
    made = f"sqlite:///{tmp_path / 'log.db'}"
    log_open.upgrade(made)
    clock = cuts.ManualClock()
    store = log_open.open_store(made, clock_us=clock)
    cuts.fill(store, clock)
    clock.now_us += 30 * 86_400_000_000
    cuts.said_later(store)
    store.close()
    return made


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    made = tmp_path / "archive"
    made.mkdir()
    return made


def archive(url: str, folder: pathlib.Path, *more: str) -> cli_fakes.Result:
    cli = cli_fakes.Cli(None)
    return cli("log", "archive", "--database", url, "--to", str(folder), "-o", "json", *more)


def test_the_command_cuts_the_log_and_verify_reads_the_files(
    url: str, folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    would = json.loads(archive(url, folder, "--keep-days", "7", "--dry-run").out)
    assert (would["floor"], list(folder.iterdir())) == (73, [])
    done = json.loads(archive(url, folder, "--keep-days", "7").out)
    assert (done["floor_before"], done["floor"]) == (0, 73)
    assert [path.name for path in folder.iterdir()] == done["files"]
    cli = cli_fakes.Cli(None)
    verify = ("log", "verify", "--database", url, "-o", "json")
    verified = json.loads(cli(*verify).out)
    assert (verified["ok"], verified["position"]) == (True, done["head"])
    moved = tmp_path / "moved"
    folder.rename(moved)
    missing = cli(*verify)
    assert (missing.code, "archive_missing" in missing.err) == (5, True)
    assert json.loads(cli(*verify, "--archive", str(moved)).out)["ok"]
    again = archive(url, moved, "--before", "74")
    assert (again.code, "nothing_to_archive" in again.err) == (5, True)


def test_what_nodes_may_send_again_is_not_archived(url: str, folder: pathlib.Path) -> None:
    done = archive(url, folder, "--keep-days", "3")
    assert done.code != 0
    assert "keeps_too_little" in done.err
    assert list(folder.iterdir()) == []


PAST = (
    "units/n1/why?at={at}",
    "units/n1/history?since=1",
    "log/rulings",
    "events?after=0",
    "log/verify",
)
"""What is asked about the time before the floor."""


def asked(bench: cb.Bench, token: str, at: int) -> list[cb.Json]:
    found = [bench.get(token, path.format(at=at)) for path in PAST]
    del found[0]["arrived_later_looked_through"]  # The log is longer by the opening balance.
    return found


def test_people_are_answered_as_before_while_the_files_are_there(
    bench: cb.Bench, folder: pathlib.Path
) -> None:
    histories.two_servers(bench)
    alice, viewer = bench.token("operator", "alice"), bench.token("viewer")
    bench.command(alice, "freeze_declare", id="f1", idempotency_key="k")
    store = bench.service.store
    at, through = store.head().position - 9, store.head().position
    now = bench.get(viewer, "units/n1/why")
    before = asked(bench, viewer, at)
    done = cut.cut(store, folder, through=through)
    assert done.floor == through
    after = asked(bench, viewer, at)
    assert after[0] == before[0]
    assert after[1]["items"] == before[1]["items"]
    assert after[2]["items"] == before[2]["items"]
    assert after[3]["items"][:through] == before[3]["items"]
    assert (after[4]["ok"], after[4]["position"]) == (True, store.head().position)

    again = bench.command(alice, "freeze_declare", id="f1", idempotency_key="k")
    assert (again["changed"], again["repeated"]) == (True, True)
    moved = bench.refused(alice, "freeze_declare", id="f2", expected_position=at)
    assert moved[1]["error"]["code"] == "world_moved"

    with bench.service.folder.at_head() as fleet:
        assert fold.fleet_at(store, fleet.position) == fleet
    for name in done.files:
        (folder / name).unlink()
    bench.service.queries._past._last = None  # as in a process that has read none of them yet
    for path in PAST[:4]:
        refused = bench.http.get(f"/v1/{path.format(at=at)}", headers=cb.bearer(viewer))
        told = refused.json()["error"]
        assert (refused.status_code, told["code"]) == (409, "archive_missing"), path
        assert "SMGATE_ARCHIVE_DIR" in told["next_step"]
    still = bench.get(viewer, "units/n1/why")
    assert still.keys() == now.keys()
    assert still["unit"] == now["unit"]
