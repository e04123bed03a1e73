"""A fold that goes on from a snapshot is the fold of the whole log, and else the snapshot is not used."""

from __future__ import annotations

import dataclasses
import logging
import pathlib
import shutil
import zlib

import pytest
from tests import given
from tests.log_records import run

import smgate
from smgate import clock
from smgate.domain import facts
from smgate.log import codec, memory, port
from smgate.service import book, fold, records, snapshots

COLD = 5


def append(store, events, stream="controller", actor="controller"):
    first = store.stream_version(stream) + 1
    made = records.of_events(events, stream=stream, first_version=first, actor=actor, at_us=1)
    return store.append(made, writer="test").head


def a_log(batch=7):
    """A fleet with grants, drains and alarms, in a store of its own."""
    store = memory.MemoryStore(clock_us=lambda: 1)
    fleet = given.Fleet().enforce().qualified()
    fleet.granted("a", "b", bake_s=10)
    fleet.serves("c")
    fleet.check("b", outcome="failed")
    made = [
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
    for first in range(0, len(made), batch):
        store.append(made[first : first + batch], writer="test")
    return store


def folded(store, *, cold=COLD):
    folder = fold.Folder(store, cold=cold)
    folder.catch_up()
    return folder


def same(one, other):
    with one.now() as fleet, other.now() as reference:
        assert fleet == reference
    assert one.book == other.book


def kept(store):
    folder = folded(store)
    assert folder.keep(clock=clock.ManualClock(9), least=1)
    return folder


class Counted:
    """A store that tells how many records were read of it."""

    def __init__(self, store):
        self._store, self.read_count = store, 0

    def __getattr__(self, name):
        return getattr(self._store, name)

    def read(self, *, after, limit=1000):
        page = self._store.read(after=after, limit=limit)
        self.read_count += len(page)
        return page


def test_a_start_goes_on_from_the_snapshot_and_reads_nothing_before_it():
    store = a_log()
    same(kept(store), folded(store, cold=10**9))
    append(store, [facts.GapNoticed(lost_outbox_id="box")], "outbox/x", "node:a")
    counted = Counted(store)
    warm = folded(counted)
    assert counted.read_count == 1
    same(warm, folded(store, cold=10**9))
    assert list(warm.book.pages)


def test_it_can_go_on_from_every_position():
    whole = a_log(batch=1)
    records_of = whole.read(after=0, limit=10_000)
    reference = folded(whole, cold=10**9)
    folder = fold.Folder(grows := memory.MemoryStore(clock_us=lambda: 1), cold=1)
    for record in records_of:
        new = port.NewRecord(**{name: getattr(record, name) for name in port.NewRecord._fields})
        grows.append([new], writer="test")
        folder.catch_up()
        assert folder.keep(clock=clock.ManualClock(), least=1)
        folder = fold.Folder(grows, cold=0)
    folder.catch_up()
    same(folder, reference)


def test_a_small_log_is_folded_without_looking_for_one():
    store = a_log()
    kept(store)
    counted = Counted(store)
    folded(counted, cold=10**9)
    assert counted.read_count == store.head().position


def change(store, **changes):
    [one] = store.snapshots()
    data = store.snapshot_data(one.position)
    changed = {name: made(data) if callable(made) else made for name, made in changes.items()}
    store.keep_snapshot(dataclasses.replace(one, **{"data": data, **changed}), most=1)


def without_a_column(data):
    plain = zlib.decompress(data).replace(b'"sm"', b'"ms"')
    return zlib.compress(plain)


def of_an_earlier_position(data):
    folded_before = snapshots.state_codec().decode(zlib.decompress(data))
    folded_before.fleet.position -= 1
    return zlib.compress(snapshots.state_codec().encode(folded_before))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"fold_version": "of another release"}, "another release folded it"),
        ({"chain": bytes(32)}, "it is of another log"),
        ({"data": b"nothing"}, "it cannot be read"),
        ({"data": lambda data: data[:-9]}, "it cannot be read"),
        ({"data": without_a_column}, "it cannot be read"),
        ({"data": of_an_earlier_position}, "it is not what it says it is"),
    ],
)
def test_one_that_does_not_fit_is_not_used_and_the_log_says_why(changes, said, caplog):
    store = a_log()
    reference = kept(store)
    change(store, **changes)
    counted = Counted(store)
    with caplog.at_level(logging.WARNING):
        again = folded(counted)
    assert counted.read_count == store.head().position
    assert said in caplog.text
    same(again, reference)


