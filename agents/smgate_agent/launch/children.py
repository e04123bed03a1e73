"""Runs child processes that may hang, crash or print anything, and leaves none behind."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from smgate_agent.launch import shapes

if TYPE_CHECKING:
    from collections.abc import Sequence

OUTPUT_BYTES_MAX = 1 << 20
REAP_S = 0.5
REAP_PAUSE_S = 0.005
MARK = "smgate-result "
"""Starts the one line of a child's output that is meant for the gate."""


@dataclass(frozen=True)
class Ended:
    """How a child ended. `returncode` is None if it had to be killed."""

    returncode: int | None
    output: str

    def result(self) -> dict[str, Any] | None:
        """The object in the last marked line, or None."""
        for line in reversed(self.output.splitlines()):
            if line.startswith(MARK):
                try:
                    value = shapes.parse(line[len(MARK) :])
                except shapes.MalformedError:
                    return None
                return value if isinstance(value, dict) else None
        return None


@dataclass
class Children:
    """The children that may be alive. `kill_all` leaves no orphan and no zombie to SGLang."""

    _alive: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _closed: bool = False

    def run(self, argv: Sequence[str], *, timeout_s: float) -> Ended:
        """Run to the end, to the limit of its output or of its time."""
        with self._lock:
            if self._closed:
                return Ended(returncode=None, output="")
            try:
                child = subprocess.Popen(
                    list(argv),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
            except (OSError, ValueError):
                return Ended(returncode=127, output="")
            self._alive.append(child)
        output = _read(child, time.monotonic() + timeout_s)
        returncode = child.returncode
        self._end(child)
        return Ended(returncode=returncode, output=output.decode(errors="replace"))

    def kill_all(self) -> None:
        """Kill what is left and start nothing more."""
        with self._lock:
            self._closed = True
            left = list(self._alive)
        for child in left:
            self._end(child)

    def _end(self, child: subprocess.Popen[bytes]) -> None:
        _kill_group(child)
        try:
            child.wait(timeout=REAP_S)
        except subprocess.TimeoutExpired:
            return  # stuck in the kernel: nothing can be done from here
        _reap_group(child.pid)
        with self._lock:
            if child in self._alive:
                self._alive.remove(child)


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        child.kill()


def _reap_group(group: int) -> None:
    """Take over the deaths of a child's own children, where they are ours now.

    That is so for process 1 of a container, whose command would keep them as zombies.
    """
    until = time.monotonic() + REAP_S
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < until:
            if os.waitpid(-group, os.WNOHANG) == (0, 0):
                time.sleep(REAP_PAUSE_S)


def reap_strangers() -> None:
    """Take over every death that nobody waits for: only process 1 is given such children."""
    if os.getpid() != 1:
        return
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


def _read(child: subprocess.Popen[bytes], until: float) -> bytes:
    """Read to the end of the output; `returncode` is set only if the child ended by itself."""
    stream = child.stdout
    if stream is None:
        return b""
    chunks: list[bytes] = []
    size = 0
    with stream, selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while size <= OUTPUT_BYTES_MAX:
            left = until - time.monotonic()
            if left <= 0 or not selector.select(left):
                return b"".join(chunks)
            chunk = os.read(stream.fileno(), 1 << 16)
            if not chunk:
                break
            chunks.append(chunk)
            size += len(chunk)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(timeout=max(0.05, until - time.monotonic()))
    return b"".join(chunks)
