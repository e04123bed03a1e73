"""Owns what happens to one caller's records before any store sees them: checks, leaves, repeats."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import TYPE_CHECKING

from smgate.log import chain, formats, port

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

INT4_MAX = 2**31 - 1
INT8_MAX = 2**63 - 1

Key = tuple[str, int]
"""Stream and version: what makes a record that one and no other."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What one caller asked to append: its records as given, and those of distinct keys, hashed."""

    given: tuple[port.NewRecord, ...]
    gapless: bool
    distinct: dict[Key, tuple[port.NewRecord, bytes]]
    """Record and leaf by key, in the order given."""


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
    by_key: dict[Key, tuple[port.NewRecord, bytes]] = {}
    for record in records:
        _check(record)
        hashed = leaf_of(record)
        key = (record.stream, record.version)
        if by_key.setdefault(key, (record, hashed))[1] != hashed:
            raise port.ConflictError(*key)
    if gapless:
        _check_gapless(by_key)
    return Prepared(given=tuple(records), gapless=gapless, distinct=by_key)


def lowest_versions(keys: Iterable[Key]) -> dict[str, int]:
    """The lowest version of every stream among the keys."""
    lowest: dict[str, int] = {}
    for stream, version in keys:
        if version < lowest.get(stream, INT8_MAX + 1):
            lowest[stream] = version
    return lowest


def leaf_of(record: port.NewRecord | port.StoredRecord, *, digest: bytes | None = None) -> bytes:
    """The leaf hash that belongs to a record's fields; `digest` is of a payload that was erased."""
    return chain.leaf(
        stream=record.stream,
        version=record.version,
        type=record.type,
        schema_version=record.schema_version,
        occurred_at_us=record.occurred_at_us,
        actor=record.actor,
        counter_actor=record.counter_actor,
        digest=hashlib.sha256(record.data).digest() if digest is None else digest,
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


def _check_gapless(keys: Mapping[Key, object]) -> None:
    lowest = lowest_versions(keys)
    for stream, version in keys:
        if version != lowest[stream] and (stream, version - 1) not in keys:
            raise port.GapError(stream, version)
