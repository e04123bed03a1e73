"""Owns opening balances: what was folded up to a cut, put into the log before anything is deleted.

Unlike a snapshot, an opening balance is part of the log and is read by every later release: a class or a
field that is new has its default, one that went is dropped by an upcaster, and what nobody knows stops
the reader.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from smgate.domain import decisions
from smgate.log import codec, graph, port
from smgate.service import records, snapshots

PART_BYTES_MAX: Final = 256 * 1024
"""Of one event; a payload is held in memory by whoever reads it."""
LEVEL: Final = 6

Upcaster = Callable[[graph.Plain], graph.Plain]
UPCASTERS: Final[Mapping[int, Upcaster]] = {}
"""By the version that is brought up: from its plain document to the next version's. Pure."""


class UnreadableOpeningError(port.LogError):
    """The log was cut, and this release cannot read what it begins with."""

    code = "opening_unreadable"
    next_step: Final = "Use the release that cut the log, or a newer one."

    def __init__(self, floor: int, cause: str) -> None:
        self.sentence = f"What the log holds of everything up to position {floor}: {cause}."
        super().__init__(f"{self.sentence} {self.next_step}")


def stream(floor: int) -> str:
    """The stream that holds one opening balance, a part a version."""
    return f"opening/{floor}"


def version(upcasters: Mapping[int, Upcaster] = UPCASTERS) -> int:
    """The version that is written."""
    return max(upcasters, default=0) + 1


def made(folded: snapshots.Folded, *, chain: bytes, at_us: int) -> list[port.NewRecord]:
    """The records of an opening balance; the same for the same fold.

    Args:
        folded: everything up to the cut.
        chain: the log's, there.
        at_us: when what was last folded was recorded.
    """
    floor = folded.fleet.position
    data = zlib.compress(snapshots.state_codec().encode(folded), LEVEL)
    parts = [data[at : at + PART_BYTES_MAX] for at in range(0, len(data), PART_BYTES_MAX)]
    events = [
        decisions.OpeningRecorded(
            floor=floor,
            chain=chain.hex(),
            state_version=version(),
            part=number,
            parts=len(parts),
            sha256=hashlib.sha256(data).hexdigest(),
            data=base64.b64encode(part).decode(),
        )
        for number, part in enumerate(parts, start=1)
    ]
    return records.of_events(
        events, stream=stream(floor), first_version=1, actor=records.CONTROLLER, at_us=at_us
    )


def load(
    store: port.Store, floor: int, *, upcasters: Mapping[int, Upcaster] = UPCASTERS
) -> snapshots.Folded | None:
    """What was folded up to a cut; None if its opening balance is not complete.

    Raises:
        UnreadableOpeningError: it is not what was written, or this release cannot read it.
    """
    parts = [
        event
        for record in store.read_stream(stream(floor), limit=port.RECORDS_MAX)
        if isinstance(event := codec.recorded(record).event, decisions.OpeningRecorded)
    ]
    if not parts or len(parts) < parts[0].parts:
        return None
    data = b"".join(base64.b64decode(one.data) for one in parts)
    if hashlib.sha256(data).hexdigest() != parts[0].sha256:
        raise UnreadableOpeningError(floor, "its hash is another")
    try:
        document = _brought_up(zlib.decompress(data), parts[0].state_version, upcasters)
        folded: snapshots.Folded = snapshots.state_codec().decode(document)
    except (graph.UnreadableError, zlib.error) as error:
        raise UnreadableOpeningError(floor, str(error)) from error
    return folded


def begin(store: port.Store, floor: int) -> snapshots.Folded | None:
    """What a fold of the log begins with; None if the log was never cut.

    Raises:
        UnreadableOpeningError: it cannot be read, or it is gone.
    """
    if not floor:
        return None
    folded = load(store, floor)
    if folded is None or folded.fleet.position != floor:
        raise UnreadableOpeningError(floor, "it is not there")
    return folded


def _brought_up(data: bytes, found: int, upcasters: Mapping[int, Upcaster]) -> bytes:
    newest = version(upcasters)
    if not 1 <= found <= newest:
        raise graph.UnreadableError(f"Version {found} is unknown to this release.")
    if found == newest:
        return data
    try:
        document = msgspec.json.decode(data)
        for one in range(found, newest):
            document = upcasters[one](document)
    except (msgspec.DecodeError, LookupError, TypeError, ValueError) as error:
        raise graph.UnreadableError(f"Version {found} cannot be brought up: {error!r}") from error
    return msgspec.json.encode(document)
