"""Heads of the controller's log, kept on this node: out of reach of whoever can write to that log.

Every answer to facts names one. A few of each day are enough: a log that was rewritten or cut at any
place before a head does not lead through it. `smgate log verify --against` reads the file.
"""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Final

from smgate.wire import facts
from smgate_agent import clock, files
from smgate_agent.launch import whole_file

HEADS_FILE: Final = "log-heads.txt"
LINES_MAX: Final = 60
"""The first and the newest of thirty days on which facts were sent."""
EVERY_US: Final = 60_000_000
"""The newest is written this often at most: a head that is a minute old is as good a witness."""


class Witness:
    """The file of heads, one a line: POSITION:CHAIN and when this node was told it."""

    def __init__(self, state_dir: Path, *, clock_: clock.Clock) -> None:
        self._path = state_dir / HEADS_FILE
        self._clock = clock_
        self._kept_us: int | None = None

    def keep(self, head: facts.ChainHead) -> None:
        """Write a head down. Never fails: facts go on without it."""
        now_us = self._clock.now_us()
        if self._kept_us is not None and 0 <= now_us - self._kept_us < EVERY_US:
            return
        self._kept_us = now_us
        told = _time(now_us)
        lines = self._lines()
        today = [line for line in lines if line.partition(" ")[2][:10] == told[:10]]
        if len(today) > 1:
            lines.remove(today[-1])  # The first of a day stays.
        lines = [*lines, f"{head.position}:{head.chain} {told}"][-LINES_MAX:]
        try:
            whole_file.replace(self._path, "".join(f"{one}\n" for one in lines).encode())
        except OSError:
            return

    def _lines(self) -> list[str]:
        try:
            return files.read_bounded(self._path).decode().splitlines()
        except (OSError, UnicodeDecodeError):
            return []


def _time(at_us: int) -> str:
    at = datetime.datetime.fromtimestamp(max(0, at_us) // 1_000_000, datetime.UTC)
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")
