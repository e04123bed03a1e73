"""Clock and id ports: where time and randomness come in."""

from __future__ import annotations

import secrets
import threading
import time
import uuid
from typing import Protocol


class Clock(Protocol):
    """Wall time for the log, and a way to wait that can be ended early."""

    def now_us(self) -> int:
        """Microseconds since the Unix epoch."""
        ...

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """Wait for the event, at most `timeout_s`. True if it was set."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_us(self) -> int:
        """Microseconds since the Unix epoch."""
        return time.time_ns() // 1000

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """Wait for the event, at most `timeout_s`."""
        return event.wait(timeout_s)


class ManualClock:
    """A clock that only the caller moves: scenarios and tests."""

    def __init__(self, now_us: int = 0) -> None:
        self._now_us = now_us

    def now_us(self) -> int:
        """The time last set."""
        return self._now_us

    def advance_to(self, now_us: int) -> None:
        """Move forward; never back."""
        self._now_us = max(self._now_us, now_us)

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """Return at once, as if the time had passed."""
        self.advance_to(self._now_us + int(timeout_s * 1_000_000))
        return event.is_set()


def new_id() -> str:
    """A random identifier."""
    return uuid.uuid4().hex


def new_token(prefix: str) -> str:
    """A 256-bit secret. The prefix says what it is, so that a leaked one can be recognised."""
    return f"{prefix}_{secrets.token_urlsafe(32)}"
