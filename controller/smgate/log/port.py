"""Owns what every event store promises: its records, its answers and its errors.

The store knows nothing about rollouts. It keeps bytes under a stream and a version, in one gap-free
order, chained, and answers a repeated append with where the record already stands.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from smgate.log import port_archive, port_snapshots, remedies

if TYPE_CHECKING:
    from smgate.log import batch

ClockUs = Callable[[], int]
"""Returns microseconds since 1970. PostgreSQL ignores it: its server's own clock is used."""

RECORDS_MAX = 10_000
"""Records in one append. More would hold the head row for too long; split the batch instead."""

READ_LIMIT = 1_000
"""Records in one page of a read, unless the caller asks otherwise."""


class NewRecord(NamedTuple):
    """One record before it has a place in the log. A named tuple: the stores bind it as it is."""

    stream: str
    version: int
    type: str
    schema_version: int
    occurred_at_us: int
    actor: str
    data: bytes
    counter_actor: str | None = None
    """Who must differ from `actor`: the author of what `actor` approves. The database checks it."""


class StoredRecord(NamedTuple):
    """One record of the log, with its place, its time and its leaf hash; the fields are the columns.

    A named tuple, as reading a log is mostly making these.
    """

    position: int
    stream: str
    version: int
    type: str
    schema_version: int
    occurred_at_us: int
    recorded_at_us: int
    actor: str
    counter_actor: str | None
    data: bytes
    leaf: bytes


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What one append wrote: which positions, when, by whom, and the chain after it."""

    first_position: int
    count: int
    root: bytes
    chain: bytes
    recorded_at_us: int
    writer: str

    @property
    def last_position(self) -> int:
        """Where it ends."""
        return self.first_position + self.count - 1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The end of the log at one moment. Kept elsewhere, it is an anchor that `verify` can use."""

    position: int
    chain: bytes
    epoch: int
    holder: str
    """Who took the epoch last; empty before anybody did."""
    incarnation: str
    recorded_at_us: int
    floor_position: int = 0
    """What stands at or below is the archive's. An append is fenced by it, as by the epoch."""


class Appended(NamedTuple):
    """The answer to an append: where every record stands, new or not."""

    positions: tuple[int, ...]
    """One per record given, in the order given; 0 for one that the archive has."""
    already: tuple[int, ...]
    """The positions, of those, that an earlier append wrote."""
    head: Head

    @property
    def written(self) -> tuple[int, ...]:
        """The positions this append wrote, rising."""
        already = set(self.already)
        return tuple(sorted({place for place in self.positions if place not in already}))

    @property
    def first_position(self) -> int | None:
        """The first position this append wrote; None if it wrote nothing."""
        written = self.written
        return written[0] if written else None

    @property
    def last_position(self) -> int | None:
        """The last position this append wrote; None if it wrote nothing."""
        written = self.written
        return written[-1] if written else None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right to lead for a while, by the database's clock."""

    name: str
    holder: str
    acquired_at_us: int
    """The database's clock when this answer was made (taken or renewed)."""
    expires_at_us: int
    previous_holder: str | None = None
    """Who held it before this answer; None if nobody ever did."""
    previous_expires_at_us: int | None = None
    """When the hold before this answer ended or would have ended. Nobody led from then on."""


def ttl_us(ttl_s: float) -> int:
    """A lease's length in microseconds."""
    return round(ttl_s * 1_000_000)


class LogError(Exception):
    """The event store refused or failed; `code` is stable, the message is a sentence."""

    code = "log_error"


class ConflictError(LogError):
    """Another record already stands under this stream and version; nothing was written."""

    code = "conflict"

    def __init__(self, stream: str, version: int, position: int | None = None) -> None:
        self.stream = stream
        self.version = version
        self.position = position
        where = "in the same batch" if position is None else f"at position {position}"
        super().__init__(
            f"Stream {stream!r} already has another record of version {version} {where}. "
            "Read the stream again and decide anew."
        )


class GapError(LogError):
    """A record would leave a hole in its stream; nothing was written. Only with `gapless`."""

    code = "gap"

    def __init__(self, stream: str, version: int) -> None:
        self.stream = stream
        self.version = version
        super().__init__(
            f"Stream {stream!r} has no version {version - 1}, so version {version} cannot follow. "
            "Send the missing records first."
        )


class SamePersonError(LogError):
    """The same person wrote and approved; nothing was written."""

    code = "same_person"

    def __init__(self, actor: str, *, stream: str, version: int) -> None:
        self.actor = actor
        self.stream = stream
        self.version = version
        super().__init__(
            f"{actor!r} cannot approve what {actor!r} wrote (stream {stream!r}, version "
            f"{version}). Ask another person."
        )


class FencedError(LogError):
    """The writer's epoch is over: another leader took over; nothing was written."""

    code = "fenced"

    def __init__(self, *, epoch: int, current: int, holder: str) -> None:
        self.epoch = epoch
        self.current = current
        self.holder = holder
        super().__init__(
            f"Epoch {epoch} is over: {holder or 'nobody'!r} holds epoch {current}. "
            "Stop deciding and stand for the lease again."
        )


class LeaseLostError(LogError):
    """The caller does not hold the lease it named; the epoch was not taken."""

    code = "lease_lost"

    def __init__(self, name: str, holder: str) -> None:
        self.name = name
        self.holder = holder
        super().__init__(f"{holder!r} does not hold the lease {name!r}. Acquire it first.")


