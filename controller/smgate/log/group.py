"""Owns how the appends of several callers become one batch: each answered as if it came alone.

They are settled one after the other, in the order they came, against what stands in the log and what
those before them add. One that is refused adds nothing and stops no other.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

from smgate.log import batch, port

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Standing = dict[batch.Key, tuple[int, bytes | None]]
"""Position and leaf of records that stand in the log; 0 and None of those that the archive has."""


class _Clash(NamedTuple):
    """A conflict with a record that another caller adds to this very batch."""

    key: batch.Key


class _Accepted(NamedTuple):
    """What of a caller's records this batch writes: `records` of them, from `offset` on."""

    offset: int
    records: int


class Group:
    """Appends settled into one batch: `records` with their `leaves` are what is left to write."""

    def __init__(self, asked: Sequence[batch.Prepared], standing: Standing | None = None) -> None:
        """Settle `asked`. Without `standing`, nobody has looked: nothing of it is taken to stand.

        `standing` must then hold whatever of `keys_of(asked)` is in the log.
        """
        self._asked = asked
        self._standing = standing
        self._offsets: dict[batch.Key, int] = {}
        self.records: list[port.NewRecord] = []
        self.leaves: list[bytes] = []
        self.needed: list[batch.Key] = []
        """Predecessors that must stand, unlooked for, or the group must be settled with a look."""
        self._settled = [self._settle(each) for each in asked]

    def _settle(self, one: batch.Prepared) -> _Accepted | _Clash | port.LogError:
        records, leaves, begins = one.records, one.leaves, one.begins
        if one.same_person or not self._nobody_has(leaves):
            left = self._left_of(one)
            if not isinstance(left, dict):
                return left
            records, leaves = list(left.values()), {key: leaves[key] for key in left}
            begins = None if begins is None else batch.lowest_versions(leaves)
        if begins is not None:
            gap = self._follow(begins)
            if gap is not None:
                return gap
        offset = len(self.records)
        self._offsets.update(zip(leaves, itertools.count(offset), strict=False))
        self.records += records
        self.leaves += leaves.values()
        return _Accepted(offset, len(records))

    def _nobody_has(self, leaves: dict[batch.Key, bytes]) -> bool:
        keys = leaves.keys()
        return self._offsets.keys().isdisjoint(keys) and (
            self._standing is None or self._standing.keys().isdisjoint(keys)
        )

    def _left_of(
        self, one: batch.Prepared
    ) -> dict[batch.Key, port.NewRecord] | _Clash | port.LogError:
        """What nobody has yet of a caller's records, or why the caller is refused."""
        left: dict[batch.Key, port.NewRecord] = {}
        for record, (key, leaf) in zip(one.records, one.leaves.items(), strict=True):
            if key in self._offsets:
                if self.leaves[self._offsets[key]] != leaf:
                    return _Clash(key)
            elif self._standing is not None and key in self._standing:
                position, standing_leaf = self._standing[key]
                if standing_leaf is not None and standing_leaf != leaf:
                    return port.ConflictError(*key, position)
            elif record.counter_actor == record.actor:
                return port.SamePersonError(record.actor, stream=key[0], version=key[1])
            else:
                left[key] = record
        return left

    def _follow(self, begins: Mapping[str, int]) -> port.GapError | None:
        """Note the predecessors of what streams begin with; the error if one is known to miss."""
        needed = [
            (stream, version - 1)
            for stream, version in begins.items()
            if version > 1 and (stream, version - 1) not in self._offsets
        ]
        if self._standing is None:
            self.needed += needed
            return None
        for before in needed:
            if before not in self._standing:
                return port.GapError(before[0], before[1] + 1)
        return None

    def answers(self, head: port.Head, *, first: int) -> list[port.Appended | port.LogError]:
        """One answer per caller, in order; the batch was written from position `first` on."""
        return [
            self._answer(one, settled, head, first)
            for one, settled in zip(self._asked, self._settled, strict=True)
        ]

    def _answer(
        self,
        one: batch.Prepared,
        settled: _Accepted | _Clash | port.LogError,
        head: port.Head,
        first: int,
    ) -> port.Appended | port.LogError:
        if isinstance(settled, port.LogError):
            return settled
        if isinstance(settled, _Clash):
            return port.ConflictError(*settled.key, first + self._offsets[settled.key])
        begin = first + settled.offset
        if settled.records == len(one.given):
            positions = tuple(range(begin, begin + settled.records))
            return port.Appended(positions=positions, already=(), head=head)
        places = {key: self._place(key, first) for key in one.leaves}
        end = begin + settled.records
        return port.Appended(
            positions=tuple(places[record.stream, record.version] for record in one.given),
            already=tuple(sorted(at for at in places.values() if not begin <= at < end)),
            head=head,
        )

    def _place(self, key: batch.Key, first: int) -> int:
        offset = self._offsets.get(key)
        if offset is not None:
            return first + offset
        assert self._standing is not None, "what this batch does not write was looked for"
        return self._standing[key][0]


def keys_of(asked: Sequence[batch.Prepared]) -> list[batch.Key]:
    """What must be looked for before the appends are settled: their keys, and those before them."""
    keys = {key: None for one in asked for key in one.leaves}
    for one in asked:
        for stream, version in (one.begins or {}).items():
            keys[stream, version - 1] = None
    return list(keys)


def only(answers: list[port.Appended | port.LogError]) -> port.Appended:
    """The answer of a group of one; raises it if it is an error."""
    (answer,) = answers
    if isinstance(answer, port.LogError):
        raise answer
    return answer


def check_epoch(head: port.Head, epoch: int | None) -> None:
    """Raise FencedError if another leader has taken over."""
    if epoch is not None and epoch != head.epoch:
        raise port.FencedError(epoch=epoch, current=head.epoch, holder=head.holder)


def check_writer(writer: str) -> None:
    """Raise ValueError if the database could not hold this name."""
    if not writer or "\x00" in writer:
        raise ValueError("the writer needs a name without zero bytes")
