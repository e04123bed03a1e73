"""The file `status.json`: what the resident agent sees, for `smgate-agent status`."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Final

import msgspec

from smgate_agent import clock, news
from smgate_agent.launch import whole_file

STATUS_FILE: Final = "status.json"
_PERIOD_S: Final = 30.0
"""It is written when it changes, and this often besides, so that its age says something."""


class StatusFile:
    """Writes it. Tried, never needed: a full disk costs the file and is said once."""

    def __init__(self, state_dir: Path, *, clock_: clock.Clock, news_: news.News) -> None:
        self._path = state_dir / STATUS_FILE
        self._clock = clock_
        self._news = news_
        self._written = b""
        self._due_s = 0.0

    def write(self, status: dict[str, Any]) -> None:
        """Take how things stand."""
        now_s, encoded = self._clock.monotonic_s(), msgspec.json.encode(status)
        if encoded == self._written and now_s < self._due_s:
            return
        self._written, self._due_s = encoded, now_s + _PERIOD_S
        whole = {"written_at_us": self._clock.now_us(), "status": msgspec.Raw(encoded)}
        try:
            whole_file.replace(
                self._path, msgspec.json.encode(whole), mode=whole_file.PUBLIC, durable=False
            )
        except OSError as exc:
            said = f"Cannot write the status file: {exc}."
            self._news.say("status file", said, level=logging.WARNING)
        else:
            self._news.forget("status file")