def test_the_one_before_is_used_where_the_newest_is_not():
    store = a_log()
    kept(store)
    first = store.head().position
    append(store, [facts.GapNoticed(lost_outbox_id="box")], "outbox/x", "node:a")
    kept(store)
    newest = store.snapshots()[0]
    store.keep_snapshot(dataclasses.replace(newest, data=b"", fold_version="x"), most=2)
    counted = Counted(store)
    folded(counted)
    assert counted.read_count == store.head().position - first


def test_who_listens_is_woken_for_what_the_snapshot_holds():
    store, topics = a_log(), set()
    kept(store)
    fold.Folder(store, cold=COLD, on_topics=topics.update).catch_up()
    assert book.EVERY_NODE in topics


def test_none_is_kept_before_it_is_worth_it():
    store = a_log()
    folder = folded(store)
    position = store.head().position
    assert not folder.keep(clock=clock.ManualClock(), least=position + 1)
    assert not folder.keep(clock=clock.ManualClock())
    assert store.snapshots() == []
    assert folder.keep(clock=clock.ManualClock(), least=position)
    assert not folder.keep(clock=clock.ManualClock(), least=0)
    store.append(run("outbox/y", 1, 3), writer="w")


def test_the_fold_version_is_of_the_code_that_folds():
    made = snapshots.fold_version()
    assert len(made) == 64
    snapshots.fold_version.cache_clear()
    assert snapshots.fold_version() == made


def test_a_change_of_the_code_is_another_fold_version(tmp_path, monkeypatch):
    before = snapshots.fold_version()
    package = tmp_path / "smgate"
    shutil.copytree(pathlib.Path(smgate.__path__[0]), package)
    monkeypatch.setattr(smgate, "__path__", [str(package)])
    snapshots.fold_version.cache_clear()
    try:
        assert snapshots.fold_version() == before
        for name in ("domain/memory/fit.py", "domain/evolve.py", "log/codec.py", "service/book.py"):
            path = package / name
            path.write_text(path.read_text() + "\n")
            snapshots.fold_version.cache_clear()
            assert snapshots.fold_version() != before
            before = snapshots.fold_version()
    finally:
        monkeypatch.undo()
        snapshots.fold_version.cache_clear()


class Full:
    """A store on a disk that is full for a while."""

    def __init__(self, store):
        self._store, self.full, self.tried = store, True, 0

    def __getattr__(self, name):
        return getattr(self._store, name)

    def keep_snapshot(self, snapshot, *, most):
        self.tried += 1
        if self.full:
            raise port.LogUnavailableError("disk_full", "no room")
        self._store.keep_snapshot(snapshot, most=most)


def test_one_that_could_not_be_kept_is_tried_again_after_a_while(monkeypatch):
    monkeypatch.setattr(snapshots, "EVERY", 1)
    monkeypatch.setattr(snapshots, "EVERY_OF_UNITS", 0)
    store, at = Full(a_log()), clock.ManualClock(1)
    folder = folded(store)
    with pytest.raises(port.LogUnavailableError):
        folder.keep(clock=at)
    for _ in range(5):
        at.advance_to(at.now_us() + 10_000_000)
        assert not folder.keep(clock=at)
    assert (store.tried, folder.snapshot_failures) == (1, 1)
    store.full = False
    at.advance_to(at.now_us() + 300_000_000)
    assert folder.keep(clock=at)
    assert not folder.keep(clock=at)
    assert (store.tried, len(store.snapshots())) == (2, 1)


def test_a_process_that_ends_tries_once_more():
    store, at = Full(a_log()), clock.ManualClock(1)
    folder = folded(store)
    with pytest.raises(port.LogUnavailableError):
        folder.keep(clock=at, least=1)
    store.full = False
    assert folder.keep(clock=at, least=1)
