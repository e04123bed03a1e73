"""The agent's only clock: every other module is handed one."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Wall time for facts, monotonic time for deadlines."""

    def now_us(self) -> int:
        """Microseconds since the Unix epoch."""

    def monotonic_s(self) -> float:
        """Seconds that never go back."""


class SystemClock:
    """The machine's clock."""

    def now_us(self) -> int:
        """Microseconds since the Unix epoch."""
        return time.time_ns() // 1000

    def monotonic_s(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()


class ManualClock:
    """A clock that stands until it is moved; for tests and replays."""

    def __init__(self, *, now_us: int = 0) -> None:
        self._now_us = now_us
        self._start_us = now_us

    def now_us(self) -> int:
        """Microseconds since the Unix epoch, as last set."""
        return self._now_us

    def monotonic_s(self) -> float:
        """Seconds since this clock was made."""
        return (self._now_us - self._start_us) / 1e6

    def advance(self, seconds: float) -> None:
        """Move forward."""
        self._now_us += int(seconds * 1e6)
