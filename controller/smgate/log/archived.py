"""Owns reading a log whose beginning is in the archive: the files first, then the database."""

from __future__ import annotations

import bisect
import dataclasses
import pathlib
from collections.abc import Iterator
from typing import Final

from smgate.log import archive, port, port_archive, walk


class ArchivedLog:
    """The reads of a store, with what stands below its floor read from the files of the archive.

    One file is kept in memory. Raises ArchiveMissingError and ArchiveBadError where one is needed and
    cannot be had; never less than was asked for.
    """

    def __init__(self, store: port.Store, *, folder: pathlib.Path | None = None) -> None:
        """`folder`: where all files are; None is where each was written."""
        self._store: Final = store
        self._folder: Final = folder
        self._last: tuple[port_archive.Segment, archive.Contents] | None = None

    def head(self) -> port.Head:
        """See `port.Store.head`."""
        return self._store.head()

    def read(self, *, after: int, limit: int = port.READ_LIMIT) -> list[port.StoredRecord]:
        """See `port.Store.read`."""
        try:
            return self._store.read(after=after, limit=limit)
        except port.BelowFloorError as error:
            floor = error.floor
        page: list[port.StoredRecord] = []
        for contents in self._contents(after + 1, floor):
            first = contents.records[0].position
            begin = max(0, after + 1 - first)
            page += contents.records[begin : begin + limit - len(page)]
            if len(page) == limit:
                return page
        return page + self._store.read(after=floor, limit=limit - len(page))

    def read_stream(
        self, stream: str, *, after_version: int = 0, limit: int = port.READ_LIMIT
    ) -> list[port.StoredRecord]:
        """See `port.Store.read_stream`."""
        try:
            return self._store.read_stream(stream, after_version=after_version, limit=limit)
        except port.BelowFloorError as error:
            floor = error.floor
        page: list[port.StoredRecord] = []
        for contents in self._contents(1, floor):
            page += [
                record
                for record in contents.records
                if record.stream == stream and record.version > after_version
            ]
            if len(page) >= limit:
                return page[:limit]
        version = page[-1].version if page else after_version
        left = limit - len(page)
        return page + self._store.read_stream(stream, after_version=version, limit=left)

    def read_batches(self, *, after: int, limit: int = port.READ_LIMIT) -> list[port.Batch]:
        """See `port.Store.read_batches`."""
        try:
            return self._store.read_batches(after=after, limit=limit)
        except port.BelowFloorError as error:
            floor = error.floor
        page: list[port.Batch] = []
        for contents in self._contents(after + 1, floor):
            page += [one for one in contents.batches if one.first_position > after]
            if len(page) >= limit:
                return page[:limit]
        return page + self._store.read_batches(after=floor, limit=limit - len(page))

    def position_at(self, *, recorded_at_us: int) -> int:
        """See `port.Store.position_at`."""
        try:
            return self._store.position_at(recorded_at_us=recorded_at_us)
        except port.BelowFloorError as error:
            floor = error.floor
        found = 0
        for segment in self._store.segments():
            if segment.last_position > floor:
                break
            if segment.recorded_at_us <= recorded_at_us:
                found = segment.last_position
                continue
            for one in self._read(segment).batches:
                if one.recorded_at_us <= recorded_at_us:
                    found = one.last_position
            break
        return found

    def _contents(self, position: int, floor: int) -> Iterator[archive.Contents]:
        """The files from the one that holds a position through the floor."""
        segments = [one for one in self._store.segments() if one.last_position <= floor]
        begin = bisect.bisect_left(segments, position, key=lambda one: one.last_position)
        for segment in segments[begin:]:
            yield self._read(segment)

    def _read(self, segment: port_archive.Segment) -> archive.Contents:
        if self._last is None or self._last[0] != segment:
            folder = self._folder or pathlib.Path(segment.folder)
            self._last = segment, archive.read(segment, folder)
        return self._last[1]


Log = port.Store | ArchivedLog
"""What can be read from its first record on, or from behind its floor."""


def walked(
    store: port.Store, past: ArchivedLog, watched: frozenset[int] = frozenset()
) -> walk.Walked | None:
    """What a verification has verified once it walked the archive; None for a log that was not cut.

    Args:
        store: the log.
        past: reads its archive.
        watched: positions whose chain is wanted.

    Raises:
        ArchiveMissingError, ArchiveBadError: a file cannot be had.
    """
    floor = store.head().floor_position
    if not floor:
        return None
    found = walk.walk(past, through=floor, watched=watched)
    if found.first_bad is None and found.place.chain != store.chain_at(floor):
        sentence = f"The archive does not lead to the chain that was noted at position {floor}."
        bad = walk.bad_row("archive_segment", floor, walk.Kind.CHANGED, sentence)
        return dataclasses.replace(found, first_bad=bad)
    # What the database has of batches begins behind the floor.
    return dataclasses.replace(found, place=dataclasses.replace(found.place, batch=floor))
