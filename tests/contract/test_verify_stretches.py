"""A long log is verified by several processes, and a verification that was stopped goes on."""

from __future__ import annotations

import json
import multiprocessing
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest
import sqlalchemy as sa
from tests import cli_fakes
from tests.log_records import run

from smgate.log import (
    database,
    kept,
    open as log_open,
    port,
    sql,
    tables,
    verify,
    verify_progress,
    verify_workers,
    walk,
)

CLOCK_US = 1_764_480_000_000_000
BATCHES, EACH = 60, 5
STRETCH = 40
REACHED = 125  # Behind three stretches: each ends where a batch does.


@pytest.fixture
def url(tmp_path: pathlib.Path) -> str:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    log_open.upgrade(url)
    return url


@pytest.fixture
def store(url: str) -> Iterator[sql.SqlStore]:
    made = log_open.open_sql_store(url, clock_us=lambda: CLOCK_US)
    for first in range(1, BATCHES * EACH, EACH):
        made.append(run("a", first, first + EACH - 1), writer="w")
    yield made
    made.close()


def change(url: str, *statements: sa.Executable) -> None:
    engine = sa.create_engine(database.normalize(url), poolclass=sa.NullPool)
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(statement)


class StoppedError(Exception):
    pass


def stop_after(count: int, path: pathlib.Path) -> Callable[[walk.Walked], None]:
    """Writes the progress, and is killed behind the given stretch."""
    left = [count]

    def reached(walked: walk.Walked) -> None:
        verify_progress.save(path, walked)
        left[0] -= 1
        if not left[0]:
            raise StoppedError

    return reached


def stopped(store: port.Store, path: pathlib.Path) -> walk.Place:
    with pytest.raises(StoppedError):
        verify.verify(store, stretch=STRETCH, reached=stop_after(3, path))
    place = verify_progress.load(path)
    assert place is not None
    assert place.position == REACHED
    return place


class CountingReads:
    """A store that counts the records read from it."""

    def __init__(self, store: port.Store) -> None:
        self._store = store
        self.records = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def read(self, *, after: int, limit: int) -> list[port.StoredRecord]:
        found = self._store.read(after=after, limit=limit)
        self.records += len(found)
        return found


def test_processes_say_what_one_says(url: str, store: sql.SqlStore) -> None:
    def both() -> verify.VerifyReport:
        walker = verify_workers.walker(url, store, workers=2)
        heads = [verify.Kept(position=200, chain=store.read_batches(after=195)[0].chain)]
        report = verify.verify(store, kept=heads, stretch=STRETCH, walker=walker)
        assert report == verify.verify(store, kept=heads)
        return report

    whole = both()
    assert (whole.ok, whole.positions, whole.batches) == (True, BATCHES * EACH, BATCHES)
    event = tables.LOG_EVENT
    change(url, *(sa.delete(event).where(event.c.position == at) for at in (117, 250)))
    bad = both().first_bad
    assert bad is not None
    assert (bad.position, bad.kind) == (117, verify.Kind.REMOVED)


def test_a_worker_that_cannot_read_says_why(store: sql.SqlStore, tmp_path: pathlib.Path) -> None:
    walker = verify_workers.walker(f"sqlite:///{tmp_path / 'gone.db'}", store, workers=2)
    with pytest.raises(port.LogUnavailableError, match="unable to open"):
        verify.verify(store, stretch=STRETCH, walker=walker)


WORKING = """
from smgate.log import open as log_open, verify_workers, walk
import multiprocessing, sys, time
url = sys.argv[1]
walker = verify_workers.walker(url, log_open.open_store(url, clock_us=lambda: 1), workers=2)
walks = walker([(walk.BEGINNING, 5)] * 4, frozenset())
next(walks)
print(*(one.pid for one in multiprocessing.active_children()), flush=True)
time.sleep(600)
"""


def test_workers_end_with_whoever_began_them(url: str, store: sql.SqlStore) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", WORKING, url], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    workers = [int(one) for one in parent.stdout.readline().split()]
    assert workers
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 60
    while any(map(alive, workers)):
        assert time.monotonic() < deadline, "a worker waits for ever"
        time.sleep(0.05)


