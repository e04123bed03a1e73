"""A log whose beginning went to the archive decides what it would have decided, and can be read whole."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import hashlib
import itertools
import pathlib

import msgspec
import pytest
from tests import given, log_records
from tests.contract.conftest import Bench, ManualClock

from smgate import clock as clocks
from smgate.domain import evolve, facts, planner, redaction
from smgate.log import (
    archive,
    archived,
    codec,
    formats,
    memory,
    port,
    redactions,
    verify,
)
from smgate.service import cut, fold, openings, refusal, snapshots

BATCH = 7
FLOOR = 49


def history() -> list[port.NewRecord]:
    """A fleet with grants, a failed check, drains and alarms."""
    fleet = given.Fleet().enforce().qualified()
    fleet.granted("a", "b", bake_s=10)
    fleet.serves("c")
    fleet.check("b", outcome="failed")
    return as_records(fleet)


def as_records(fleet: given.Fleet) -> list[port.NewRecord]:
    """What happened to a fleet, to be appended."""
    return [
        port.NewRecord(
            stream=one.stream,
            version=one.version,
            type=codec.name_of(one.event),
            schema_version=codec.version_of(one.event),
            occurred_at_us=one.occurred_at_us,
            actor=one.actor,
            data=codec.encode(one.event),
        )
        for one in fleet.history
    ]


HISTORY = history()
LATER_US = 10**12


def fill(store: port.Store, clock: ManualClock | None = None) -> port.Store:
    for first in range(0, len(HISTORY), BATCH):
        if clock is not None:
            clock.now_us += 10
        store.append(HISTORY[first : first + BATCH], writer="test")
    return store


def said_later(store: port.Store, outbox: str = "later") -> int:
    """What a node says after the cut; its position."""
    fact = facts.GapNoticed(lost_outbox_id="box")
    new = HISTORY[-1]._replace(
        stream=f"outbox/{outbox}",
        version=1,
        type="gap_noticed",
        actor="node:a",
        data=codec.encode(fact),
    )
    return store.append([new], writer="test").positions[0]


def whole(store: port.Store, folder: pathlib.Path) -> snapshots.Folded:
    """The fold of every event there ever was, from the files and the database."""
    past = archived.ArchivedLog(store, folder=folder)
    folded, position = snapshots.Folded(), 0
    while page := past.read(after=position, limit=13):
        for record in page:
            recorded = codec.recorded(record)
            evolve.evolve(folded.fleet, recorded)
            folded.book.take(folded.fleet, recorded)
        position = page[-1].position
    assert position == store.head().position
    return folded


def begun(store: port.Store) -> snapshots.Folded:
    return fold.folded_at(store, store.head().position)


def decides_the_same(one: snapshots.Folded, other: snapshots.Folded) -> None:
    assert one == other
    now_us = one.fleet.now_us + LATER_US
    plans = [planner.plan(folded.fleet, now_us) for folded in (one, other)]
    assert plans[0].events
    assert plans[0] == plans[1]


def test_without_the_archive_the_same_is_decided(bench: Bench, tmp_path: pathlib.Path) -> None:
    store = fill(bench.store)
    uncut = fold.folded_at(store, FLOOR)
    done = cut.cut(store, tmp_path, through=FLOOR + 3)
    assert (done.floor_before, done.floor, len(done.files)) == (0, FLOOR, 1)
    other = bench.open_another()
    said_later(other)
    folder = fold.Folder(other)
    folder.catch_up()
    reference = whole(other, tmp_path)
    with folder.at_head() as fleet:
        decides_the_same(snapshots.Folded(fleet, folder.book), reference)
    (tmp_path / done.files[0]).unlink()
    decides_the_same(begun(other), reference)
    assert openings.load(other, FLOOR) == uncut
    assert other.read(after=FLOOR)[0].position == FLOOR + 1


def test_the_archive_is_the_log_byte_for_byte(bench: Bench, tmp_path: pathlib.Path) -> None:
    store = fill(bench.store, bench.clock)
    bench.clock.now_us += 10
    records, batches = store.read(after=0), store.read_batches(after=0)
    times = {one.recorded_at_us for one in batches}
    found = {at_us: store.position_at(recorded_at_us=at_us) for at_us in times}
    first = records[0].stream
    stream = store.read_stream(first)
    cut.cut(store, tmp_path, through=20)
    cut.cut(store, tmp_path, through=FLOOR)
    past = archived.ArchivedLog(store)
    for after, limit in itertools.product((0, 13, 14, 20, 48, 49, 60), (1, 7, 100)):
        page = past.read(after=after, limit=limit)
        assert page[: len(records) - after] == records[after : after + limit]
    assert past.read_batches(after=0)[: len(batches)] == batches
    assert (
        past.read_batches(after=8, limit=2)
        == [one for one in batches if one.first_position > 8][:2]
    )
    assert past.read_stream(first)[: len(stream)] == stream
    assert past.read_stream(first, after_version=stream[0].version)[: len(stream) - 1] == stream[1:]
    if bench.owns_clock:
        assert {at: past.position_at(recorded_at_us=at) for at in times} == found
        assert past.position_at(recorded_at_us=min(times) - 1) == 0
    lines = gzip.decompress((tmp_path / store.segments()[0].name).read_bytes()).splitlines()
    assert msgspec.json.decode(lines[0])["format"] == archive.FORMAT


def test_a_log_that_was_cut_is_verified_with_its_archive(
    bench: Bench, tmp_path: pathlib.Path
) -> None:
    store = fill(bench.store)
    kept = [
        verify.Kept(position=at, chain=chain)
        for at in (14, 49, 56)
        if (chain := store.chain_at(at)) is not None
    ]
    cut.cut(store, tmp_path, through=FLOOR)
    past = archived.ArchivedLog(store)
    watched = frozenset(one.position for one in kept)
    report = verify.verify(store, kept=kept, begun=archived.walked(store, past, watched))
    assert (report.ok, report.positions) == (True, store.head().position)
    assert [one.agrees for one in report.against] == [True] * 3
    wrong = [verify.Kept(position=14, chain=bytes(32))]
    found = archived.walked(store, past, frozenset({14}))
    assert verify.verify(store, kept=wrong, begun=found).kind is verify.Kind.REWRITTEN


def test_an_archive_that_is_not_there_or_not_the_same_is_refused(
    bench: Bench, tmp_path: pathlib.Path
) -> None:
    store = fill(bench.store)
    [name] = cut.cut(store, tmp_path, through=FLOOR).files
    moved = tmp_path / "moved"
    moved.mkdir()
    (tmp_path / name).rename(moved / name)
    with pytest.raises(archive.ArchiveMissingError, match=f"1 to {FLOOR}") as caught:
        archived.ArchivedLog(store).read(after=3)
    assert (caught.value.code, str(tmp_path) in caught.value.sentence) == ("archive_missing", True)
    past = archived.ArchivedLog(store, folder=moved)
    assert past.read(after=3, limit=1)[0].position == 4
    assert fold.fleet_at(store, 30, past=past).position == 30
    with pytest.raises(port.BelowFloorError):
        fold.fleet_at(store, 30)
    data = (moved / name).read_bytes()
    for changed in (data[:-1], gzip.compress(gzip.decompress(data) + b"{}\n"), b""):
        (moved / name).write_bytes(changed)
        with pytest.raises(archive.ArchiveBadError, match="hash"):
            archived.ArchivedLog(store, folder=moved).read(after=3)


def test_a_file_for_another_place_of_the_log_is_refused(tmp_path: pathlib.Path) -> None:
    store = fill(memory.MemoryStore(clock_us=ManualClock()))
    cut.cut(store, tmp_path, through=21)
    [one] = store.segments()
    for changes in (
        {"chain_before": bytes(range(32))},
        {"chain_after": bytes(32)},
        {"last_position": 28},
        {"first_position": 8},
    ):
        with pytest.raises(archive.ArchiveBadError):
            archive.read(dataclasses.replace(one, **changes), tmp_path)


class Killed(BaseException):
    """The process ended."""


def test_a_cut_that_was_killed_anywhere_goes_on_to_the_same_end(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "RECORDS_MAX", 20)
    monkeypatch.setattr(cut, "DELETE_MAX", 15)
    monkeypatch.setattr(cut, "NOTE_RANGE", 30)
    monkeypatch.setattr(cut, "APPEND_PARTS_MAX", 1)
    monkeypatch.setattr(openings, "PART_BYTES_MAX", 4_000)
    ends, steps = [], 0
    for after in itertools.count(1):
        folder = tmp_path / str(after)
        folder.mkdir()
        store = fill(memory.MemoryStore(clock_us=ManualClock()))
        count = itertools.count(1)
        steps_now: list[str] = []

        def step(name: str) -> None:
            steps_now.append(name)  # noqa: B023  called within this turn
            if next(count) == after:  # noqa: B023
                raise Killed

        killed = False
        try:
            cut.cut(store, folder, through=FLOOR, step=step)
        except Killed:
            killed = True
            assert whole(store, folder).fleet.position == store.head().position
            decides_the_same(begun(store), whole(store, folder))
            with contextlib.suppress(refusal.RefusedError):  # All but the last was done.
                cut.cut(store, folder, through=FLOOR)
        found = [(one.name, one.sha256) for one in store.segments()]
        rest = [record[:6] for record in store.read(after=FLOOR)]
        ends.append((store.head().floor_position, found, rest, begun(store)))
        assert sorted(path.name for path in folder.iterdir()) == [name for name, _ in found]
        if not killed:
            steps = len(steps_now)
            assert {"written", "listed", "opening", "noted", "floor", "deleted"} == set(steps_now)
            break
    assert steps > 10
    assert all(end == ends[-1] for end in ends)


def test_a_log_is_cut_again_and_again(bench: Bench, tmp_path: pathlib.Path) -> None:
    store = fill(bench.store)
    for through in (14, 30, FLOOR):
        cut.cut(store, tmp_path, through=through)
    past_end = store.head().position
    cut.cut(store, tmp_path, through=past_end)  # the first opening balances go too
    assert store.head().floor_position == past_end
    assert [one.first_position for one in store.segments()] == [1, 15, 29, 50]
    said_later(store)
    decides_the_same(begun(store), whole(store, tmp_path))
    past = archived.ArchivedLog(store)
    assert verify.verify(store, begun=archived.walked(store, past)).ok
    with pytest.raises(refusal.RefusedError) as caught:
        cut.cut(store, tmp_path, through=past_end)
    assert caught.value.code == "nothing_to_archive"


def test_retries_of_what_was_cut_are_answered_and_change_nothing(
    bench: Bench, tmp_path: pathlib.Path
) -> None:
    store = fill(bench.store)
    cut.cut(store, tmp_path, through=FLOOR)
    head = store.head()
    again = bench.open_another().append(HISTORY[:60], writer="test")
    assert again.positions == (*[0] * FLOOR, *range(FLOOR + 1, 61))
    assert store.head() == head


def test_a_process_that_had_folded_less_than_was_cut_begins_anew(
    bench: Bench, tmp_path: pathlib.Path
) -> None:
    store = bench.store
    store.append(HISTORY[:7], writer="test")
    slow, fast = fold.Folder(bench.open_another()), fold.Folder(bench.open_another())
    slow.catch_up()
    for first in range(BATCH, len(HISTORY), BATCH):
        store.append(HISTORY[first : first + BATCH], writer="test")
    fast.catch_up()
    cut.cut(store, tmp_path, through=FLOOR)
    for folder in (slow, fast):
        folder.catch_up()
        with folder.at_head() as fleet:
            assert snapshots.Folded(fleet, folder.book) == whole(store, tmp_path)


def test_a_snapshot_from_before_the_floor_is_not_gone_on_from(tmp_path: pathlib.Path) -> None:
    store = memory.MemoryStore(clock_us=ManualClock())
    store.append(HISTORY[:7], writer="test")
    folder = fold.Folder(store, cold=0)
    folder.catch_up()
    assert folder.keep(clock=clocks.ManualClock(1), least=1)
    for first in range(BATCH, len(HISTORY), BATCH):
        store.append(HISTORY[first : first + BATCH], writer="test")
    cut.cut(store, tmp_path, through=FLOOR)
    again = fold.Folder(store, cold=0)
    again.catch_up()
    with again.at_head() as fleet:
        assert snapshots.Folded(fleet, again.book) == whole(store, tmp_path)


def test_two_cuts_at_once_are_one(tmp_path: pathlib.Path) -> None:
    clock = ManualClock()
    store = fill(memory.MemoryStore(clock_us=clock))
    assert store.acquire_lease(cut.LEASE, holder="another", ttl_s=cut.LEASE_TTL_S) is not None
    with pytest.raises(refusal.RefusedError) as caught:
        cut.cut(store, tmp_path, through=FLOOR)
    assert caught.value.code == "archive_runs"
    clock.now_us += round(cut.LEASE_TTL_S * 1_000_000) + 1
    assert cut.cut(store, tmp_path, through=FLOOR).floor == FLOOR


def test_a_log_that_is_not_finalized_is_not_cut(tmp_path: pathlib.Path) -> None:
    store = fill(memory.MemoryStore(clock_us=ManualClock()))
    store.above = formats.above(1)
    with pytest.raises(formats.NotFinalizedError):
        cut.cut(store, tmp_path, through=FLOOR)
    assert (store.segments(), list(tmp_path.iterdir())) == ([], [])


def test_what_may_be_sent_again_stays() -> None:
    clock = ManualClock()
    store = memory.MemoryStore(clock_us=clock)
    days = {}
    for day in range(20):
        days[day] = store.append(log_records.run("a", day + 1, day + 1), writer="w").head.position
        clock.now_us += cut.DAY_US
    at_us = clock.now_us

    def limit(keep_days: float, before: int | None = None, now_us: int = at_us) -> int:
        return cut.limit(store, before=before, keep_days=keep_days, now_us=now_us)

    assert limit(7) == 13
    assert limit(7, now_us=at_us + 100 * cut.DAY_US) == 13, "a clock that is ahead takes nothing"
    assert limit(10, now_us=at_us - 5 * cut.DAY_US) == 6
    assert limit(7, before=5) == 4
    assert limit(7, before=100) == 13
    assert limit(40) == 0
    with pytest.raises(refusal.RefusedError) as caught:
        limit(6.9)
    assert caught.value.code == "keeps_too_little"


def test_a_payload_that_was_erased_on_order_is_erased_in_the_file_and_behind_it(
    tmp_path: pathlib.Path,
) -> None:
    store = fill(memory.MemoryStore(clock_us=ManualClock()))
    for version, outbox in enumerate(("first", "second"), start=1):
        through = store.head().position
        position = said_later(store, outbox)
        [erased] = store.read(after=position - 1, limit=1)
        order = redaction.FactRedacted(
            position=position,
            fact=erased.type,
            digest=hashlib.sha256(erased.data).hexdigest(),
            reason="a person asked",
        )
        data = codec.encode(order)
        store.append(
            [log_records.record(redactions.STREAM, version, data, type="fact_redacted")],
            writer="test",
        )
        store.erase(position)
    cut.cut(store, tmp_path, through=through)
    past = archived.ArchivedLog(store)
    report = verify.verify(store, begun=archived.walked(store, past))
    assert report.ok
    first, second = through - 1, through + 1
    for position in (first, second):
        assert past.read(after=position - 1, limit=1)[0].data == b""
    with pytest.raises(port.BelowFloorError):
        store.read_stream(redactions.STREAM)
    assert sorted(redactions.read(store)) == [second]
    assert sorted(redactions.read(past)) == [first, second]
