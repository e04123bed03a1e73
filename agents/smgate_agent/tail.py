"""Follow one log file through rotation and truncation, a bounded piece at a time."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

CHUNK_BYTES: Final = 256 << 10
"""Read at once; bounds memory and how long a stop signal waits."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where reading stopped, so that a restarted agent does not read a long log again."""

    device: int
    inode: int
    offset: int


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Bytes read; `fresh` says that they do not follow the bytes before them."""

    data: bytes
    fresh: bool


class Tail:
    """Reads what is new. `pattern` is a path, or a glob of which the newest file is followed."""

    def __init__(self, pattern: str, *, place: Place | None = None) -> None:
        self._pattern = pattern
        self._resume = place
        self._file: IO[bytes] | None = None
        self._fresh = True

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def place(self, *, behind_bytes: int = 0) -> Place | None:
        """Where the next read begins, or some bytes before that."""
        if self._file is None:
            return None
        status = os.fstat(self._file.fileno())
        return Place(
            device=status.st_dev,
            inode=status.st_ino,
            offset=max(0, self._file.tell() - behind_bytes),
        )

    def read(self) -> Piece:
        """The next bytes; empty when there is nothing new, or no file."""
        try:
            return self._read()
        except OSError:
            self.close()
            return Piece(data=b"", fresh=True)

    def _read(self) -> Piece:
        if self._file is None and not self._open():
            return Piece(data=b"", fresh=self._fresh)
        assert self._file is not None
        if os.fstat(self._file.fileno()).st_size < self._file.tell():
            self._file.seek(0)  # cut in place, as copytruncate does
            self._fresh = True
        data = self._file.read(CHUNK_BYTES)
        if not data and self._replaced():
            self.close()
            return self._read() if self._open() else Piece(data=b"", fresh=True)
        fresh, self._fresh = self._fresh, False
        return Piece(data=data, fresh=fresh)

    def _open(self) -> bool:
        path = self._newest()
        if path is None:
            return False
        file = path.open("rb", buffering=0)
        status = os.fstat(file.fileno())
        self._fresh = True
        resume, self._resume = self._resume, None
        if (
            resume is not None
            and (resume.device, resume.inode) == (status.st_dev, status.st_ino)
            and resume.offset <= status.st_size
        ):
            file.seek(resume.offset)
            self._fresh = False
        self._file = file
        return True

    def _replaced(self) -> bool:
        assert self._file is not None
        path = self._newest()
        if path is None:
            return False
        status = os.fstat(self._file.fileno())
        newest = path.stat()
        return (newest.st_dev, newest.st_ino) != (status.st_dev, status.st_ino)

    def _newest(self) -> Path | None:
        path = Path(self._pattern)
        if not any(character in self._pattern for character in "*?["):
            return path if path.is_file() else None
        anchor = Path(path.anchor or ".")
        found = [
            match
            for match in anchor.glob(str(path.relative_to(path.anchor or ".")))
            if match.is_file()
        ]
        return max(found, key=lambda match: (match.stat().st_mtime_ns, match.name), default=None)