def alive(pid: int) -> bool:
    """Whether it runs; one that nobody has reaped yet does not."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_verification_that_was_stopped_goes_on(
    store: sql.SqlStore, tmp_path: pathlib.Path
) -> None:
    place = stopped(store, tmp_path / "progress")
    counting = CountingReads(store)
    begun = verify_progress.resume(counting, place, frozenset())  # type: ignore[arg-type]
    report = verify.verify(counting, begun=begun, stretch=STRETCH)  # type: ignore[arg-type]
    assert report == verify.verify(store)
    whole = CountingReads(store)
    verify.verify(whole, stretch=STRETCH)  # type: ignore[arg-type]
    assert 0 < counting.records < whole.records


@pytest.mark.parametrize("what", ["chain", "position", "batch", "recorded_at_us"])
def test_a_place_to_which_the_chain_does_not_lead_is_not_believed(
    store: sql.SqlStore, tmp_path: pathlib.Path, what: str
) -> None:
    place = stopped(store, tmp_path / "progress")
    other = {"chain": bytes(32), "position": 100, "batch": 101, "recorded_at_us": 7}[what]
    lying = walk.Place(
        **{name: getattr(place, name) for name in walk.Place.__slots__} | {what: other}
    )
    assert verify_progress.resume(store, place, frozenset()) is not None
    assert verify_progress.resume(store, lying, frozenset()) is None


def test_a_log_rewritten_meanwhile_is_walked_anew_and_found(
    url: str, store: sql.SqlStore, tmp_path: pathlib.Path
) -> None:
    """Whole in itself, so that only the place that was reached can show it."""
    progress = tmp_path / "progress"
    stopped(store, progress)
    rewritten = pathlib.Path(tmp_path / "log2.db")
    log_open.upgrade(f"sqlite:///{rewritten}")
    forged = log_open.open_sql_store(f"sqlite:///{rewritten}", clock_us=lambda: CLOCK_US)
    for first in range(1, BATCHES * EACH, EACH):
        forged.append(run("forged", first, first + EACH - 1), writer="w")
    forged.close()
    result = cli(f"sqlite:///{rewritten}", "--progress", str(progress), "-o", "json")
    assert result.code == 1
    told = json.loads(result.out)
    assert (told["first_bad"]["kind"], told["first_bad"]["position"]) == ("rewritten", REACHED)
    assert told["position"] == BATCHES * EACH, "all of it was walked again"
    assert progress.exists(), "it is the proof"


def cli(url: str, *options: str) -> cli_fakes.Result:
    return cli_fakes.Cli(None)("log", "verify", "--database", url, *options)


def test_the_command_goes_on_and_removes_what_it_needs_no_more(
    url: str, store: sql.SqlStore, tmp_path: pathlib.Path
) -> None:
    progress = tmp_path / "progress"
    stopped(store, progress)
    told = json.loads(cli(url, "--progress", str(progress), "-o", "json").out)
    assert (told["ok"], told["resumed_from"], told["position"]) == (True, REACHED, 300)
    assert not progress.exists()
    progress.write_text("no such file")
    result = cli(url, "--progress", str(progress))
    assert (result.code, progress.exists()) == (2, True)


def test_kept_heads_are_read_as_they_were_kept() -> None:
    chain = "ab" * 32
    acknowledged = {
        "wire_version": 1,
        "acknowledged_through": 4,
        "head": {"position": 12, "chain": chain},
    }
    lines = [
        json.dumps(acknowledged),
        json.dumps({"items": [{"sentence": f"seen at 13:{chain}"}]}),
        f"Nov 30 17:00:00 gpu-1 smgate-agent: head 14:{chain}, kept",
        f"15 {chain}",
        "",
        "nothing of that kind",
        f"16:{chain}ff",  # no chain: too long
    ]
    found, without = kept.read(lines)
    assert [(one.position, one.chain.hex(), one.line) for one in found] == [
        (12, chain, 1),
        (13, chain, 2),
        (14, chain, 3),
        (15, chain, 4),
    ]
    assert without == 2


def test_a_file_of_kept_heads_says_line_by_line_what_agrees(
    url: str, store: sql.SqlStore, tmp_path: pathlib.Path
) -> None:
    ends = {one.first_position + 4: one.chain.hex() for one in store.read_batches(after=0)}
    file = tmp_path / "heads"
    file.write_text(f"5:{ends[5]}\n300:{ends[300]}\n")
    good = cli(url, "--against", str(file), "-o", "json")
    assert good.code == 0
    assert [one["agrees"] for one in json.loads(good.out)["against"]] == [True, True]

    file.write_text(f"5:{ends[5]}\n10:{ends[5]}\n12:{ends[10]}\n900:{ends[300]}\n")
    bad = cli(url, "--against", str(file), "-o", "json")
    assert bad.code == 1
    told = json.loads(bad.out)
    assert [(one["line"], one["agrees"], one["kind"]) for one in told["against"]] == [
        (1, True, None),
        (2, False, "rewritten"),
        (3, False, "rewritten"),
        (4, False, "truncated"),
    ]
    assert (told["first_bad"]["kind"], told["first_bad"]["position"]) == ("rewritten", 10)

    file.write_text("no head here\n")
    assert cli(url, "--against", str(file)).code == 2
    assert cli_fakes.Cli(None)("log", "verify", "--against", str(file)).code == 2


def test_what_only_looks_like_a_head_is_none_and_breaks_nothing() -> None:
    """A file of heads is of anybody: notes, answers of other programs, half a line."""
    digest = "ab" * 32
    lines = [
        "[" * 100_000,
        '{"position": 3, "chain": "a1b2"}',
        json.dumps({"position": True, "chain": digest}),
        '{"position": 3, "chain": "no hex"}',
        '{"position": "3", "chain": null}',
        json.dumps([{"position": 7, "chain": digest.upper()}, {"position": 8}]),
        "9:" + digest.upper(),
    ]
    found, without = kept.read(lines)
    assert [(one.position, one.chain.hex(), one.line) for one in found] == [
        (7, digest, 6),
        (9, digest, 7),
    ]
    assert without == 5


def test_a_folder_is_no_file_of_progress(url: str, tmp_path: pathlib.Path) -> None:
    done = cli(url, "--progress", str(tmp_path))
    assert (done.code, "is no file of a verification" in done.err) == (2, True)


def test_a_worker_that_is_killed_is_told(url: str, store: sql.SqlStore) -> None:
    walks = verify_workers.walker(url, store, workers=2)([(walk.BEGINNING, 5)] * 4, frozenset())
    next(walks)
    for one in multiprocessing.active_children():
        one.kill()
    with pytest.raises(port.LogUnavailableError) as caught:
        list(walks)
    assert (caught.value.reason, "--workers" in caught.value.next_step) == ("worker_ended", True)
