"""Writes a file whole or not at all: whatever ends in the middle, the old one is there or the new one.

What is written first is a file of its own beside it, made anew and never followed as a link: the
folder may be one that other users write to as well. Its name is of this very thread, so that what a
killed process left behind is replaced by the next one of that number and does not add up.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

PRIVATE = 0o600
PUBLIC = 0o644
"""For what is no secret: who may read it is decided by the folder."""


def replace(path: Path, data: bytes, *, mode: int = PRIVATE, durable: bool = True) -> None:
    """Put `data` in place of what the file holds.

    Args:
        path: the file; its folder is there.
        data: all of it.
        mode: permissions of the new file, whatever the umask is.
        durable: it survives the machine; without it, only the process.

    Raises:
        OSError: nothing was changed, and nothing is left behind.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_native_id()}.tmp")
    descriptor = _made(temporary)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    if durable:
        _sync(path.parent)


def _made(path: Path) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(path, flags, PRIVATE)
    except FileExistsError:
        path.unlink()  # the thing itself, not what a link points to
        return os.open(path, flags, PRIVATE)


def _sync(folder: Path) -> None:
    """Keep the new name. A folder that cannot be read, or synced, has the old file or the new one."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
