"""Whatever is done to whichever row of a log of 10,000, it is found, and named by place and kind.

Only the batch around a row is walked again: a walk of one batch says what a walk of the whole says of
it, which the last test and `test_verify_stretches` hold.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Iterator

import pytest
from tests.log_records import other, record

from smgate.log import batch, memory, port, verify, walk

ROWS = 10_000
PAGE = 24  # A reader may give less than it is asked for; it is asked for 2,000.
CLOCK_US = 1_764_480_000_000_000


class Tampered:
    """A whole log, and what somebody did to it."""

    def __init__(self) -> None:
        ticks = itertools.count(CLOCK_US, 1_000)
        store = memory.MemoryStore(clock_us=lambda: next(ticks))
        made = 0
        for wanted in itertools.cycle((1, 7, 20, 3, 12, 2, 16)):
            size = min(wanted, ROWS - made)
            if not size:
                break
            store.append(
                [
                    record(
                        f"s{place % 3}",
                        place,
                        f'{{"n":{place}}}',
                        counter_actor="bo" if place % 2 else None,
                    )
                    for place in range(made + 1, made + size + 1)
                ],
                writer=f"api-{size % 2}",
            )
            made += size
        self._head = store.head()
        self._records = store.read(after=0, limit=ROWS)
        self._batches = store.read_batches(after=0, limit=ROWS)
        self._firsts = [one.first_position for one in self._batches]
        self.rows: dict[int, port.StoredRecord | None] = {}
        self.extra_batch: port.Batch | None = None
        self.other_batch: tuple[int, list[port.Batch]] | None = None
        """Which batch row is another, and what stands in its place."""

    def restore(self) -> None:
        self.rows.clear()
        self.extra_batch = self.other_batch = None

    def row(self, position: int) -> port.StoredRecord:
        return self._records[position - 1]

    def batch_of(self, position: int) -> int:
        return bisect.bisect_right(self._firsts, position) - 1

    def nth(self, number: int) -> port.Batch:
        return self._batches[number]

    # What a walk asks for.
    def head(self) -> port.Head:
        return self._head

    def read(self, *, after: int, limit: int) -> list[port.StoredRecord]:
        begin = max(0, after)
        while begin < ROWS:
            page = self._records[begin : begin + min(limit, PAGE)]
            kept = [self.rows.get(one.position, one) for one in page]
            found = [one for one in kept if one is not None]
            if found:
                return found
            begin += PAGE
        return []

    def read_stream(self, stream: str, *, after_version: int) -> list[port.StoredRecord]:
        return []  # Nobody ordered an erasure.

    def read_batches(self, *, after: int, limit: int) -> list[port.Batch]:
        begin = bisect.bisect_right(self._firsts, after)
        found = self._batches[begin : begin + min(limit, PAGE)]
        if self.other_batch is not None:
            number, changed = self.other_batch
            if begin <= number < begin + len(found):
                found = [*found[: number - begin], *changed, *found[number - begin + 1 :]]
        extra = self.extra_batch
        # In its place among the others, so not on a page that ends before it.
        here = begin + len(found) == len(self._firsts) or (
            extra is not None and bool(found) and extra.first_position < found[-1].first_position
        )
        if extra is not None and extra.first_position > after and here:
            found = sorted([*found, extra], key=lambda one: one.first_position)
        return found

    def around(self, position: int) -> walk.BadRow | None:
        """The first bad row of the batch of this position, and of what claims to follow it."""
        return self.walked(self.batch_of(position), self.batch_of(position))

    def walked(self, number: int, last: int) -> walk.BadRow | None:
        """The first bad row of these batches."""
        start = walk.BEGINNING
        if number:
            before = self.nth(number - 1)
            start = walk.Place(
                position=before.first_position + before.count - 1,
                batch=before.first_position,
                chain=before.chain,
                recorded_at_us=before.recorded_at_us,
            )
        end = self.nth(last)
        through = end.first_position + end.count - 1
        return walk.walk(self, start=start, through=through).first_bad  # type: ignore[arg-type]


Named = tuple[str, int, int, str]
"""Table, first and last position, kind."""


def exactly(position: int, kind: str, table: str = "log_event") -> Named:
    return table, position, position, kind


COLUMNS = [one for one in port.StoredRecord._fields if one != "position"]


def changes(log: Tampered, position: int) -> Iterator[tuple[str, Named]]:
    """Every single thing that can be done to this row; the log is so while it is given."""
    row, this = log.row(position), log.nth(log.batch_of(position))
    last = this.first_position + this.count - 1
    for column in COLUMNS:
        log.rows[position] = row._replace(**{column: other(getattr(row, column))})
        yield f"change {column}", exactly(position, "changed")
    log.rows[position] = row._replace(counter_actor=None if row.counter_actor else "x")
    yield "change whether there is a counter_actor", exactly(position, "changed")
    log.rows[position] = row._replace(data=b"")
    yield "erase the payload", exactly(position, "redacted_without_record")
    log.rows[position] = None
    yield "remove, or move to another position", exactly(position, "removed")
    forged = row._replace(data=b"forged")
    log.rows[position] = forged._replace(leaf=batch.leaf_of(forged))
    yield "replace, leaf and all", ("log_event", this.first_position, last, "changed")
    if position < ROWS:
        following = log.row(position + 1)
        log.rows[position] = following._replace(position=position)
        log.rows[position + 1] = row._replace(position=position + 1)
        # Of another batch it has another time, which is seen at once.
        kind = "reordered" if position < last else "changed"
        yield "exchange with the next", exactly(position, kind)
    log.rows.clear()
    if position != this.first_position:
        log.extra_batch = dataclasses.replace(this, first_position=position)
        yield "insert a batch that claims it", exactly(position, "inserted", "log_batch")
        log.extra_batch = None


def named(bad: walk.BadRow | None) -> Named | None:
    return bad and (bad.table, bad.position, bad.last_position, str(bad.kind))


@pytest.fixture(scope="module")
def log() -> Tampered:
    return Tampered()


EACH = 2
"""How many of a row's changes are tried: others at the next row, so that every one is, everywhere."""


