"""Owns which erased payloads the log itself accounts for: `fact_redacted` records, in one stream.

The digest that such a record holds stands in for the payload when the leaf is recomputed. The record is
part of the chain as any other, so nobody accounts for an erasure without it.
"""

from __future__ import annotations

import dataclasses
from typing import Final, Protocol

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


class Streams(Protocol):
    """What is read: a store, or a log whose beginning is in the archive."""

    def read_stream(
        self, stream: str, *, after_version: int = 0, limit: int = port.READ_LIMIT
    ) -> list[port.StoredRecord]:
        """See `port.Store.read_stream`."""
        ...


def read(log: Streams) -> dict[int, Cover]:
    """Covers by the position they are of. What does not match its own leaf covers nothing.

    An order stands behind what it is of, so those in the archive are of nothing that is not.
    """
    found: dict[int, Cover] = {}
    after = 0
    while True:
        try:
            page = log.read_stream(STREAM, after_version=after)
        except port.BelowFloorError as error:
            after = error.version
            continue
        if not page:
            break
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
