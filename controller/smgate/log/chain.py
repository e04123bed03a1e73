"""Owns the hashes of the log: leaf of a record, Merkle root of a batch, link of the chain.

Pure, and the one place that says what is hashed. The PostgreSQL store computes `link` inside its
append statement, so the order of the bytes there must be this one; the contract tests hold it.
"""

from __future__ import annotations

import functools
import hashlib
import struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smgate.log import port

GENESIS = bytes(32)
"""The chain of an empty log."""

_LEAF = b"\x00"
_NODE = b"\x01"
_LENGTH = struct.Struct(">I")
_INT8 = struct.Struct(">q")
_SCHEMA_TIME = struct.Struct(">iq")
_NOBODY = b"\x00"
_SOMEBODY = b"\x01"

TEXTS_KEPT: Final = 131_072
"""Texts whose bytes are kept: a fleet says the same types, actors and streams over and over."""


def leaf(record: port.NewRecord | port.StoredRecord, digest: bytes) -> bytes:
    """The hash of one record: its fields with their lengths, then the SHA-256 of its payload.

    The payload enters as its digest, so that a payload can be erased later and the other fields
    still be verified against the leaf. The domain byte 0x00 makes it an RFC 6962 leaf hash.
    """
    counter_actor = record.counter_actor
    return hashlib.sha256(
        b"%b%b%b%b%b%b%b%b"
        % (
            _LEAF,
            prefixed(record.stream),
            _INT8.pack(record.version),
            prefixed(record.type),
            _SCHEMA_TIME.pack(record.schema_version, record.occurred_at_us),
            prefixed(record.actor),
            _NOBODY if counter_actor is None else _SOMEBODY + prefixed(counter_actor),
            digest,
        )
    ).digest()


@functools.lru_cache(TEXTS_KEPT)
def prefixed(text: str) -> bytes:
    """Its bytes in UTF-8, after their number in four bytes. Stored hashes are over this form."""
    encoded = text.encode()
    return _LENGTH.pack(len(encoded)) + encoded


def merkle_root(leaves: Sequence[bytes]) -> bytes:
    """The RFC 6962 root of a batch's leaves. A batch has at least one.

    Pairing from the bottom and carrying an odd last node up gives the same tree as the RFC's
    split at the largest power of two.
    """
    assert leaves, "a batch has at least one record"
    level = list(leaves)
    sha256 = hashlib.sha256
    while len(level) > 1:
        paired = [
            sha256(_NODE + left + right).digest()
            for left, right in zip(level[::2], level[1::2], strict=False)
        ]
        if len(level) % 2:
            paired.append(level[-1])
        level = paired
    return level[0]


def tail(*, count: int, root: bytes, writer: str) -> bytes:
    """The part of a link that the writer knows before it holds the head row."""
    return _LENGTH.pack(count) + root + writer.encode()


def link(previous: bytes, *, first_position: int, recorded_at_us: int, tail: bytes) -> bytes:
    """The chain after a batch. Every part but the last has a fixed length, so none can shift."""
    return hashlib.sha256(
        previous + _INT8.pack(first_position) + _INT8.pack(recorded_at_us) + tail
    ).digest()