def test_every_row_is_watched_over(log: Tampered) -> None:
    tried: dict[str, int] = {}
    for position in range(1, ROWS + 1):
        for number, (what, expected) in enumerate(changes(log, position)):
            if (number + position) % 16 % (16 // EACH):
                continue
            assert named(log.around(position)) == expected, (what, position)
            tried[what] = tried.get(what, 0) + 1
        log.restore()
        if position % 100 == 0:
            assert log.around(position) is None, "put back as it was"
    assert len(tried) == len(COLUMNS) + 6
    assert min(tried.values()) > ROWS // 16
    assert sum(tried.values()) > EACH * ROWS * 0.9


def test_every_batch_row_is_watched_over(log: Tampered) -> None:
    columns = [one.name for one in dataclasses.fields(port.Batch) if one.name != "first_position"]
    for number, one in enumerate(log._batches):
        for column in columns:
            changed = dataclasses.replace(one, **{column: other(getattr(one, column))})
            log.other_batch = (number, [changed])
            expected = exactly(one.first_position, "changed", "log_batch")
            assert named(log.around(one.first_position)) == expected, column
        if number + 1 < len(log._batches):
            log.other_batch = (number, [])  # Removed, or moved to another first position.
            expected = exactly(one.first_position, "removed", "log_batch")
            assert named(log.walked(number, number + 1)) == expected
        log.restore()


@pytest.mark.parametrize("position", [1, 2, 4_567, 9_999])
def test_a_walk_of_the_whole_log_names_the_same(log: Tampered, position: int) -> None:
    for what, expected in changes(log, position):
        if what.startswith("change ") and what != "change data":
            continue
        report = verify.verify(log)  # type: ignore[arg-type]
        assert named(report.first_bad) == expected, what
    log.restore()
    assert verify.verify(log).ok  # type: ignore[arg-type]
