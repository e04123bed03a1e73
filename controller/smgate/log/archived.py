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

    def __init__(
        self,
        store: port.Store,
        *,
        folder: pathlib.Path | None = None,
        highest: dict[str, int] | None = None,
    ) -> None:
        """What is read below the floor of a store.

        Args:
            store: the log.
            folder: where all files are; None is where each was written.
            highest: gets the highest version of each stream in the files that are read.
        """
        self.highest: Final = highest
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

    def _note_versions(self, contents: archive.Contents) -> None:
        if self.highest is None:
            return
        for record in contents.records:
            if record.version > self.highest.get(record.stream, 0):
                self.highest[record.stream] = record.version

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
            self._note_versions(self._last[1])
        return self._last[1]


def _left_bad(store: port.Store, past: ArchivedLog) -> walk.BadRow | None:
    """The first row at or below the floor that is not what the archive has there.

    Nobody reads such a row, but an append would take it for what was written before.
    """
    after = walk.BEFORE_ALL
    while page := store.below_floor(after=after, limit=walk.PAGE):
        for one in page:
            there = past.read(after=one.position - 1, limit=1) if one.position > 0 else []
            if not there or there[0].position != one.position:
                sentence = f"A record stands at position {one.position}, where the log has none."
                return walk.bad_row(walk.EVENT, one.position, walk.Kind.INSERTED, sentence)
            if there[0] != one:
                sentence = f"The record at position {one.position} is not the one in the archive."
                return walk.bad_row(walk.EVENT, one.position, walk.Kind.CHANGED, sentence)
        after = page[-1].position
    return None


Log = port.Store | ArchivedLog
"""What can be read from its first record on, or from behind its floor."""


def _streams_bad(store: port.Store, highest: dict[str, int], floor: int) -> walk.BadRow | None:
    """The first stream that is not remembered as the archive has it.

    An append takes what is remembered for written: too much of it, and a fact is gone unseen.
    """
    left, after = dict(highest), ""
    while page := store.stream_floors(after=after, limit=walk.PAGE):
        for stream, version in page:
            if version != left.pop(stream, 0) and not _stands(store, stream, version):
                sentence = (
                    f"Version {version} is remembered of stream {stream!r}; the log has none."
                )
                return walk.bad_row("stream_floor", floor, walk.Kind.CHANGED, sentence)
        after = page[-1][0]
    for stream in left:
        sentence = f"Stream {stream!r} is in the archive, and nothing of it is remembered."
        return walk.bad_row("stream_floor", floor, walk.Kind.REMOVED, sentence)
    return None


def _stands(store: port.Store, stream: str, version: int) -> bool:
    """Whether it is behind the floor: of a cut that did not come to its end."""
    try:
        return bool(store.read_stream(stream, after_version=version - 1, limit=1))
    except port.BelowFloorError:
        return False


def walked(
    store: port.Store,
    past: ArchivedLog,
    watched: frozenset[int] = frozenset(),
    begun: walk.Walked | None = None,
) -> walk.Walked | None:
    """What a verification has verified once it walked the archive; `begun` if the log was not cut.

    Args:
        store: the log.
        past: reads its archive.
        watched: positions whose chain is wanted.
        begun: what was verified before; of less than the archive holds, it is walked anew.

    Raises:
        ArchiveMissingError, ArchiveBadError: a file cannot be had.
    """
    floor = store.head().floor_position
    if not floor:
        return begun
    found = begun
    if found is None or found.place.position < floor:
        found = walk.walk(past, through=floor, watched=watched)
    here = found.place.position <= floor
    if found.first_bad is None and here and found.place.chain != store.chain_at(floor):
        sentence = f"The archive does not lead to the chain that was noted at position {floor}."
        bad = walk.bad_row("archive_segment", floor, walk.Kind.CHANGED, sentence)
        return dataclasses.replace(found, first_bad=bad)
    if found.first_bad is None:
        found = dataclasses.replace(found, first_bad=_left_bad(store, past))
    if found.first_bad is None and past.highest is not None:
        bad_stream = _streams_bad(store, past.highest, floor)
        found = dataclasses.replace(found, first_bad=bad_stream)
    # What the database has of batches begins behind the floor.
    place = dataclasses.replace(found.place, batch=max(found.place.batch, floor))
    return dataclasses.replace(found, place=place)
