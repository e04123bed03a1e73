"""Keep the C allocator small: the agent has a memory promise, and many threads that do little.

glibc gives every thread an arena of its own and keeps what is freed. Where the C library is
another one, nothing is done.
"""

from __future__ import annotations

import contextlib
import ctypes
from typing import Final

_M_ARENA_MAX: Final = -8
"""From malloc.h."""
_ARENAS: Final = 2


def limit_arenas() -> None:
    """Call before the first thread is started."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _ARENAS)


def trim() -> None:
    """Give freed memory back to the system; a few milliseconds."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
