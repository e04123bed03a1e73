"""Owns walking a stretch of the log: every hash recomputed, the first row that disagrees named.

Stretches that meet say the same as one walk over all of them, so they can be walked by several
processes, or today and tomorrow. Memory does not grow with the length.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import struct
from collections.abc import Iterator
from typing import Final, Protocol

from smgate.log import batch, chain, port, redactions

PAGE = 2_000
BEFORE_ALL: Final = -(2**62)  # Rows that somebody put below position 1 are looked at too.
SWAP_SEARCH_MAX = 256  # Records in a batch up to which two exchanged rows are looked for.

HEAD: Final = "log_head"
EVENT: Final = "log_event"
BATCH: Final = "log_batch"


class Kind(enum.StrEnum):
    """What was done to the log."""

    CHANGED = "changed"
    REMOVED = "removed"
    INSERTED = "inserted"
    REORDERED = "reordered"
    ERASED = "redacted_without_record"
    """The payload is gone, and no `fact_redacted` of the log accounts for that."""
    TRUNCATED = "truncated"
    """The log ends before the head that was kept."""
    REWRITTEN = "rewritten"
    """The log is whole in itself but is not the one whose head was kept."""


class Rows(redactions.Streams, Protocol):
    """What is walked: a store, or a log whose beginning is in the archive."""

    def read(self, *, after: int, limit: int) -> list[port.StoredRecord]:
        """See `port.Store.read`."""
        ...

    def read_batches(self, *, after: int, limit: int) -> list[port.Batch]:
        """See `port.Store.read_batches`."""
        ...


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BadRow:
    """The first row that is wrong, and what is wrong with it."""

    table: str
    position: int
    last_position: int
    """Above `position` where only the batch is known, not which of its rows."""
    kind: Kind
    sentence: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The end of a batch: where one stretch ends and the next begins."""

    position: int = 0
    batch: int = BEFORE_ALL
    """First position of the batch that ends here."""
    chain: bytes = chain.GENESIS
    recorded_at_us: int = 0


BEGINNING: Final = Place()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Walked:
    """What a walk found: how far the log is as it was written, and the row that is not."""

    place: Place
    batches: int
    first_bad: BadRow | None
    met: dict[int, bytes]
    """The chain at each watched position at which a batch ends."""
    redacted: tuple[int, ...] = ()
    """Positions of the records read whose payload was erased, as the log says itself."""


def walk(
    store: Rows,
    *,
    start: Place = BEGINNING,
    through: int,
    watched: frozenset[int] = frozenset(),
    rows: bool = True,
) -> Walked:
    """Walk from a verified place through a position.

    Args:
        store: the log; it is only read.
        start: where to begin. What stands before is taken as verified.
        through: a position at which a batch ends, unless somebody changed that.
        watched: positions whose chain is wanted.
        rows: False leaves the records unread and recomputes the links of the chain alone.
    """
    going = _Walk(store, start=start, through=through, watched=watched, rows=rows)
    first_bad = going.first_bad()
    return Walked(
        place=going.place,
        batches=going.batches,
        first_bad=first_bad,
        met=dict(going.met),
        redacted=tuple(going.redacted),
    )


def bad_row(table: str, position: int, kind: Kind, sentence: str) -> BadRow:
    """One row that is wrong."""
    return BadRow(
        table=table, position=position, last_position=position, kind=kind, sentence=sentence
    )


