"""Owns what every event store promises of snapshots: kept beside the log, and no part of its chain."""

from __future__ import annotations

import dataclasses
from typing import Protocol


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What was folded up to a position, so that a start need not read what stands before it."""

    position: int
    """The end of a batch."""
    chain: bytes
    """After that batch: a snapshot of another log has another."""
    fold_version: str
    """Of the code that folded it. Another fold has no use for it."""
    created_at_us: int
    data: bytes


class Snapshots(Protocol):
    """What a store keeps of snapshots. Losing them costs time alone."""

    def keep_snapshot(self, snapshot: Snapshot, *, most: int) -> None:
        """Store a snapshot, and forget all but the newest `most` at or below its position."""
        ...

    def snapshots(self) -> list[Snapshot]:
        """What is kept, the newest first, without the data."""
        ...

    def snapshot_data(self, position: int) -> bytes | None:
        """The data of one of them; None if it was forgotten meanwhile."""
        ...
