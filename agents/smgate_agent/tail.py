"""Follow one log through rotation and truncation, a bounded piece at a time.

A file that was cut and has grown again past the place of the last read has the same name, the same
inode and no smaller size: only the bytes before that place tell it apart. What was rotated since the
last look, also while the agent was away, is read first, the oldest first. Where that cannot be, since
it was removed, compressed or cut with no copy left, the piece that comes next says that some is lost.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from smgate_agent import log_files
from smgate_agent.log_files import Place

CHUNK_BYTES: Final = 256 << 10
"""Read at once; bounds memory and how long a stop signal waits."""

LEFT_MAX: Final = 64
"""Files whose ends are remembered; more than a rotation keeps."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Bytes read."""

    data: bytes
    fresh: bool
    """They do not follow the bytes before them in one file."""
    lost: bool = False
    """What came between was written and never read, as far as anybody can know."""
    rotated: bool = False
    """They follow the bytes before them across a rotation, so a line may go on in them."""


class Tail:
    """Reads what is new. `pattern` is a path, or a glob of which the newest file is followed."""

    def __init__(self, pattern: str, *, place: Place | None = None) -> None:
        self._files = log_files.LogFiles(pattern)
        self._resume = place
        self._file: IO[bytes] | None = None
        self._log: Path | None = None
        self._key: log_files.Key = (0, 0)
        self._offset = 0
        self._before = ""
        self._fresh, self._lost, self._rotated = True, False, False
        self._left: dict[log_files.Key, Place] = {}

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def place(self, *, behind_bytes: int = 0) -> Place | None:
        """Where the next read begins, or some bytes before that."""
        if self._file is None:
            return self._resume
        offset = max(0, self._offset - behind_bytes)
        return Place(
            device=self._key[0],
            inode=self._key[1],
            offset=offset,
            before=log_files.before(self._file, offset),
            written_ns=os.fstat(self._file.fileno()).st_mtime_ns,
        )

    def read(self) -> Piece:
        """The next bytes; empty when there is nothing new, or no file."""
        try:
            return self._read()
        except OSError:
            if self._file is not None:  # a disk in trouble: go on where this was
                self._resume = Place(
                    device=self._key[0],
                    inode=self._key[1],
                    offset=self._offset,
                    before=self._before,
                )
            self.close()
            return Piece(data=b"", fresh=True)

    def _read(self) -> Piece:
        if self._file is None and not self._open():
            return Piece(data=b"", fresh=self._fresh)
        data = self._more()
        if not data and self._replaced():
            data = self._more()  # what was written between that read and the rotation
            if not data and self._go_on():
                return self._read()
        told = Piece(data=data, fresh=self._fresh, lost=self._lost, rotated=self._rotated)
        self._fresh = self._lost = self._rotated = False
        return told

    def _more(self) -> bytes:
        assert self._file is not None
        size = os.fstat(self._file.fileno()).st_size
        cut = size > self._offset and log_files.before(self._file, self._offset) != self._before
        if size < self._offset or cut:
            self._go_on_in_copy()
        data = self._file.read(CHUNK_BYTES)
        if data:
            self._offset += len(data)
            self._before = log_files.before(self._file, self._offset)
        return data

    def _open(self) -> bool:
        resume, self._resume = self._resume, None
        if resume is None:
            newest = self._files.newest()
            if newest is not None:
                self._follow(newest, 0)
            return newest is not None
        seen = self._files.all()
        same = [one for one in seen if one.key == resume.key]
        for one in (*same, *seen):  # itself first, else a copy of it
            if one.holds(resume) or (one.key == resume.key and resume.offset == 0):
                self._follow(one, resume.offset)
                self._fresh = False
                return True
        since = [one for one in seen if self._files.may_follow(one, written_ns=resume.written_ns)]
        if not since:
            self._resume = resume  # nothing is there yet
            return False
        # Of a place that does not say when, all that was ever rotated would come after it.
        self._follow(since[0 if resume.written_ns else -1], 0)
        self._lost = True
        return True

    def _follow(self, seen: log_files.Seen, offset: int) -> None:
        file = seen.path.open("rb", buffering=0)
        self.close()
        self._log = seen.log
        file.seek(offset)
        status = os.fstat(file.fileno())
        self._file, self._key = file, (status.st_dev, status.st_ino)
        self._offset, self._before = offset, log_files.before(file, offset)
        self._fresh = True

    def _go_on_in_copy(self) -> None:
        """The file was cut in place: what was not read of it stands in a copy, or is lost."""
        assert self._file is not None
        here = Place(
            device=self._key[0], inode=self._key[1], offset=self._offset, before=self._before
        )
        copies = [one for one in self._files.all() if one.key != self._key and one.holds(here)]
        if copies and copies[0].size > self._offset:
            self._follow(copies[0], self._offset)
            self._fresh = False
            return
        self._file.seek(0)
        self._offset, self._before = 0, log_files.before(self._file, 0)
        self._fresh, self._rotated, self._lost = True, bool(copies), not copies

    def _replaced(self) -> bool:
        newest = self._files.newest()
        return newest is not None and newest.key != self._key

    def _go_on(self) -> bool:
        """To the file that was written next after this one, if there is one with something new."""
        assert self._file is not None
        status, here = os.fstat(self._file.fileno()), self.place()
        assert here is not None
        following = self._following(here)
        if following is None:
            return False
        # If this one is gone and is not all that was compressed since, others may be gone with it.
        since = self._files.compressed_since(status.st_mtime_ns)
        self._lost = self._lost or (status.st_nlink == 0 and since != 1)
        self._left[self._key] = here
        for key in list(self._left)[:-LEFT_MAX]:
            del self._left[key]
        left = self._left.pop(following.key, None)
        goes_on = left is not None and following.holds(left)
        self._rotated = following.log == self._log and not (self._lost or goes_on)
        self._follow(following, left.offset if left is not None and goes_on else 0)
        return True

    def _following(self, here: Place) -> log_files.Seen | None:
        for one in self._files.all():
            left = self._left.get(one.key)
            if one.key == self._key or one.size == 0 or one.holds(here):
                continue  # a copy holds nothing that this one does not
            if left is not None and left.offset == one.size and one.holds(left):
                continue
            if self._files.may_follow(one, written_ns=here.written_ns):
                return one
        return None
