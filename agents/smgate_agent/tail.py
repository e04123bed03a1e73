"""Follow one log file through rotation and truncation, a bounded piece at a time.

A file that was cut and has grown again past the place of the last read has the same name, the same
inode and no smaller size: only the bytes before that place tell it apart. They are compared as a
digest, because a digest may be kept where a piece of a log must not.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

CHUNK_BYTES: Final = 256 << 10
"""Read at once; bounds memory and how long a stop signal waits."""

COMPRESSED: Final = frozenset({".gz", ".bz2", ".xz", ".zst"})
"""What a rotation makes of a log that nobody writes any more; a glob may match it."""

BEFORE_BYTES: Final = 256
"""A log line has a time in it: this many bytes of two different logs are not the same."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where reading stopped, so that a restarted agent does not read a long log again."""

    device: int
    inode: int
    offset: int
    before: str
    """Digest of the bytes just before the offset."""


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
        self._before = ""

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
        offset = max(0, self._file.tell() - behind_bytes)
        return Place(
            device=status.st_dev,
            inode=status.st_ino,
            offset=offset,
            before=_before(self._file, offset),
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
        offset = self._file.tell()
        size = os.fstat(self._file.fileno()).st_size
        if size < offset or (size > offset and _before(self._file, offset) != self._before):
            self._file.seek(0)  # cut in place, as copytruncate does
            self._fresh = True
        data = self._file.read(CHUNK_BYTES)
        if data:
            self._before = _before(self._file, self._file.tell())
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
            and _before(file, resume.offset) == resume.before
        ):
            file.seek(resume.offset)
            self._fresh = False
        self._before = _before(file, file.tell())
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
            if match.suffix not in COMPRESSED and match.is_file()
        ]
        return max(found, key=lambda match: (match.stat().st_mtime_ns, match.name), default=None)


def _before(file: IO[bytes], offset: int) -> str:
    start = max(0, offset - BEFORE_BYTES)
    return hashlib.sha256(os.pread(file.fileno(), offset - start, start)).hexdigest()[:16]
