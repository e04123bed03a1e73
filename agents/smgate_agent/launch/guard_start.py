"""Starts the guard that stays beside the server until SGLang's gate is open.

It is a process of its own, of this interpreter, in a session of its own, and no child of what this
process becomes. It says when it is there, and does nothing before it is told to go: a launch gate
that dies in between leaves no guard for a server that does not wait.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

Json = dict[str, Any]

READY, GO = b"ready\n", b"go\n"
READY_S = 20.0
CODE = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from smgate_agent.launch import guard; guard.main()"
)


@dataclass(frozen=True)
class Started:
    """A guard that waits for its word."""

    _process: subprocess.Popen[bytes]

    def go(self) -> bool:
        """Let it begin; whether it heard that."""
        return self._say(GO)

    def cancel(self) -> None:
        """Let it end."""
        self._say(b"")

    def _say(self, word: bytes) -> bool:
        stream = self._process.stdin
        try:
            if stream is None:
                return False
            stream.write(word)
            stream.close()
        except OSError:
            return False
        return True


def start(told: Json, sockets: Mapping[str, socket.socket]) -> Started | None:
    """Start it with what it needs to know and the sockets that are its own from now on."""
    if not sys.executable:
        return None
    folder = str(Path(__file__).absolute().parents[2])
    descriptors = {name: one.fileno() for name, one in sockets.items()}
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", CODE, folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=tuple(descriptors.values()),
            start_new_session=True,
        )
    except (OSError, ValueError):
        return None
    line = json.dumps({**told, "sockets": descriptors}).encode() + b"\n"
    return Started(process) if _is_ready(process, line) else None


def _is_ready(process: subprocess.Popen[bytes], line: bytes) -> bool:
    if process.stdin is None or process.stdout is None:
        return False
    heard, until = b"", time.monotonic() + READY_S
    with contextlib.suppress(OSError), selectors.DefaultSelector() as selector:
        process.stdin.write(line)
        process.stdin.flush()
        selector.register(process.stdout, selectors.EVENT_READ)
        while not heard.endswith(READY) and selector.select(max(0.0, until - time.monotonic())):
            more = os.read(process.stdout.fileno(), len(READY))
            if not more:
                break
            heard += more
    ready = heard.endswith(READY)
    process.stdout.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        # What was started here has left the guard to itself and ended.
        process.wait(max(0.1, until - time.monotonic()))
    if not ready:
        process.kill()
        process.stdin.close()
    return ready
