"""Owns what happens to a batch before any store sees it: checks, leaves, repeats inside it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from smgate.log import chain, port

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

INT4_MAX = 2**31 - 1
INT8_MAX = 2**63 - 1

Key = tuple[str, int]
"""Stream and version: what makes a record that one and no other."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """One append: what was asked, and the records still to write, of distinct keys, with leaves."""

    given: tuple[port.NewRecord, ...]
    writer: str
    epoch: int | None
    gapless: bool
    records: tuple[port.NewRecord, ...]
    leaves: tuple[bytes, ...]

    def check_epoch(self, head: port.Head) -> None:
        """Raise FencedError if another leader has taken over."""
        if self.epoch is not None and self.epoch != head.epoch:
            raise port.FencedError(epoch=self.epoch, current=head.epoch, holder=head.holder)

    @property
    def keys(self) -> list[Key]:
        """The key of every record, in order."""
        return [(record.stream, record.version) for record in self.records]

    def firsts(self) -> dict[str, int]:
        """The lowest version of every stream in the batch."""
        lowest: dict[str, int] = {}
        for record in self.records:
            lowest[record.stream] = min(record.version, lowest.get(record.stream, INT8_MAX))
        return lowest

    def without(self, keys: Mapping[Key, object]) -> Prepared:
        """The batch less the records under `keys`."""
        kept = [
            pair
            for pair in zip(self.records, self.leaves, strict=True)
            if (pair[0].stream, pair[0].version) not in keys
        ]
        return dataclasses.replace(
            self,
            records=tuple(record for record, _ in kept),
            leaves=tuple(leaf for _, leaf in kept),
        )


def prepare(
    records: Sequence[port.NewRecord], *, writer: str, epoch: int | None, gapless: bool
) -> Prepared:
    """Check the batch, compute its leaves and drop repeats inside it.

    Raises:
        ValueError: a record or the writer cannot be stored at all; the caller has a bug.
        port.ConflictError: two records share a key and differ.
        port.GapError: `gapless`, and the batch itself skips a version of a stream.
    """
    if len(records) > port.RECORDS_MAX:
        raise ValueError(f"{len(records)} records in one batch, at most {port.RECORDS_MAX}")
    if not writer or "\x00" in writer:
        raise ValueError("the writer needs a name without zero bytes")
    by_key: dict[Key, tuple[port.NewRecord, bytes]] = {}
    for record in records:
        _check(record)
        hashed = leaf_of(record)
        key = (record.stream, record.version)
        if by_key.setdefault(key, (record, hashed))[1] != hashed:
            raise port.ConflictError(*key)
    prepared = Prepared(
        given=tuple(records),
        writer=writer,
        epoch=epoch,
        gapless=gapless,
        records=tuple(record for record, _ in by_key.values()),
        leaves=tuple(hashed for _, hashed in by_key.values()),
    )
    if gapless:
        _check_gapless(prepared, by_key)
    return prepared


def leaf_of(record: port.NewRecord | port.StoredRecord) -> bytes:
    """The leaf hash that belongs to a record's fields."""
    return chain.leaf(
        stream=record.stream,
        version=record.version,
        type=record.type,
        schema_version=record.schema_version,
        occurred_at_us=record.occurred_at_us,
        actor=record.actor,
        counter_actor=record.counter_actor,
        data=record.data,
    )


def same_person(prepared: Prepared) -> port.SamePersonError | None:
    """The error for the first record whose actor is its counter actor, if there is one."""
    for record in prepared.records:
        if record.counter_actor == record.actor:
            return port.SamePersonError(record.actor, stream=record.stream, version=record.version)
    return None


def settle(
    prepared: Prepared, standing: Mapping[Key, tuple[int, bytes]]
) -> tuple[Prepared, dict[Key, int]]:
    """Part a batch into what is still to be written and where the rest already stands.

    `standing` gives position and leaf of those of the batch's keys that are in the log.

    Raises:
        port.ConflictError: a key stands with another leaf.
    """
    already: dict[Key, int] = {}
    for key, leaf in zip(prepared.keys, prepared.leaves, strict=True):
        if key in standing:
            position, standing_leaf = standing[key]
            if standing_leaf != leaf:
                raise port.ConflictError(*key, position)
            already[key] = position
    return prepared.without(already), already


def answer(
    prepared: Prepared,
    *,
    written: Mapping[Key, int],
    already: Mapping[Key, int],
    head: port.Head,
) -> port.Appended:
    """The answer for the records as the caller gave them, repeats included."""
    places = {**written, **already}
    return port.Appended(
        positions=tuple(places[record.stream, record.version] for record in prepared.given),
        already=tuple(sorted(already.values())),
        head=head,
    )


def _check(record: port.NewRecord) -> None:
    if not 1 <= record.version <= INT8_MAX:
        raise ValueError(f"version {record.version} of stream {record.stream!r} is out of range")
    if not 0 <= record.schema_version <= INT4_MAX:
        raise ValueError(f"schema version {record.schema_version} of a record is out of range")
    if not -INT8_MAX <= record.occurred_at_us <= INT8_MAX:
        raise ValueError(f"a record's time {record.occurred_at_us} is out of range")
    if not record.stream or not record.type or not record.actor:
        raise ValueError("a record needs a stream, a type and an actor")
    texts = record.stream + record.type + record.actor + (record.counter_actor or "")
    if "\x00" in texts:
        raise ValueError("PostgreSQL cannot store a zero byte in text")


def _check_gapless(prepared: Prepared, keys: Mapping[Key, object]) -> None:
    lowest = prepared.firsts()
    for stream, version in prepared.keys:
        if version != lowest[stream] and (stream, version - 1) not in keys:
            raise port.GapError(stream, version)
