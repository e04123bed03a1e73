"""Owns finding the first row of a log that is not as it was written.

It reads the log once, in order, in pages, and needs no more memory for a longer one. A chain inside
a database proves nothing against someone who recomputes all of it: that takes a head that was kept
elsewhere (`kept`).
"""

from __future__ import annotations

import dataclasses
import enum
import struct
from collections.abc import Iterator
from typing import Final

from smgate.log import batch, chain, port

PAGE = 2_000
_BEFORE_ALL: Final = -(2**62)  # Rows that somebody put below position 1 are looked at too.
SWAP_SEARCH_MAX = 256  # Records in a batch up to which two exchanged rows are looked for.

_HEAD: Final = "log_head"
_EVENT: Final = "log_event"
_BATCH: Final = "log_batch"


class Kind(enum.StrEnum):
    """What was done to the log."""

    CHANGED = "changed"
    REMOVED = "removed"
    INSERTED = "inserted"
    REORDERED = "reordered"
    TRUNCATED = "truncated"
    """The log ends before the head that was kept."""
    REWRITTEN = "rewritten"
    """The log is whole in itself but is not the one whose head was kept."""


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
class VerifyReport:
    """Whether the log is whole, up to which head, and if not, where it first is not."""

    ok: bool
    positions: int
    """Records verified, from the first."""
    batches: int
    first_bad: BadRow | None
    head: port.Head | None

    @property
    def kind(self) -> Kind | None:
        """What was done, if anything."""
        return None if self.first_bad is None else self.first_bad.kind

    @property
    def chain_hex(self) -> str:
        """The chain at the head, to be kept or compared; empty without a head."""
        return "" if self.head is None else self.head.chain.hex()


def verify(store: port.Store, *, kept: port.Head | None = None) -> VerifyReport:
    """Recompute every hash of the log as it stands and name the first row that disagrees.

    Appends may go on meanwhile: what is verified is the log up to the head at the start. With
    `kept`, a head read earlier and stored out of reach, the log must also lead through it.
    """
    try:
        head = store.head()
    except port.LogNotReadyError as error:
        return VerifyReport(
            ok=False,
            positions=0,
            batches=0,
            first_bad=_bad(_HEAD, 0, Kind.REMOVED, str(error)),
            head=None,
        )
    walk = _Walk(store, head=head, kept=kept)
    first_bad = walk.first_bad()
    return VerifyReport(
        ok=first_bad is None,
        positions=walk.position,
        batches=walk.batches,
        first_bad=first_bad,
        head=head,
    )


