"""A cut that did not come to its end, or met another: what was wanted last is done, and no file is lost."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Iterator

import pytest
import sqlalchemy as sa
from tests.contract import test_cut as cuts
from tests.contract.conftest import Bench, ManualClock

from smgate.log import (
    archive,
    archived,
    memory,
    open as log_open,
    port,
    sql,
    tables,
    verify,
    verify_progress,
    walk,
)
from smgate.service import cut, redact, refusal

STORES = ("sqlite", pytest.param("postgres", marks=pytest.mark.postgres))


@pytest.fixture
def on_file(tmp_path: pathlib.Path) -> Iterator[sql.SqlStore]:
    """The log of `fill`, from which a person may have payloads erased."""
    url = f"sqlite:///{tmp_path / 'log.db'}"
    log_open.upgrade(url)
    store = log_open.open_sql_store(url, clock_us=ManualClock())
    cuts.fill(store)
    yield store
    store.close()


def stop_at(word: str) -> Callable[[str], None]:
    def step(done: str) -> None:
        if done == word:
            raise KeyboardInterrupt

    return step


def stopped(store: port.Store, folder: pathlib.Path, through: int, at: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        cut.cut(store, folder, through=through, step=stop_at(at))


@pytest.mark.parametrize("at", ["written", "listed", "opening", "noted"])
def test_who_thinks_better_of_it_and_keeps_more_keeps_it(
    bench: Bench, tmp_path: pathlib.Path, at: str
) -> None:
    store = cuts.fill(bench.store)
    stopped(store, tmp_path, cuts.FLOOR, at)
    done = cut.cut(store, tmp_path, through=20)
    assert (done.floor, store.head().floor_position) == (14, 14)
    assert store.read(after=14, limit=1)[0].position == 15
    assert [one.last_position for one in store.segments()] == [14]
    assert verify.verify(store, begun=archived.walked(store, archived.ArchivedLog(store))).ok
    cuts.decides_the_same(cuts.begun(store), cuts.whole(store, tmp_path))


@pytest.mark.parametrize("harm", [pathlib.Path.unlink, lambda path: path.write_bytes(b"half")])
def test_a_file_that_was_lost_before_the_cut_was_done_is_written_again(
    tmp_path: pathlib.Path, harm: Callable[[pathlib.Path], object]
) -> None:
    store = cuts.fill(memory.MemoryStore(clock_us=ManualClock()))
    stopped(store, tmp_path, cuts.FLOOR, "listed")
    [path] = tmp_path.iterdir()
    harm(path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert cut.cut(store, elsewhere, through=cuts.FLOOR).floor == cuts.FLOOR
    assert archived.ArchivedLog(store).read(after=0, limit=1)[0].position == 1


def test_two_logs_in_one_folder_leave_each_other_their_files(tmp_path: pathlib.Path) -> None:
    """As of a copy of a log that went on as another, and was cut at the same place."""
    stores = [
        cuts.fill(memory.MemoryStore(clock_us=ManualClock(), incarnation=name))
        for name in ("first", "second")
    ]
    for store in stores:
        cut.cut(store, tmp_path, through=cuts.FLOOR)
    for store in stores:
        [segment] = store.segments()
        assert archive.read(segment, tmp_path).records[0].position == 1
    left = [archive.unlisted(tmp_path, store.segments()) for store in stores]
    assert left == [(stores[1].segments()[0].name,), (stores[0].segments()[0].name,)]


def test_what_a_killed_cut_leaves_behind_is_named(tmp_path: pathlib.Path) -> None:
    store = cuts.fill(memory.MemoryStore(clock_us=ManualClock()))
    stopped(store, tmp_path, cuts.FLOOR, "written")
    [orphan] = (path.name for path in tmp_path.iterdir())
    (tmp_path / "smgate-log-half.jsonl.gz.new").write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("of somebody else")
    cut.cut(store, tmp_path, through=14)
    assert archive.unlisted(tmp_path, store.segments()) == (orphan, "smgate-log-half.jsonl.gz.new")


@pytest.mark.parametrize("at", ["written", "listed", "opening", "noted"])
def test_who_was_stopped_until_another_began_does_nothing_more(
    tmp_path: pathlib.Path, at: str
) -> None:
    clock = ManualClock()
    store = cuts.fill(memory.MemoryStore(clock_us=clock))
    others: list[cut.Cut] = []

    def sleep(done: str) -> None:
        if done == at and not others:
            clock.now_us += round(cut.LEASE_TTL_S * 1_000_000) + 1
            others.append(cut.cut(store, tmp_path, through=14))

    with pytest.raises(refusal.RefusedError) as caught:
        cut.cut(store, tmp_path, through=cuts.FLOOR, step=sleep)
    assert caught.value.code == "archive_runs"
    assert store.head().floor_position == others[0].floor
    assert verify.verify(store, begun=archived.walked(store, archived.ArchivedLog(store))).ok
    cuts.decides_the_same(cuts.begun(store), cuts.whole(store, tmp_path))


def test_a_cut_that_takes_longer_than_its_lease_is_alone_to_its_end(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "RECORDS_MAX", 7)
    clock = ManualClock()
    store = cuts.fill(memory.MemoryStore(clock_us=clock))

    def slow(_: str) -> None:
        clock.now_us += round(cut.LEASE_TTL_S * 1_000_000 * 0.7)
        with pytest.raises(refusal.RefusedError, match="Another process"):
            cut.cut(store, tmp_path, through=14)

    assert cut.cut(store, tmp_path, through=cuts.FLOOR, step=slow).floor == cuts.FLOOR


def put_below(store: port.Store, record: port.StoredRecord) -> None:
    assert isinstance(store, sql.SqlStore)
    with store.database.writing() as connection:
        connection.execute(sa.insert(tables.LOG_EVENT).values(record._asdict()))


@pytest.mark.parametrize("bench", STORES, indirect=True)
@pytest.mark.parametrize("position", [5, 0, -3])
def test_a_row_that_is_put_below_the_floor_is_read_by_nobody_and_found(
    bench: Bench, tmp_path: pathlib.Path, position: int
) -> None:
    """An append would take it for what the node had sent before, and the fact would be gone."""
    store = cuts.fill(bench.store)
    cut.cut(store, tmp_path, through=cuts.FLOOR)
    last = store.read(after=cuts.FLOOR)[-1]
    put_below(store, last._replace(position=position, stream="outbox/later", version=1))
    past = archived.ArchivedLog(store)
    assert [one.position for one in past.read(after=4, limit=60)] == list(range(5, 65))
    assert store.read_stream("outbox/later") == []
    found = archived.walked(store, past)
    report = verify.verify(store, begun=found)
    assert report.first_bad is not None
    assert (report.kind, report.first_bad.position) == (
        walk.Kind.CHANGED if position > 0 else walk.Kind.INSERTED,
        position,
    )


@pytest.mark.parametrize("bench", STORES, indirect=True)
def test_what_a_cut_had_no_time_to_delete_is_compared_with_the_archive(
    bench: Bench, tmp_path: pathlib.Path
) -> None:
    store = cuts.fill(bench.store)
    stopped(store, tmp_path, cuts.FLOOR, "floor")
    past = archived.ArchivedLog(store)
    assert verify.verify(store, begun=archived.walked(store, past)).ok
    assert isinstance(store, sql.SqlStore)
    with store.database.writing() as connection:
        changed = sa.update(tables.LOG_EVENT).where(tables.LOG_EVENT.c.position == 9)
        connection.execute(changed.values(data=b"{}"))
    assert past.read(after=8, limit=1)[0].data != b"{}"
    report = verify.verify(store, begun=archived.walked(store, past))
    assert report.first_bad is not None
    assert (report.kind, report.first_bad.position) == (walk.Kind.CHANGED, 9)


def test_days_beyond_all_measure_keep_everything_and_no_number_is_refused() -> None:
    store = cuts.fill(memory.MemoryStore(clock_us=ManualClock()))
    for keep_days in (float("inf"), 1e300, 1e9):
        assert cut.limit(store, before=None, keep_days=keep_days, now_us=10**16) == 0
    with pytest.raises(refusal.RefusedError, match="stays"):
        cut.limit(store, before=None, keep_days=float("nan"), now_us=10**16)


def test_the_time_of_a_file_that_somebody_changed_in_the_list_is_noticed(
    tmp_path: pathlib.Path,
) -> None:
    """What was known at a time is looked for by it."""
    store = cuts.fill(memory.MemoryStore(clock_us=ManualClock()))
    cut.cut(store, tmp_path, through=cuts.FLOOR)
    [one] = store.segments()
    with pytest.raises(archive.ArchiveBadError):
        archive.read(dataclasses.replace(one, recorded_at_us=one.recorded_at_us - 1), tmp_path)


def test_what_the_archive_has_is_not_erased_though_the_cut_had_no_time_to_delete_it(
    on_file: sql.SqlStore, tmp_path: pathlib.Path
) -> None:
    """It would stand in the file for ever, and the person would have been told that it is gone."""
    position = next(one.position for one in on_file.read(after=0) if one.type == "node_reported")
    assert position < cuts.FLOOR
    stopped(on_file, tmp_path, cuts.FLOOR, "floor")
    with pytest.raises(refusal.RefusedError) as caught:
        redact.redact(on_file, position, by="anna", reason="a token", at_us=10**16)
    assert caught.value.code == "archived"


def test_a_verification_goes_on_where_the_log_was_cut_meanwhile(
    bench: Bench, tmp_path: pathlib.Path
) -> None:
    store = cuts.fill(bench.store)
    before = walk.walk(store, through=cuts.FLOOR).place
    cut.cut(store, tmp_path, through=cuts.FLOOR)
    past = archived.ArchivedLog(store)
    begun = verify_progress.resume(past, before, frozenset())
    report = verify.verify(store, begun=archived.walked(store, past, begun=begun))
    assert (report.ok, report.positions) == (True, store.head().position)


def test_a_log_that_is_cut_while_it_is_verified_is_verified_with_what_went_to_the_archive(
    bench: Bench, tmp_path: pathlib.Path
) -> None:
    store = cuts.fill(bench.store)
    past = archived.ArchivedLog(store)
    cuts_made: list[cut.Cut] = []

    def cut_after_the_first(_: walk.Walked) -> None:
        if not cuts_made:
            cuts_made.append(cut.cut(bench.open_another(), tmp_path, through=cuts.FLOOR))

    report = verify.verified(
        store, lambda: archived.walked(store, past), stretch=7, reached=cut_after_the_first
    )
    assert (report.ok, report.positions, len(cuts_made)) == (True, store.head().position, 1)


def test_what_a_stopped_cut_has_recorded_as_folded_is_not_said_to_be_erased(
    on_file: sql.SqlStore, tmp_path: pathlib.Path
) -> None:
    before, behind = [cuts.said_later(on_file, name) for name in ("before", "behind")]
    stopped(on_file, tmp_path, before, "opening")
    with pytest.raises(refusal.RefusedError) as caught:
        redact.redact(on_file, before, by="anna", reason="a token", at_us=10**16)
    assert (caught.value.code, f"position {before}" in caught.value.message) == (
        "archive_begun",
        True,
    )
    for position in (cuts.said_later(on_file, "since"), behind):
        assert redact.redact(on_file, position, by="anna", reason="why", at_us=10**16)["changed"]


@pytest.mark.parametrize("bench", STORES, indirect=True)
def test_a_stream_that_is_remembered_otherwise_than_the_archive_has_it_is_found(
    bench: Bench, tmp_path: pathlib.Path
) -> None:
    """One row more, and the next facts of a node are acknowledged and never written."""
    store = cuts.fill(bench.store)
    stopped(store, tmp_path, cuts.FLOOR, "noted")
    cut.cut(store, tmp_path, through=21)

    def bad() -> walk.BadRow | None:
        past = archived.ArchivedLog(store, highest={})
        return verify.verify(store, begun=archived.walked(store, past)).first_bad

    assert bad() is None, "what a stopped cut remembered further is behind the floor"
    assert isinstance(store, sql.SqlStore)
    [(stream, version)] = store.stream_floors(after="", limit=1)
    floor = tables.STREAM_FLOOR
    for change, kind in (
        (sa.update(floor).where(floor.c.stream == stream).values(version=version + 9), "changed"),
        (sa.update(floor).where(floor.c.stream == stream).values(version=version), None),
        (sa.insert(floor).values(stream="outbox/nobody", version=1), "changed"),
        (sa.delete(floor).where(floor.c.stream == "outbox/nobody"), None),
        (sa.delete(floor), "removed"),
    ):
        with store.database.writing() as connection:
            connection.execute(change)
        found = bad()
        assert (found and (found.table, found.kind)) == (kind and ("stream_floor", kind))
