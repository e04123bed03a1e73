"""Owns which erased payloads the log itself accounts for: `fact_redacted` records, in one stream.

The digest that such a record holds stands in for the payload when the leaf is recomputed. The record is
part of the chain as any other, so nobody accounts for an erasure without it.
"""

from __future__ import annotations

import dataclasses
from typing import Final

import msgspec

from smgate.log import batch, port

STREAM: Final = "redactions"
TYPE: Final = "fact_redacted"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cover:
    """A record that accounts for an erased payload."""

    position: int
    """Of the erased record."""
    digest: bytes


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Payload:
    position: int
    digest: str


def read(store: port.Store) -> dict[int, Cover]:
    """Covers by the position they are of. What does not match its own leaf covers nothing."""
    found: dict[int, Cover] = {}
    after = 0
    while page := store.read_stream(STREAM, after_version=after):
        for record in page:
            cover = _cover(record)
            if cover is not None:
                found[cover.position] = cover
        after = page[-1].version
    return found


def _cover(record: port.StoredRecord) -> Cover | None:
    if record.type != TYPE or batch.leaf_of(record) != record.leaf:
        return None
    try:
        said = msgspec.json.decode(record.data, type=_Payload)
        cover = Cover(position=said.position, digest=bytes.fromhex(said.digest))
    except (msgspec.DecodeError, ValueError):
        return None
    return cover if cover.position < record.position else None
