"""Ports of loopback for servers that are told theirs, because they start, end and start anew.

They lie below those that the kernel gives away by itself, and each process of a run in several
(pytest-xdist) has its own: so nobody takes one between its choice here and its server's start.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
from collections.abc import Iterable

FIRST, LAST = 10_000, 32_000
ROOM = 2_000
"""Left at the end of each share for the ports at a distance."""


def free_port(distances: Iterable[int] = ()) -> int:
    """A port nobody listens at, nor at any of these distances above it."""
    shares = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    share = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    width = (LAST - FIRST) // shares
    first = FIRST + share % shares * width
    while True:
        # Anew each time: another run of the suite may be on this machine.
        port = random.SystemRandom().randrange(first, first + width - ROOM)
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            for distance in (0, *distances):
                stack.enter_context(socket.create_server(("127.0.0.1", port + distance)))
            return port
