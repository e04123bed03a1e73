"""Owns what happens to one caller's records before any store sees them: checks, leaves, repeats."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, NamedTuple

from smgate.log import chain, formats, port

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

INT4_MAX = 2**31 - 1
INT8_MAX = 2**63 - 1
STREAM_MAX = 600
"""Characters of a stream's name: an entry of PostgreSQL's index has 2,704 bytes."""

Key = tuple[str, int]
"""Stream and version: what makes a record that one and no other."""


class Prepared(NamedTuple):
    """What one caller asked to append: its records as given, and those of distinct keys, hashed."""

    given: Sequence[port.NewRecord]
    records: Sequence[port.NewRecord]
    """Those of distinct keys, in the order given."""
    leaves: dict[Key, bytes]
    """Key and leaf of each of `records`, in their order."""
    begins: Mapping[str, int] | None
    """Only of a caller that admits no gap: the lowest version of each stream."""
    same_person: bool
    """Whether any record's `actor` is its `counter_actor`."""


def prepare(
    records: Sequence[port.NewRecord],
    *,
    gapless: bool,
    above: frozenset[formats.Form] = frozenset(),
) -> Prepared:
    """Check the records, compute their leaves and drop repeats among them.

    Raises:
        ValueError: a record cannot be stored at all; the caller has a bug.
        port.ConflictError: two records share a key and differ.
        port.GapError: `gapless`, and the batch itself skips a version of a stream.
        NotFinalizedError: a record is of a form in `above`.
    """
    if above:
        formats.check(((one.type, one.schema_version) for one in records), above)
    if len(records) > port.RECORDS_MAX:
        raise ValueError(f"{len(records)} records in one batch, at most {port.RECORDS_MAX}")
    given = tuple(records)
    leaves: dict[Key, bytes] = {}
    same_person = False
    for record in given:
        _check(record)
        leaf = leaf_of(record)
        key = record[:2]
        if leaves.setdefault(key, leaf) != leaf:
            raise port.ConflictError(*key)
        same_person = same_person or record.counter_actor == record.actor
    repeats = len(leaves) < len(given)
    return Prepared(
        given=given,
        records=tuple({one[:2]: one for one in given}.values()) if repeats else given,
        leaves=leaves,
        begins=_gapless_begins(leaves) if gapless else None,
        same_person=same_person,
    )


def lowest_versions(keys: Iterable[Key]) -> dict[str, int]:
    """The lowest version of every stream among the keys."""
    lowest: dict[str, int] = {}
    for stream, version in keys:
        if version < lowest.get(stream, INT8_MAX + 1):
            lowest[stream] = version
    return lowest


def leaf_of(record: port.NewRecord | port.StoredRecord, *, digest: bytes | None = None) -> bytes:
    """The leaf hash that belongs to a record's fields; `digest` is of a payload that was erased."""
    return chain.leaf(record, hashlib.sha256(record.data).digest() if digest is None else digest)


def _check(record: port.NewRecord) -> None:
    stream, version, type_, schema_version, occurred_at_us, actor, _, counter_actor = record
    if not 1 <= version <= INT8_MAX:
        raise ValueError(f"version {version} of stream {stream!r} is out of range")
    if not 0 <= schema_version <= INT4_MAX:
        raise ValueError(f"schema version {schema_version} of a record is out of range")
    if not -INT8_MAX <= occurred_at_us <= INT8_MAX:
        raise ValueError(f"a record's time {occurred_at_us} is out of range")
    if len(stream) > STREAM_MAX:
        raise ValueError(f"the name of a stream has {len(stream)} characters, at most {STREAM_MAX}")
    if not stream or not type_ or not actor:
        raise ValueError("a record needs a stream, a type and an actor")
    if "\x00" in f"{stream}{type_}{actor}{counter_actor}":
        raise ValueError("PostgreSQL cannot store a zero byte in text")


def _gapless_begins(keys: Mapping[Key, object]) -> dict[str, int]:
    """The lowest version of every stream; raises GapError where another does not follow one."""
    lowest = dict(list(keys))
    if len(lowest) < len(keys):
        begins = [
            (stream, version) for stream, version in keys if (stream, version - 1) not in keys
        ]
        lowest = lowest_versions(begins)
        for stream, version in begins:
            if version != lowest[stream]:
                raise port.GapError(stream, version)
    return lowest