class _Walk:
    """One pass. `place` and `batches` are what is verified so far."""

    def __init__(
        self,
        store: Rows,
        *,
        start: Place,
        through: int,
        watched: frozenset[int],
        rows: bool,
    ) -> None:
        self._store: Final = store
        self._through: Final = through
        self._watched: Final = watched
        after = start.position if start != BEGINNING else BEFORE_ALL
        self._records: Final = _Peekable(_records(store, after)) if rows else None
        self.place = start
        self.batches = 0
        self.met: Final[dict[int, bytes]] = {}
        self.redacted: Final[list[int]] = []

    def first_bad(self) -> BadRow | None:
        early = None if self._records is None else self._records.peek()
        if early is not None and early.position < 1:
            sentence = f"A record stands at position {early.position}, before the first."
            return bad_row(EVENT, early.position, Kind.INSERTED, sentence)
        for one in _batches(self._store, self.place.batch):
            if self.place.position >= self._through and one.first_position > self._through:
                # Of the next stretch, or appended since the head was read, or put there: whoever
                # walks on will tell.
                break
            bad = self._batch(one)
            if bad is not None:
                return bad
        return None

    def _batch(self, one: port.Batch) -> BadRow | None:
        first = self.place.position + 1
        if one.first_position > first:
            sentence = f"The batch that begins at position {first} is missing."
            return bad_row(BATCH, first, Kind.REMOVED, sentence)
        if one.first_position < first:
            sentence = f"A second batch claims position {one.first_position}."
            return bad_row(BATCH, one.first_position, Kind.INSERTED, sentence)
        if not self._links(one):
            sentence = "The batch row does not lead from the chain before it to its own chain."
            return bad_row(BATCH, first, Kind.CHANGED, sentence)
        bad = None if self._records is None else self._rows(one, self._records)
        if bad is None:
            self._accept(one)
        return bad

    def _accept(self, one: port.Batch) -> None:
        self.place = Place(
            position=one.first_position + one.count - 1,
            batch=one.first_position,
            chain=one.chain,
            recorded_at_us=one.recorded_at_us,
        )
        self.batches += 1
        if self.place.position in self._watched:
            self.met[self.place.position] = one.chain

    def _links(self, one: port.Batch) -> bool:
        try:
            tail = chain.tail(count=one.count, root=one.root, writer=one.writer)
            linked = chain.link(
                self.place.chain,
                first_position=one.first_position,
                recorded_at_us=one.recorded_at_us,
                tail=tail,
            )
        except (TypeError, ValueError, AttributeError, struct.error):
            return False  # A value of another type or size than any append writes.
        return linked == one.chain and one.count > 0

    def _rows(self, one: port.Batch, records: _Peekable) -> BadRow | None:
        leaves: list[bytes] = []
        for position in range(one.first_position, one.first_position + one.count):
            record = records.peek()
            if record is None or record.position != position:
                sentence = f"The record at position {position} is gone."
                return bad_row(EVENT, position, Kind.REMOVED, sentence)
            records.take()
            if record.recorded_at_us != one.recorded_at_us:
                sentence = f"The record at position {position} has another time than its batch."
                return bad_row(EVENT, position, Kind.CHANGED, sentence)
            if not _matches(record):
                bad = self._unmatched(record)
                if bad is not None:
                    return bad
            leaves.append(record.leaf)
        return None if chain.merkle_root(leaves) == one.root else _misplaced(one, leaves)

    def _unmatched(self, record: port.StoredRecord) -> BadRow | None:
        """A record that does not match its leaf: erased with an order to, erased, or changed."""
        position = record.position
        if record.data == b"":
            cover = self._covers.get(position)
            if cover is None:
                sentence = f"The payload at position {position} was erased, and no record says so."
                return bad_row(EVENT, position, Kind.ERASED, sentence)
            if _matches(record, digest=cover.digest):
                self.redacted.append(position)
                return None
        sentence = f"The record at position {position} does not match its own leaf hash."
        return bad_row(EVENT, position, Kind.CHANGED, sentence)

    @functools.cached_property
    def _covers(self) -> dict[int, redactions.Cover]:
        return redactions.read(self._store)


def _matches(record: port.StoredRecord, *, digest: bytes | None = None) -> bool:
    try:
        return batch.leaf_of(record, digest=digest) == record.leaf
    except (TypeError, ValueError, AttributeError, struct.error):
        return False


class _Peekable:
    """An iterator whose next element can be looked at before it is taken."""

    def __init__(self, source: Iterator[port.StoredRecord]) -> None:
        self._source: Final = source
        self._next: port.StoredRecord | None = next(source, None)

    def peek(self) -> port.StoredRecord | None:
        return self._next

    def take(self) -> None:
        self._next = next(self._source, None)


def _misplaced(one: port.Batch, leaves: list[bytes]) -> BadRow:
    """Every row matches its own leaf, but together they are not what the batch was made of."""
    first = one.first_position
    swapped = _exchanged(leaves, one.root) if len(leaves) <= SWAP_SEARCH_MAX else None
    if swapped is not None:
        left, right = first + swapped[0], first + swapped[1]
        sentence = f"The records at positions {left} and {right} were exchanged."
        return bad_row(EVENT, left, Kind.REORDERED, sentence)
    last = first + one.count - 1
    sentence = f"A record of the batch at positions {first} to {last} was replaced, leaf and all."
    return BadRow(
        table=EVENT,
        position=first,
        last_position=last,
        kind=Kind.CHANGED,
        sentence=sentence,
    )


def _exchanged(leaves: list[bytes], root: bytes) -> tuple[int, int] | None:
    """The two indexes whose exchange gives the root, if there are such."""
    for left in range(len(leaves)):
        for right in range(left + 1, len(leaves)):
            trial = leaves.copy()
            trial[left], trial[right] = trial[right], trial[left]
            if chain.merkle_root(trial) == root:
                return left, right
    return None


def _records(store: Rows, after: int) -> Iterator[port.StoredRecord]:
    while page := store.read(after=after, limit=PAGE):
        yield from page
        after = page[-1].position


def _batches(store: Rows, after: int) -> Iterator[port.Batch]:
    while page := store.read_batches(after=after, limit=PAGE):
        yield from page
        after = page[-1].first_position
