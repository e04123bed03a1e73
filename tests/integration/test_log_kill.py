"""A writer killed by SIGKILL, twenty times at random moments, loses nothing it acknowledged."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import random
import select
import signal
import subprocess
import sys
import time
from typing import Any

from tests.log_records import record, run

from smgate.log import open as log_open

KILLS = 20
HERE = pathlib.Path(__file__).parent


class Writer:
    """The writing process, read line by line as it speaks."""

    def __init__(self, url: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "log_writer.py"), url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert self.process.stdout is not None
        self._out = self.process.stdout.fileno()
        self._rest = b""
        self.acknowledged: list[str] = []

    def lines(self, until: float) -> list[str]:
        """The whole lines that arrive before `until`; none when it is over."""
        while True:
            left = until - time.monotonic()
            ready, _, _ = select.select([self._out], [], [], max(0.0, left))
            if not ready:
                return []
            got = os.read(self._out, 1 << 16)
            assert got, "the writing process ended by itself"
            *whole, self._rest = (self._rest + got).split(b"\n")
            if whole:
                return [line.decode() for line in whole]

    def round(self, seed: int, wait_s: float) -> int:
        """Let a child write, kill it `wait_s` after its first answer; how many it gave."""
        assert self.process.stdin is not None
        before = len(self.acknowledged)
        self.process.stdin.write(f"{seed}\n".encode())
        self.process.stdin.flush()
        pid, kill_at, deadline = None, None, time.monotonic() + 20
        while True:
            now = time.monotonic()
            assert now < deadline, f"round {seed} did not end: {self.acknowledged[-3:]}"
            if kill_at is not None and now >= kill_at and pid is not None:
                os.kill(pid, signal.SIGKILL)
                kill_at = None
            for line in self.lines(deadline if kill_at is None else kill_at):
                word, _, rest = line.partition(" ")
                if word == "pid":
                    pid = int(rest)
                elif word == "dead":
                    assert os.WTERMSIG(int(rest)) == signal.SIGKILL, "it died of something else"
                    return len(self.acknowledged) - before
                else:
                    assert word == "ack", line
                    self.acknowledged.append(line)
                    if len(self.acknowledged) == before + 1:
                        kill_at = time.monotonic() + wait_s

    def close(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=10)


def judge(url: str, acknowledged: pathlib.Path) -> dict[str, Any]:
    checked = subprocess.run(
        [sys.executable, str(HERE / "log_checker.py"), url, str(acknowledged)],
        capture_output=True,
        check=True,
        timeout=60,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    return json.loads(checked.stdout)


def test_twenty_kills_lose_nothing_acknowledged_and_write_nothing_twice(
    database_url: str, tmp_path: pathlib.Path
) -> None:
    log_open.upgrade(database_url)
    rng = random.Random(20_261_130)
    writer = Writer(database_url)
    try:
        given = [writer.round(seed, rng.uniform(0.0, 0.25)) for seed in range(KILLS)]
    finally:
        writer.close()
    assert all(given), "every round acknowledged something before it was killed"
    record_of_acks = tmp_path / "acknowledged.txt"
    record_of_acks.write_text("\n".join(writer.acknowledged))
    verdict = judge(database_url, record_of_acks)
    assert verdict["lost"] == []
    assert verdict["twice"] == []
    assert verdict["streams_with_gaps"] == []
    assert verdict["positions_whole"]
    assert verdict["chain_ok"]
    assert verdict["verified"] == verdict["stored"] >= verdict["acknowledged"] > KILLS


def test_the_checker_sees_a_lost_record_and_one_written_twice(tmp_path: pathlib.Path) -> None:
    """What judges the kills must itself be able to fail."""
    url = f"sqlite:///{tmp_path / 'log.db'}"
    log_open.upgrade(url)
    store = log_open.open_sql_store(url, clock_us=lambda: 1)
    store.append([*run("s", 1, 2), record("other", 1, run("s", 2, 2)[0].data)], writer="w")
    digest = hashlib.sha256(run("s", 1, 1)[0].data).hexdigest()
    (tmp_path / "acks").write_text(f"ack s 1 1 {digest}\nack s 3 3 {digest}\nack s 2 2 {digest}")
    with store.database.writing() as connection:
        connection.exec_driver_sql("UPDATE log_event SET version = 7 WHERE stream = 'other'")
    store.close()
    verdict = judge(url, tmp_path / "acks")
    assert [line.split()[2] for line in verdict["lost"]] == ["3", "2"]
    assert len(verdict["twice"]) == 1
    assert verdict["streams_with_gaps"] == ["other"]
    assert not verdict["chain_ok"]
    assert verdict["stored"] == 3
