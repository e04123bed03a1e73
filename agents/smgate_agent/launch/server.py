"""The server a guard stands beside: whether it is there, how its gate is opened, how it is ended."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from smgate_agent.launch import link

ACTIVATE_PATH = "/gate/activate"
ACTIVATE_S = 2.0
END_S = 5.0
PAUSE_S = 0.1
STATE, PARENT, SESSION, STARTED = 0, 1, 3, 19
"""Places in `/proc/PID/stat` behind the command's name."""


def stat(pid: int) -> list[str] | None:
    """The fields behind the command's name, or None if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name is in parentheses and may hold anything.
    return text.rpartition(")")[2].split()


def started(pid: int) -> str | None:
    """When a process was started, by the kernel's count: with the number, which process it is."""
    fields = stat(pid)
    return None if fields is None else fields[STARTED]


@dataclass(frozen=True)
class Server:
    """The process the launch gate became, and where its gate is opened."""

    pid: int
    started: str | None
    host: str = ""
    port: int = 0

    def is_there(self) -> bool:
        """Whether this very process is still alive."""
        fields = stat(self.pid)
        return fields is not None and fields[STATE] not in "ZX" and fields[STARTED] == self.started

    def open_gate(self) -> bool:
        """Ask SGLang to go on; whether it took that."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        endpoint = link.Endpoint(url=f"http://{host}:{self.port}")
        try:
            link.exchange(endpoint, "POST", ACTIVATE_PATH, None, timeout_s=ACTIVATE_S)
        except link.ExchangeError:
            return False
        return True

    def end(self) -> None:
        """End it as a crash would, so that whoever restarts it does.

        Its children go first: as process 1 of a container it cannot be killed from here, and ends
        by itself when its schedulers are gone. A service manager takes SIGTERM for an orderly end.
        """
        for child in self._descendants():
            _kill(child)
        until = time.monotonic() + END_S
        while self.is_there() and time.monotonic() < until:
            time.sleep(PAUSE_S)
        if self.is_there():
            _kill(self.pid)

    def _descendants(self) -> list[int]:
        own = str(os.getsid(0))
        children: dict[int, list[int]] = {}
        for folder in Path("/proc").glob("[0-9]*"):
            fields = stat(int(folder.name))
            # Under process 1 the guards are its children too.
            if fields is not None and fields[SESSION] != own:
                children.setdefault(int(fields[PARENT]), []).append(int(folder.name))
        found, left = [], [self.pid]
        while left:
            below = children.pop(left.pop(), [])
            found += below
            left += below
        return found


def _kill(pid: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGKILL)