class _Walk:
    """One pass over the log. `position`, `chain` and `batches` are what is verified so far."""

    def __init__(self, store: port.Store, *, head: port.Head, kept: port.Head | None) -> None:
        self._head: Final = head
        self._kept: Final = kept
        self._records: Final = _Peekable(_records(store))
        self._store: Final = store
        self.position = 0
        self.batches = 0
        self._chain = chain.GENESIS
        self._recorded_at_us = 0
        self._kept_met = kept is None or kept.position == 0

    def first_bad(self) -> BadRow | None:
        early = self._records.peek()
        if early is not None and early.position < 1:
            sentence = f"A record stands at position {early.position}, before the first."
            return _bad(_EVENT, early.position, Kind.INSERTED, sentence)
        for one in _batches(self._store):
            if self.position >= self._head.position and one.first_position > self._head.position:
                # Either appended since the head was read, or put there: the head will tell.
                break
            bad = self._batch(one)
            if bad is not None:
                return bad
        return self._end()

    def _batch(self, one: port.Batch) -> BadRow | None:
        first = self.position + 1
        if one.first_position > first:
            sentence = f"The batch that begins at position {first} is missing."
            return _bad(_BATCH, first, Kind.REMOVED, sentence)
        if one.first_position < first:
            sentence = f"A second batch claims position {one.first_position}."
            return _bad(_BATCH, one.first_position, Kind.INSERTED, sentence)
        if not self._links(one):
            sentence = "The batch row does not lead from the chain before it to its own chain."
            return _bad(_BATCH, first, Kind.CHANGED, sentence)
        return self._rows(one) or self._accept(one)

    def _rows(self, one: port.Batch) -> BadRow | None:
        leaves: list[bytes] = []
        for position in range(one.first_position, one.first_position + one.count):
            bad = self._record(position, one, leaves)
            if bad is not None:
                return bad
        return None if chain.merkle_root(leaves) == one.root else _misplaced(one, leaves)

    def _accept(self, one: port.Batch) -> BadRow | None:
        """Take the batch as verified; it is bad still if a kept head contradicts it."""
        self.position = one.first_position + one.count - 1
        self.batches += 1
        self._chain = one.chain
        self._recorded_at_us = one.recorded_at_us
        if self._kept is not None and self._kept.position == self.position:
            self._kept_met = self._kept.chain == one.chain
            if not self._kept_met:
                sentence = f"The chain at position {self.position} is not the one that was kept."
                return _bad(_BATCH, self.position, Kind.REWRITTEN, sentence)
        return None

    def _links(self, one: port.Batch) -> bool:
        try:
            tail = chain.tail(count=one.count, root=one.root, writer=one.writer)
            linked = chain.link(
                self._chain,
                first_position=one.first_position,
                recorded_at_us=one.recorded_at_us,
                tail=tail,
            )
        except (TypeError, ValueError, AttributeError, struct.error):
            return False  # A value of another type or size than any append writes.
        return linked == one.chain and one.count > 0

    def _record(self, position: int, one: port.Batch, leaves: list[bytes]) -> BadRow | None:
        record = self._records.peek()
        if record is None or record.position != position:
            return _bad(
                _EVENT, position, Kind.REMOVED, f"The record at position {position} is gone."
            )
        self._records.take()
        if record.recorded_at_us != one.recorded_at_us:
            sentence = f"The record at position {position} has another time than its batch."
            return _bad(_EVENT, position, Kind.CHANGED, sentence)
        try:
            matches = batch.leaf_of(record) == record.leaf
        except (TypeError, ValueError, AttributeError, struct.error):
            matches = False
        if not matches:
            sentence = f"The record at position {position} does not match its own leaf hash."
            return _bad(_EVENT, position, Kind.CHANGED, sentence)
        leaves.append(record.leaf)
        return None

    def _end(self) -> BadRow | None:
        head = self._head
        if head.position > self.position and head.chain != self._chain:
            sentence = (
                f"The head is at position {head.position}, but no batch follows {self.position}."
            )
            return _bad(_BATCH, self.position + 1, Kind.REMOVED, sentence)
        if (head.position, head.chain, head.recorded_at_us) != (
            self.position,
            self._chain,
            self._recorded_at_us,
        ):
            sentence = f"The head row is not the end of the chain at position {self.position}."
            return _bad(_HEAD, self.position, Kind.CHANGED, sentence)
        now = self._store.head()
        stray = self._records.peek()
        if stray is not None and stray.position > now.position:
            sentence = f"A record stands at position {stray.position}, after the head."
            return _bad(_EVENT, stray.position, Kind.INSERTED, sentence)
        for late in self._store.read_batches(after=now.position, limit=1):
            if late.first_position > self._store.head().position:
                sentence = f"A batch stands at position {late.first_position}, after the head."
                return _bad(_BATCH, late.first_position, Kind.INSERTED, sentence)
        return self._kept_bad()

    def _kept_bad(self) -> BadRow | None:
        kept = self._kept
        if kept is None or self._kept_met:
            return None
        if kept.position > self.position:
            sentence = f"The log ends at {self.position}; a head at {kept.position} was kept."
            return _bad(_EVENT, self.position + 1, Kind.TRUNCATED, sentence)
        sentence = f"No batch ends at position {kept.position}, where a head was kept."
        return _bad(_BATCH, kept.position, Kind.REWRITTEN, sentence)


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
        return _bad(_EVENT, left, Kind.REORDERED, sentence)
    last = first + one.count - 1
    sentence = f"A record of the batch at positions {first} to {last} was replaced, leaf and all."
    return BadRow(
        table=_EVENT,
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


def _bad(table: str, position: int, kind: Kind, sentence: str) -> BadRow:
    return BadRow(
        table=table, position=position, last_position=position, kind=kind, sentence=sentence
    )


def _records(store: port.Store) -> Iterator[port.StoredRecord]:
    after = _BEFORE_ALL
    while page := store.read(after=after, limit=PAGE):
        yield from page
        after = page[-1].position


def _batches(store: port.Store) -> Iterator[port.Batch]:
    after = _BEFORE_ALL
    while page := store.read_batches(after=after, limit=PAGE):
        yield from page
        after = page[-1].first_position
