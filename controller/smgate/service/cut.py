"""Owns cutting the log: its beginning goes to files, and what was folded of it stays in the log.

Every step leaves the log whole: files are written and read back, then what was folded is recorded, then
the floor is raised, and only then is anything deleted. Stopped anywhere, the same command goes on.
"""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from smgate.clock import new_id
from smgate.log import archive, formats, port, port_archive
from smgate.service import fold, openings, refusal, snapshots

LEASE: Final = "archive"
LEASE_TTL_S: Final = 600.0
"""Longer than any one step; a cut that was killed is gone on with after that."""
RESEND_DAYS: Final = 7.0
"""What an agent may still send again stays in the database."""
DAY_US: Final = 86_400_000_000
KEEP_DAYS_MAX: Final = 1_000_000.0
"""More are as good as for ever."""
DELETE_MAX: Final = 5_000
"""Rows in one transaction: others wait for the lock no longer than that takes."""
NOTE_RANGE: Final = 50_000
APPEND_PARTS_MAX: Final = 16
WRITER: Final = "archive"
FORM: Final = ("opening_recorded", 1)

Step = Callable[[str], object]
"""Told what was just done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Where the log begins now."""

    floor_before: int
    floor: int
    head: int
    files: tuple[str, ...]
    """The files that were written now."""


def limit(store: port.Store, *, before: int | None, keep_days: float, now_us: int) -> int:
    """The last position that may go to the archive.

    Args:
        store: the log.
        before: nothing from this position on goes; None if only the days count.
        keep_days: nothing recorded within so many days goes.
        now_us: what the days are counted back from; never later than the log's own last time.

    Raises:
        RefusedError: `keeps_too_little`.
    """
    if not keep_days >= RESEND_DAYS:  # Nor is what is no number.
        raise refusal.RefusedError(
            422,
            "keeps_too_little",
            f"What was recorded within {RESEND_DAYS:g} days stays: nodes may send it again.",
            next_step=f"Give --keep-days {RESEND_DAYS:g} or more.",
        )
    head = store.head()
    oldest_us = min(now_us, head.recorded_at_us) - round(min(keep_days, KEEP_DAYS_MAX) * DAY_US)
    try:
        found = store.position_at(recorded_at_us=oldest_us)
    except port.BelowFloorError as error:
        found = error.floor
    return found if before is None else min(found, max(0, before - 1))


def cut(
    store: port.Store, folder: pathlib.Path, *, through: int, step: Step = lambda _: None
) -> Cut:
    """Put what stands at or below a position into files, and begin the log behind it.

    Args:
        store: the log.
        folder: where the files go; it must exist.
        through: the last position that may go. Whole batches go.
        step: told what was done, between any two steps.

    Raises:
        RefusedError: `archive_runs`, `nothing_to_archive`.
        NotFinalizedError: the release before could not read a log that is cut.
        OSError: a file cannot be written.
    """
    formats.check([FORM], store.above)
    with _alone(store, step) as done:
        before = store.head().floor_position
        went_on = _delete(store, done)
        # Of a cut that did not come to its end: it may have been told to go further than this one,
        # and nobody knows what became of its files. The database has all of it.
        store.forget_segments()
        files = tuple(_files(store, folder, through, done))
        if files:
            _begin_behind(store, before, store.segments()[-1], done)
        elif not went_on:
            raise refusal.RefusedError(
                409,
                "nothing_to_archive",
                f"Nothing behind position {before} may go to the archive yet.",
                next_step="Give fewer --keep-days or a later --before, or wait.",
            )
    head = store.head()
    return Cut(floor_before=before, floor=head.floor_position, head=head.position, files=files)


def _begin_behind(store: port.Store, before: int, last: port_archive.Segment, step: Step) -> None:
    """Raise the floor, once the log holds what answers for everything below it."""
    floor = last.last_position
    _opening(store, last, step)
    for after in range(before, floor, NOTE_RANGE):
        store.note_streams(after=after, through=min(floor, after + NOTE_RANGE))
        step("noted")
    store.raise_floor(floor)
    if store.head().floor_position != floor:
        raise _another_cuts()
    step("floor")
    _delete(store, step)


@contextlib.contextmanager
def _alone(store: port.Store, step: Step) -> Iterator[Step]:
    """Hold the lease; gives what is to be told of each step, which keeps it.

    Who was stopped for so long that another began does nothing more.
    """
    holder = new_id()
    if store.acquire_lease(LEASE, holder=holder, ttl_s=LEASE_TTL_S) is None:
        raise _another_cuts()

    def keeping(what: str) -> None:
        if store.renew_lease(LEASE, holder=holder, ttl_s=LEASE_TTL_S) is None:
            raise _another_cuts()
        step(what)

    try:
        yield keeping
    finally:
        store.release_lease(LEASE, holder=holder)


def _another_cuts() -> refusal.RefusedError:
    return refusal.RefusedError(
        409,
        "archive_runs",
        "Another process puts this log into the archive, or was killed while it did.",
        next_step=f"Wait until it is done, or {LEASE_TTL_S / 60:g} minutes if it was killed.",
    )


def _files(store: port.Store, folder: pathlib.Path, through: int, step: Step) -> Iterator[str]:
    incarnation = store.head().incarnation
    while True:
        segments = store.segments()
        last = segments[-1].last_position if segments else 0
        contents = _next(store, last, through)
        if contents is None:
            return
        before = store.chain_at(last)
        assert before is not None, "a file ends where a batch does"
        segment = archive.write(folder, contents, before=before, incarnation=incarnation)
        step("written")
        store.add_segment(segment)
        step("listed")
        yield segment.name


def _next(store: port.Store, after: int, through: int) -> archive.Contents | None:
    """The next whole batches, as many as go into one file."""
    batches: list[port.Batch] = []
    count, place = 0, after
    while page := store.read_batches(after=place):
        for one in page:
            fits = not batches or count + one.count <= archive.RECORDS_MAX
            if one.last_position > through or not fits:
                page = []
                break
            batches.append(one)
            count += one.count
        if not page:
            break
        place = page[-1].first_position
    if not batches:
        return None
    records: list[port.StoredRecord] = []
    while len(records) < count:
        records += store.read(after=after + len(records), limit=min(5_000, count - len(records)))
    return archive.Contents(batches, records)


def _opening(store: port.Store, last: port_archive.Segment, step: Step) -> None:
    """Record what was folded up to the floor, unless that stands already."""
    floor = last.last_position
    if openings.load(store, floor) is not None:
        return
    folded = fold.folded_at(store, floor)
    assert folded.fleet.position == floor, "the floor is the end of a batch"
    _check_readable(folded)
    made = openings.made(folded, chain=last.chain_after, at_us=last.recorded_at_us)
    for first in range(0, len(made), APPEND_PARTS_MAX):
        store.append(made[first : first + APPEND_PARTS_MAX], writer=WRITER)
        step("opening")


def _check_readable(folded: snapshots.Folded) -> None:
    states = snapshots.state_codec()
    if states.decode(states.encode(folded)) != folded:
        cause = "it would not be read as it was folded, so nothing was deleted"
        raise openings.UnreadableOpeningError(folded.fleet.position, cause)


def _delete(store: port.Store, step: Step) -> bool:
    """Delete what the archive has; False if nothing was left of it."""
    found = False
    while store.delete_below_floor(most=DELETE_MAX):
        found = True
        step("deleted")
    return found
