"""The files that one server's log is made of: the one that is written, and what rotations left of it.

A rotation renames (`server.log.1`, `server.log-20261130`, `0.log.20261130-101500`), or copies and cuts
in place. So a file is known by its inode and, where it was copied, by the bytes before a place in it,
of which only a digest is kept: that may be stored where a piece of a log must not.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

COMPRESSED: Final = frozenset({".gz", ".bz2", ".xz", ".zst"})
"""What a rotation makes of a log that nobody writes any more; a glob may match it."""

BEFORE_BYTES: Final = 256
"""A log line has a time in it: this many bytes of two different logs are not the same."""

_ROTATED: Final = (".", "-")
"""What stands between a log's name and what a rotation adds to it."""

Key = tuple[int, int]
"""Device and inode."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where reading stopped, so that a restarted agent does not read a long log again."""

    device: int
    inode: int
    offset: int
    before: str
    """Digest of the bytes just before the offset."""
    written_ns: int = 0
    """When the file was written last, as it was then: what was rotated before is older."""

    @property
    def key(self) -> Key:
        """Which file."""
        return (self.device, self.inode)


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One file of the log, as it stood at one look."""

    path: Path
    log: Path
    """Whose it is: itself, or the log of which a rotation made it."""
    key: Key
    size: int
    written_ns: int

    @property
    def matches(self) -> bool:
        """It has the log's own name, not that of a rotated one."""
        return self.path == self.log

    def holds(self, place: Place) -> bool:
        """The bytes before the place are in this file, at the same offset: it is that log, or a copy."""
        if not 0 < place.offset <= self.size:
            return False
        try:
            with self.path.open("rb", buffering=0) as file:
                return before(file, place.offset) == place.before
        except OSError:
            return False


class LogFiles:
    """Finds them. `pattern` is a path, or a glob of which the newest file is the one written."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._is_glob = any(character in pattern for character in "*?[")

    def newest(self) -> Seen | None:
        """The file that is written now."""
        return max(self._matching(), key=_age, default=None)

    def all(self) -> list[Seen]:
        """Every file that can be read, the one written longest ago first."""
        return sorted(
            (one for one in self._family() if one.path.suffix not in COMPRESSED), key=_age
        )

    def may_follow(self, one: Seen, *, written_ns: int) -> bool:
        """Whether it may go on where another ended; a clock that was set back moves no plain path."""
        return one.written_ns >= written_ns or (one.matches and not self._is_glob)

    def compressed_since(self, written_ns: int) -> int:
        """How many that nobody can follow any more were made of what was written since."""
        return sum(
            one.written_ns >= written_ns for one in self._family() if one.path.suffix in COMPRESSED
        )

    def _paths(self) -> Iterator[Path]:
        path = Path(self._pattern)
        if not self._is_glob:
            yield path
            return
        anchor = Path(path.anchor or ".")
        yield from anchor.glob(str(path.relative_to(path.anchor or ".")))

    def _matching(self) -> Iterator[Seen]:
        for path in self._paths():
            if path.suffix not in COMPRESSED and (seen := _look(path, path)) is not None:
                yield seen

    def _family(self) -> Iterator[Seen]:
        told: set[Path] = set()
        names: dict[Path, set[str]] = {}
        for path in self._paths():
            if (seen := _look(path, path)) is not None:
                told.add(path)
                yield seen
            names.setdefault(path.parent, set()).add(path.name)
        for folder, logs in names.items():
            for entry in _entries(folder):
                whose = [
                    log for log in logs if entry.startswith(tuple(log + mark for mark in _ROTATED))
                ]
                if not whose or folder / entry in told:
                    continue
                if (seen := _look(folder / entry, folder / max(whose, key=len))) is not None:
                    yield seen


def before(file: IO[bytes], offset: int) -> str:
    """Digest of the bytes just before an offset."""
    start = max(0, offset - BEFORE_BYTES)
    return hashlib.sha256(os.pread(file.fileno(), offset - start, start)).hexdigest()[:16]


def _age(one: Seen) -> tuple[int, bool, str]:
    return (one.written_ns, one.matches, one.path.name)


def _entries(folder: Path) -> list[str]:
    with contextlib.suppress(OSError):
        return os.listdir(folder)  # noqa: PTH208  names alone: a folder of logs may be large
    return []


def _look(path: Path, log: Path) -> Seen | None:
    try:
        status = path.stat()
    except OSError:
        return None
    if not path.is_file():
        return None
    return Seen(
        path=path,
        log=log,
        key=(status.st_dev, status.st_ino),
        size=status.st_size,
        written_ns=status.st_mtime_ns,
    )
