"""Owns how often the log says the same: once, then at most once a minute, with the count.

A database that is gone fails every request and every turn of every thread; lines by the thousand
would hide the first one, and fill a disk that may be full already.
"""

from __future__ import annotations

import logging
import threading
from typing import Final

import typing_extensions

AGAIN_S: Final = 60.0
KEPT_MAX: Final = 500
"""Different sentences that are remembered; one with an id in it is never the same twice."""


class Repeats(logging.Filter):
    """Lets a warning or an error through unless the same was said within the last minute."""

    def __init__(self, *, again_s: float = AGAIN_S) -> None:
        super().__init__()
        self._again_s: Final = again_s
        self._lock: Final = threading.Lock()
        self._said: dict[tuple[str, str], tuple[float, int]] = {}

    @typing_extensions.override
    def filter(self, record: logging.LogRecord) -> bool:
        """Decide about one line, and add how often it was left out."""
        if record.levelno < logging.WARNING:
            return True
        said = record.getMessage()
        key = (record.name, said)
        with self._lock:
            since, left_out = self._said.get(key, (float("-inf"), 0))
            if 0 <= record.created - since < self._again_s:
                self._said[key] = (since, left_out + 1)
                return False
            if len(self._said) >= KEPT_MAX:
                self._said.clear()
            self._said[key] = (record.created, 0)
        if left_out:
            record.msg, record.args = f"{said} ({left_out} more times since)", ()
        return True
