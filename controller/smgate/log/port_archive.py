"""Owns what every event store promises of its past: what went to the archive, and what answers for it.

A log has a floor: what stands at or below it may be gone from the database. The floor is raised before
anything is deleted, and everything that must be known of what is gone is written before that.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from smgate.log import port


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One file of the archive: whole batches, from one position through another."""

    first_position: int
    last_position: int
    folder: str
    """Where it was written; it may have been moved since."""
    name: str
    sha256: str
    """Of the file, in hexadecimal digits."""
    chain_before: bytes
    chain_after: bytes
    recorded_at_us: int
    """When its last batch was recorded."""


class Archives(Protocol):
    """What a store knows of the part of its log that is kept elsewhere."""

    def segments(self) -> list[Segment]:
        """Every file of the archive, in the order of the log."""
        ...

    def add_segment(self, segment: Segment) -> None:
        """Note that a file was written; it stays noted. Once more for the same place changes nothing."""
        ...

    def forget_segments(self) -> None:
        """Forget the files behind the floor: those of a cut that did not come to its end."""
        ...

    def note_streams(self, *, after: int, through: int) -> None:
        """Remember the highest version of every stream in a range, to answer for it when it is gone.

        A version of a stream at or below what is remembered is answered as written already.
        """
        ...

    def stream_floors(self, *, after: str, limit: int) -> list[tuple[str, int]]:
        """Streams, and the highest version remembered of each, in one order from behind a name."""
        ...

    def raise_floor(self, position: int) -> None:
        """From now on what stands at or below is the archive's.

        Only where a file ends that was noted: else nothing changes. A floor is never lowered.
        """
        ...

    def below_floor(self, *, after: int, limit: int) -> list[port.StoredRecord]:
        """Rows at or below the floor that were not deleted yet. The log is what its archive says."""
        ...

    def delete_below_floor(self, *, most: int) -> int:
        """Delete the first records at or below the floor; how many. 0 when none is left."""
        ...
