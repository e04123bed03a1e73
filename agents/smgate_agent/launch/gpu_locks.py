"""One launch at a time checks a GPU; another one there does not wait for it.

A lock is an abstract socket address: it needs no file system, and it is gone with this process, or
when this process becomes the command. It holds among all that share a network namespace: the
containers of a multi-node server use the host's, and in one of its own a container has its GPUs for
itself.
"""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PREFIX = "\0smgate-gpu:"


@contextlib.contextmanager
def held(gpu_uuids: Iterable[str]) -> Iterator[bool]:
    """Within the block: whether all of these GPUs are this launch's to check."""
    with contextlib.ExitStack() as locks:
        try:
            for uuid in sorted(set(gpu_uuids)):
                lock = locks.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
                lock.bind(PREFIX + uuid)
        except OSError:
            locks.close()
            yield False
        else:
            yield True
