"""Owns the hashes of the log: leaf of a record, Merkle root of a batch, link of the chain.

Pure, and the one place that says what is hashed. The PostgreSQL store computes `link` inside its
append statement, so the order of the bytes there must be this one; the contract tests hold it.
"""

from __future__ import annotations

import hashlib
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

GENESIS = bytes(32)
"""The chain of an empty log."""

_LEAF = b"\x00"
_NODE = b"\x01"
_LENGTH = struct.Struct(">I")
_INT8 = struct.Struct(">q")
_VERSION_LENGTH = struct.Struct(">qI")
_SCHEMA_TIME_LENGTH = struct.Struct(">iqI")


def leaf(  # noqa: PLR0913 - the hashed fields, in the order of hashing
    *,
    stream: str,
    version: int,
    type: str,
    schema_version: int,
    occurred_at_us: int,
    actor: str,
    counter_actor: str | None,
    digest: bytes,
) -> bytes:
    """The hash of one record: its fields with their lengths, then the SHA-256 of its payload.

    The payload enters as its digest, so that a payload can be erased later and the other fields
    still be verified against the leaf. The domain byte 0x00 makes it an RFC 6962 leaf hash.
    """
    stream_bytes = stream.encode()
    type_bytes = type.encode()
    actor_bytes = actor.encode()
    if counter_actor is None:
        counter = b"\x00"
    else:
        counter_bytes = counter_actor.encode()
        counter = b"\x01" + _LENGTH.pack(len(counter_bytes)) + counter_bytes
    return hashlib.sha256(
        b"".join(
            (
                _LEAF,
                _LENGTH.pack(len(stream_bytes)),
                stream_bytes,
                _VERSION_LENGTH.pack(version, len(type_bytes)),
                type_bytes,
                _SCHEMA_TIME_LENGTH.pack(schema_version, occurred_at_us, len(actor_bytes)),
                actor_bytes,
                counter,
                digest,
            )
        )
    ).digest()


def merkle_root(leaves: Sequence[bytes]) -> bytes:
    """The RFC 6962 root of a batch's leaves. A batch has at least one.

    Pairing from the bottom and carrying an odd last node up gives the same tree as the RFC's
    split at the largest power of two.
    """
    assert leaves, "a batch has at least one record"
    level = list(leaves)
    while len(level) > 1:
        paired = [
            hashlib.sha256(_NODE + left + right).digest()
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