class BelowFloorError(LogError):
    """What is to be read begins in the archive; `archived.ArchivedLog` reads it there."""

    code = "archived"

    def __init__(self, floor: int, *, version: int = 0) -> None:
        self.floor = floor
        self.version = version  # The highest of the stream asked for that is in the archive.
        super().__init__(f"Positions up to {floor} are in the archive.")


class LogUnavailableError(LogError):
    """The database did not answer in time or cannot write. Safe to try again later.

    `reason` is one of `remedies`, or of an error class of its own.
    Whether the last append was written is unknown; appending the same records again finds out.
    """

    code = "log_unavailable"

    def __init__(self, reason: str, detail: str) -> None:
        self.reason = reason
        self.detail = detail
        super().__init__(f"The event log is unavailable ({reason}): {detail}")

    @property
    def next_step(self) -> str:
        """What a person can do about it."""
        return remedies.of(self.reason)


class LogOverloadedError(LogError):
    """More records wait to be written than this process takes; none of the caller's was taken."""

    code = "log_overloaded"
    retry_after_s: Final = 1
    """By then what waits now is written, or the database has failed and said so."""

    def __init__(self, waiting: int) -> None:
        self.waiting = waiting
        super().__init__(
            f"{waiting} records wait to be written, as many as this process takes. "
            "Send the same again a little later."
        )


class LogTooNewError(LogError):
    """A newer version of smgate made the database."""

    code = "log_too_new"
    next_step: Final = "Use the version of smgate that did that, or a newer one."

    def __init__(self, sentence: str) -> None:
        self.sentence = sentence
        super().__init__(f"{self.sentence} {self.next_step}")


class LogNotReadyError(LogError):
    """The database has no event log of the expected shape."""

    code = "log_not_ready"
    next_step: Final = "Run `smgate db upgrade`; if a log was there, put its backup back."

    def __init__(self, detail: str) -> None:
        self.detail = detail
        super().__init__(f"{detail} {self.next_step}")


class Store(port_snapshots.Snapshots, port_archive.Archives, Protocol):
    """One append-only log. Thread-safe and synchronous; every call is one short transaction."""

    above: frozenset[tuple[str, int]]
    """Types and schema versions that are not written yet: an append of one is NotFinalizedError."""

    def append(
        self,
        records: Sequence[NewRecord],
        *,
        writer: str,
        epoch: int | None = None,
        gapless: bool = False,
    ) -> Appended:
        """Write `records` as one batch, all or nothing, and return when it is durable.

        A record that already stands with the same content is not written again: its position is
        returned. With `epoch`, nothing is written once another leader has taken a newer one. With
        `gapless`, a stream's versions in the batch must follow one another, and the first new one
        must follow one that stands.

        Raises:
            ConflictError: other content stands under a stream and version.
            FencedError: `epoch` is not the head's.
            GapError: `gapless`, and a predecessor is missing.
            SamePersonError: a record's `actor` is its `counter_actor`.
            LogUnavailableError: the database cannot be written now; try again.
        """
        ...

    def append_group(
        self, asked: Sequence[batch.Prepared], *, writer: str, epoch: int | None = None
    ) -> list[Appended | LogError]:
        """Write what several callers asked as one batch; return their answers when it is durable.

        Each is answered as `append` would, had they come one after the other in this order: what
        it would raise about one caller's records is that caller's answer, and stops no other.

        Raises:
            FencedError, LogUnavailableError: as `append`, of all of them.
        """
        ...

    def erase(self, position: int) -> None:
        """Empty the payload of one record, for good. The rest of it, its leaf and the chain stay.

        What was made of the log beside it, snapshots and views, goes too: it may hold the payload.
        """
        ...

    def take_epoch(self, *, holder: str, lease: str | None = None) -> int:
        """Begin a new epoch and return it; every older epoch's appends are refused from now on.

        With `lease`, only while `holder` holds the lease of that name, else LeaseLostError.
        """
        ...

    def acquire_lease(self, name: str, *, holder: str, ttl_s: float) -> Lease | None:
        """Take the lease if it is free, expired or already `holder`'s; None if another holds it."""
        ...

    def renew_lease(self, name: str, *, holder: str, ttl_s: float) -> Lease | None:
        """Prolong the lease; None if it expired or another holds it (then acquire it again)."""
        ...

    def release_lease(self, name: str, *, holder: str) -> bool:
        """End the lease now; False if `holder` did not hold it."""
        ...

    def head(self) -> Head:
        """The end of the log now."""
        ...

    def read(self, *, after: int, limit: int = READ_LIMIT) -> list[StoredRecord]:
        """Records of positions above `after`, in order. Never skips one that comes later."""
        ...

    def read_stream(
        self, stream: str, *, after_version: int = 0, limit: int = READ_LIMIT
    ) -> list[StoredRecord]:
        """Records of one stream with versions above `after_version`, in order of version."""
        ...

    def stream_version(self, stream: str) -> int:
        """The highest version of the stream; 0 if it has none."""
        ...

    def read_batches(self, *, after: int, limit: int = READ_LIMIT) -> list[Batch]:
        """Batches whose first position is above `after`, in order."""
        ...

    def position_at(self, *, recorded_at_us: int) -> int:
        """The last position recorded at or before that time; 0 if there is none."""
        ...

    def chain_at(self, position: int) -> bytes | None:
        """The chain after the batch that ends at a position; None if none ends there."""
        ...

    def close(self) -> None:
        """Let go of connections. The store is not used afterwards."""
        ...
