"""Files that are read with a limit, or held; `launch.whole_file` writes them."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import IO

READ_BYTES_MAX = 4 << 20
"""Larger than any config.json or state file; a bigger one is not what it says it is."""


class TooLargeError(OSError):
    """The file is larger than the reader accepts."""


def read_bounded(path: Path, *, bytes_max: int = READ_BYTES_MAX) -> bytes:
    """Read a regular file.

    Raises:
        OSError: it cannot be read, is no regular file, or is too large.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not a regular file")
    with path.open("rb") as file:
        data = file.read(bytes_max + 1)
    if len(data) > bytes_max:
        raise TooLargeError(f"{path} is larger than {bytes_max} bytes")
    return data


def hold(path: Path) -> IO[bytes] | None:
    """Lock a file for as long as it is open; None if another process holds it."""
    file = path.open("wb")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    return file
