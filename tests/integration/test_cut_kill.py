"""A cut killed by SIGKILL again and again over one log, and gone on with: nothing is lost, nothing lies."""

from __future__ import annotations

import collections
import contextlib
import gzip
import hashlib
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import msgspec
import sqlalchemy as sa
from tests.contract import test_cut as cuts

from smgate.log import archive, archived, open as log_open, port, sql, tables, verify
from smgate.service import openings

KILLS = 21
STEP = cuts.BATCH
"""Positions that each round wants cut beyond the one before."""
WAIT_S = 30
HERE = pathlib.Path(__file__).parent


class Cutter:
    """The cutting process, read line by line as it speaks."""

    def __init__(self, url: str, folder: pathlib.Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "log_cutter.py"), url, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            text=True,
            bufsize=1,
        )
        self.spent_s = 0.0
        """What the last cut that was left alone took."""

    def cut(self, through: int, kill_after_s: float | None = None) -> bool:
        """Cut as far as that, or be killed so long after the beginning; True if it was killed."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{through}\n")
        pid, done, begun_at = 0, False, 0.0
        while True:
            word, _, rest = self.process.stdout.readline().strip().partition(" ")
            if word == "pid":
                pid = int(rest)
            elif word == "begun":
                begun_at = time.monotonic()
            elif word == "done":
                done = True
                self.spent_s = time.monotonic() - begun_at
            elif word == "dead":
                assert done or int(rest) == signal.SIGKILL, "it ended by something else"
                return not done
            assert word in ("pid", "begun", "done"), word
            if pid and begun_at and not done and kill_after_s is not None:
                time.sleep(kill_after_s)
                with contextlib.suppress(ProcessLookupError):  # It was faster.
                    os.kill(pid, signal.SIGKILL)
                kill_after_s = None

    def close(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=WAIT_S)


def forget_the_lease(store: sql.SqlStore) -> None:
    """Ten minutes go by."""
    with store.database.writing() as connection:
        connection.execute(sa.update(tables.LEASE).values(expires_at_us=1))


def stage(store: sql.SqlStore) -> str:
    """How far the cut that was killed had come."""
    head = store.head()
    segments = store.segments()
    if head.floor_position and below(store):
        return "floor raised, not all deleted"
    if segments and segments[-1].last_position > head.floor_position:
        begins = openings.load(store, segments[-1].last_position)
        return "files listed" if begins is None else "opening recorded"
    return "before the first file, or after the end"


def below(store: sql.SqlStore) -> int:
    with store.database.statement() as connection:
        first = connection.execute(sa.select(sa.func.min(tables.LOG_EVENT.c.position))).scalar()
    return int(first or 0) <= store.head().floor_position


def told(path: pathlib.Path) -> list[tuple[int, str, int, str]]:
    """Position, stream, version and leaf of every record of a file, as anybody would read it."""
    lines = [msgspec.json.decode(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    found, position = [], 0
    for one in lines[1:]:
        if "batch" in one:
            position = one["batch"]
        else:
            found.append((position, one["stream"], one["version"], one["leaf"]))
            position += 1
    return found


def test_a_cut_killed_at_random_moments_is_gone_on_with(
    database_url: str, tmp_path: pathlib.Path
) -> None:
    log_open.upgrade(database_url)
    folder = tmp_path / "archive"
    folder.mkdir()
    store = log_open.open_sql_store(database_url, clock_us=lambda: time.time_ns() // 1_000)
    cuts.fill(store)
    for number in range(STEP * 3 * KILLS):
        cuts.said_later(store, f"later-{number}")
    original = store.read(after=0, limit=10_000)
    rng = random.Random(20_261_130)
    stages: collections.Counter[str] = collections.Counter()
    cutter = Cutter(database_url, folder)
    try:
        assert not cutter.cut(STEP)
        through = STEP
        while stages.total() < KILLS:
            through = min(through + STEP, len(original) - 1)
            if cutter.cut(through, kill_after_s=rng.uniform(0.0, cutter.spent_s)):
                stages[stage(store)] += 1
                if rng.random() < 0.3:
                    whole(store, folder, original)
                    forget_the_lease(store)
                    cutter.cut(through)  # Left alone: what it takes grows with the log.
            forget_the_lease(store)
        assert not cutter.cut(through + 1)
    finally:
        cutter.close()
    print(f"killed at {dict(stages)}")
    whole(store, folder, original)
    assert store.head().floor_position == through + 1
    assert not below(store)
    cuts.decides_the_same(cuts.begun(store), cuts.whole(store, folder))
    store.close()


def whole(store: sql.SqlStore, folder: pathlib.Path, original: list[port.StoredRecord]) -> None:
    """Every record is where it was, and no file says anything else of the log."""
    past = archived.ArchivedLog(store, folder=folder)
    found, at = [], 0
    while page := past.read(after=at):
        found += page
        at = page[-1].position
    assert found[: len(original)] == original
    assert [one.type for one in found[len(original) :]].count("opening_recorded") == (
        len(found) - len(original)
    )
    begun = archived.walked(store, past)
    assert verify.verify(store, begun=begun).ok
    listed = {one.name: one for one in store.segments()}
    for path in folder.glob("*.gz"):
        if path.name in listed:
            data = path.read_bytes()
            assert hashlib.sha256(data).hexdigest() == listed[path.name].sha256
            archive.read(listed[path.name], folder)
        truly = {(one.position, one.stream, one.version, one.leaf.hex()) for one in original}
        assert set(told(path)) <= truly
