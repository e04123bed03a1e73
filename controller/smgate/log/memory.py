"""Owns the store in memory: the reference the SQL stores are compared with, and for simulation."""

from __future__ import annotations

import bisect
import dataclasses
import threading
from typing import TYPE_CHECKING, Final

from smgate.log import batch, chain, group, port, port_archive, port_snapshots

if TYPE_CHECKING:
    from collections.abc import Sequence


class MemoryStore:
    """A log in lists under one lock. Nothing outlives the process."""

    def __init__(self, *, clock_us: port.ClockUs, incarnation: str = "memory") -> None:
        self.above: frozenset[tuple[str, int]] = frozenset()
        self._clock_us: Final = clock_us
        self._lock: Final = threading.Lock()
        self._records: Final[list[port.StoredRecord]] = []
        self._batches: Final[list[port.Batch]] = []
        self._places: Final[dict[batch.Key, int]] = {}
        self._streams: Final[dict[str, list[int]]] = {}
        self._leases: Final[dict[str, port.Lease]] = {}
        self._snapshots: Final[dict[int, port_snapshots.Snapshot]] = {}
        self._segments: Final[list[port_archive.Segment]] = []
        self._stream_floors: Final[dict[str, int]] = {}
        self._gone = 0
        """Records that were deleted; the first in the list has the position after that."""
        self._head = port.Head(
            position=0,
            chain=chain.GENESIS,
            epoch=0,
            holder="",
            incarnation=incarnation,
            recorded_at_us=0,
        )

    def append(
        self,
        records: Sequence[port.NewRecord],
        *,
        writer: str,
        epoch: int | None = None,
        gapless: bool = False,
    ) -> port.Appended:
        """See `port.Store.append`."""
        prepared = batch.prepare(records, gapless=gapless, above=self.above)
        return group.only(self.append_group([prepared], writer=writer, epoch=epoch))

    def append_group(
        self, asked: Sequence[batch.Prepared], *, writer: str, epoch: int | None = None
    ) -> list[port.Appended | port.LogError]:
        """See `port.Store.append_group`."""
        group.check_writer(writer)
        with self._lock:
            group.check_epoch(self._head, epoch)
            settled = group.Group(
                asked,
                {key: self._standing(key) for key in group.keys_of(asked) if self._known(key)},
            )
            first = self._head.position + 1
            if settled.records:
                self._write(settled, writer)
            return settled.answers(self._head, first=first)

    def _known(self, key: batch.Key) -> bool:
        return key in self._places or key[1] <= self._stream_floors.get(key[0], 0)

    def _standing(self, key: batch.Key) -> tuple[int, bytes | None]:
        place = self._places.get(key)
        return (0, None) if place is None else (place, self._record(place).leaf)

    def _record(self, position: int) -> port.StoredRecord:
        return self._records[position - 1 - self._gone]

    def _check_floor(self, after: int) -> None:
        floor = self._head.floor_position
        if floor and after < floor:
            raise port.BelowFloorError(floor)

    def _write(self, settled: group.Group, writer: str) -> None:
        first, count = self._head.position + 1, len(settled.records)
        recorded_at_us = max(self._head.recorded_at_us, self._clock_us())
        root = chain.merkle_root(settled.leaves)
        linked = chain.link(
            self._head.chain,
            first_position=first,
            recorded_at_us=recorded_at_us,
            tail=chain.tail(count=count, root=root, writer=writer),
        )
        for offset, (record, leaf) in enumerate(zip(settled.records, settled.leaves, strict=True)):
            stored = port.StoredRecord(
                position=first + offset,
                stream=record.stream,
                version=record.version,
                type=record.type,
                schema_version=record.schema_version,
                occurred_at_us=record.occurred_at_us,
                recorded_at_us=recorded_at_us,
                actor=record.actor,
                counter_actor=record.counter_actor,
                data=record.data,
                leaf=leaf,
            )
            self._records.append(stored)
            self._places[record.stream, record.version] = stored.position
            bisect.insort(self._streams.setdefault(record.stream, []), record.version)
        self._batches.append(
            port.Batch(
                first_position=first,
                count=count,
                root=root,
                chain=linked,
                recorded_at_us=recorded_at_us,
                writer=writer,
            )
        )
        self._head = dataclasses.replace(
            self._head, position=first + count - 1, chain=linked, recorded_at_us=recorded_at_us
        )

    def erase(self, position: int) -> None:
        """See `port.Store.erase`."""
        with self._lock:
            place = position - 1 - self._gone
            self._records[place] = self._records[place]._replace(data=b"")
            self._snapshots.clear()

    def take_epoch(self, *, holder: str, lease: str | None = None) -> int:
        """See `port.Store.take_epoch`."""
        with self._lock:
            if lease is not None and not self._holds(lease, holder, self._clock_us()):
                raise port.LeaseLostError(lease, holder)
            self._head = dataclasses.replace(self._head, epoch=self._head.epoch + 1, holder=holder)
            return self._head.epoch

    def _holds(self, name: str, holder: str, now_us: int) -> bool:
        held = self._leases.get(name)
        return held is not None and held.holder == holder and held.expires_at_us > now_us

    def acquire_lease(self, name: str, *, holder: str, ttl_s: float) -> port.Lease | None:
        """See `port.Store.acquire_lease`."""
        with self._lock:
            now_us = self._clock_us()
            held = self._leases.get(name)
            if held is not None and held.holder != holder and held.expires_at_us > now_us:
                return None
            return self._grant(name, holder=holder, ttl_s=ttl_s, now_us=now_us)

    def renew_lease(self, name: str, *, holder: str, ttl_s: float) -> port.Lease | None:
        """See `port.Store.renew_lease`."""
        with self._lock:
            now_us = self._clock_us()
            if not self._holds(name, holder, now_us):
                return None
            return self._grant(name, holder=holder, ttl_s=ttl_s, now_us=now_us)

    def _grant(self, name: str, *, holder: str, ttl_s: float, now_us: int) -> port.Lease:
        before = self._leases.get(name)
        lease = port.Lease(
            name=name,
            holder=holder,
            acquired_at_us=now_us,
            expires_at_us=now_us + port.ttl_us(ttl_s),
            previous_holder=None if before is None else before.holder,
            previous_expires_at_us=None if before is None else before.expires_at_us,
        )
        self._leases[name] = lease
        return lease

    def release_lease(self, name: str, *, holder: str) -> bool:
        """See `port.Store.release_lease`."""
        with self._lock:
            now_us = self._clock_us()
            if not self._holds(name, holder, now_us):
                return False
            self._leases[name] = port.Lease(
                name=name, holder=holder, acquired_at_us=now_us, expires_at_us=now_us
            )
            return True

    def head(self) -> port.Head:
        """See `port.Store.head`."""
        with self._lock:
            return self._head

    def read(self, *, after: int, limit: int = port.READ_LIMIT) -> list[port.StoredRecord]:
        """See `port.Store.read`."""
        with self._lock:
            self._check_floor(after)
            start = max(after, 0) - self._gone
            return self._records[start : start + limit]

    def read_stream(
        self, stream: str, *, after_version: int = 0, limit: int = port.READ_LIMIT
    ) -> list[port.StoredRecord]:
        """See `port.Store.read_stream`."""
        with self._lock:
            versions = self._streams.get(stream, [])
            floor, version = self._head.floor_position, self._stream_floors.get(stream, 0)
            if floor and after_version < version:
                raise port.BelowFloorError(floor, version=version)
            start = bisect.bisect_right(versions, after_version)
            return [
                self._record(self._places[stream, version])
                for version in versions[start : start + limit]
            ]

    def stream_version(self, stream: str) -> int:
        """See `port.Store.stream_version`."""
        with self._lock:
            versions = self._streams.get(stream)
            return versions[-1] if versions else self._stream_floors.get(stream, 0)

    def read_batches(self, *, after: int, limit: int = port.READ_LIMIT) -> list[port.Batch]:
        """See `port.Store.read_batches`."""
        with self._lock:
            self._check_floor(after)
            start = bisect.bisect_right(self._batches, after, key=lambda one: one.first_position)
            return self._batches[start : start + limit]

    def position_at(self, *, recorded_at_us: int) -> int:
        """See `port.Store.position_at`."""
        with self._lock:
            end = bisect.bisect_right(
                self._batches, recorded_at_us, key=lambda one: one.recorded_at_us
            )
            if end == 0:
                return self._floor_at(recorded_at_us)
            last = self._batches[end - 1]
            return last.first_position + last.count - 1

    def chain_at(self, position: int) -> bytes | None:
        """See `port.Store.chain_at`."""
        with self._lock:
            if position == 0:
                return chain.GENESIS
            end = bisect.bisect_right(self._batches, position, key=lambda one: one.first_position)
            found = self._batches[end - 1] if end else None
            if found is not None and found.last_position == position:
                return found.chain
            ends = {one.last_position: one.chain_after for one in self._segments}
            return ends.get(position)

    def _floor_at(self, recorded_at_us: int) -> int:
        floor = self._head.floor_position
        at_us = {one.last_position: one.recorded_at_us for one in self._segments}.get(floor)
        if floor and (at_us is None or at_us > recorded_at_us):
            raise port.BelowFloorError(floor)
        return floor

    def keep_snapshot(self, snapshot: port_snapshots.Snapshot, *, most: int) -> None:
        """See `port_snapshots.Snapshots`."""
        with self._lock:
            self._snapshots[snapshot.position] = snapshot
            stay = sorted(place for place in self._snapshots if place <= snapshot.position)[-most:]
            for place in self._snapshots.keys() - set(stay):
                del self._snapshots[place]

    def snapshots(self) -> list[port_snapshots.Snapshot]:
        """See `port_snapshots.Snapshots`."""
        with self._lock:
            newest = sorted(self._snapshots.values(), key=lambda one: one.position, reverse=True)
            return [dataclasses.replace(one, data=b"") for one in newest]

    def snapshot_data(self, position: int) -> bytes | None:
        """See `port_snapshots.Snapshots`."""
        with self._lock:
            found = self._snapshots.get(position)
            return None if found is None else found.data

    def segments(self) -> list[port_archive.Segment]:
        """See `port_archive.Archives`."""
        with self._lock:
            return list(self._segments)

    def add_segment(self, segment: port_archive.Segment) -> None:
        """See `port_archive.Archives`."""
        with self._lock:
            if all(one.first_position != segment.first_position for one in self._segments):
                self._segments.append(segment)

    def forget_segments(self) -> None:
        """See `port_archive.Archives`."""
        with self._lock:
            floor = self._head.floor_position
            self._segments[:] = [one for one in self._segments if one.last_position <= floor]

    def note_streams(self, *, after: int, through: int) -> None:
        """See `port_archive.Archives`."""
        with self._lock:
            for record in self._records[max(0, after - self._gone) : max(0, through - self._gone)]:
                before = self._stream_floors.get(record.stream, 0)
                self._stream_floors[record.stream] = max(before, record.version)

    def stream_floors(self, *, after: str, limit: int) -> list[tuple[str, int]]:
        """See `port_archive.Archives`."""
        with self._lock:
            return sorted(one for one in self._stream_floors.items() if one[0] > after)[:limit]

    def raise_floor(self, position: int) -> None:
        """See `port_archive.Archives`."""
        with self._lock:
            if all(one.last_position != position for one in self._segments):
                return
            floor = max(self._head.floor_position, position)
            self._head = dataclasses.replace(self._head, floor_position=floor)

    def below_floor(self, *, after: int, limit: int) -> list[port.StoredRecord]:
        """See `port_archive.Archives`."""
        with self._lock:
            end = max(0, self._head.floor_position - self._gone)
            return [one for one in self._records[:end] if one.position > after][:limit]

    def delete_below_floor(self, *, most: int) -> int:
        """See `port_archive.Archives`."""
        with self._lock:
            count = min(most, self._head.floor_position - self._gone)
            for record in self._records[:count]:
                del self._places[record.stream, record.version]
                versions = self._streams[record.stream]
                versions.remove(record.version)
                if not versions:
                    del self._streams[record.stream]
            del self._records[:count]
            self._gone += count
            if not count:
                while self._batches and self._batches[0].last_position <= self._gone:
                    del self._batches[0]
            return count

    def close(self) -> None:
        """See `port.Store.close`. There is nothing to let go of."""
