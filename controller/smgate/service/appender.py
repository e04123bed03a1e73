"""Owns appending what comes in from outside: under this process's name, and the leader hears of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from smgate.log import commit, port


class Appender:
    """A store to write to, together with whoever else writes now. `on_stored` is called after every append that wrote something."""

    def __init__(
        self, store: port.Store, *, writer: str, on_stored: Callable[[], object] = lambda: None
    ) -> None:
        self.store: Final = store
        self._together: Final = commit.GroupCommit(store, writer=writer)
        self._on_stored: Final = on_stored
        self.trouble: port.LogError | None = None
        """Why the last append failed, until one does not."""

    def append(self, records: Sequence[port.NewRecord], *, gapless: bool = False) -> port.Appended:
        """As `commit.GroupCommit.append`."""
        try:
            appended = self._together.append(records, gapless=gapless)
        except (port.LogUnavailableError, port.LogNotReadyError) as error:
            self.trouble = error
            raise
        self.trouble = None
        if appended.written:
            self._on_stored()
        return appended
