"""What every store promises about reading: order, pages, streams, moments."""

from __future__ import annotations

from tests.log_records import record, run

from smgate.log import port


def test_pages_join_into_the_whole_log(store: port.Store) -> None:
    for first in range(1, 26, 5):
        store.append(run("a", first, first + 4), writer="w")
    pages, after = [], 0
    while page := store.read(after=after, limit=7):
        assert len(page) <= 7
        pages += page
        after = page[-1].position
    assert [one.position for one in pages] == list(range(1, 26))


def test_reading_past_the_end_or_before_the_beginning_is_no_error(store: port.Store) -> None:
    store.append(run("a", 1, 2), writer="w")
    assert store.read(after=2) == []
    assert store.read(after=99) == []
    assert [one.position for one in store.read(after=-10)] == [1, 2]


def test_a_stream_is_read_by_version(store: port.Store) -> None:
    store.append(
        [record("a", 3), record("b", 1), record("a", 1), record("a", 2), record("A", 9)],
        writer="w",
    )
    assert [one.version for one in store.read_stream("a")] == [1, 2, 3]
    assert [one.position for one in store.read_stream("a")] == [3, 4, 1]
    assert [one.version for one in store.read_stream("a", after_version=1, limit=1)] == [2]
    assert store.read_stream("none") == []
    assert [store.stream_version(name) for name in ("a", "b", "A", "none")] == [3, 1, 9, 0]


def test_the_position_at_a_moment_is_the_last_one_recorded_by_then(bench) -> None:
    for version, now_us in enumerate([1_000, 2_000, 2_000, 3_000], start=1):
        bench.clock.now_us = now_us
        bench.store.append(run("a", 2 * version - 1, 2 * version), writer="w")
    recorded = {one.position: one.recorded_at_us for one in bench.store.read(after=0)}
    first_us, last_us = recorded[1], recorded[8]
    assert bench.store.position_at(recorded_at_us=first_us - 1) == 0
    assert bench.store.position_at(recorded_at_us=last_us) == 8
    for moment_us in recorded.values():
        expected = max(place for place, time_us in recorded.items() if time_us <= moment_us)
        assert bench.store.position_at(recorded_at_us=moment_us) == expected


def test_another_store_on_the_same_log_sees_the_same(bench) -> None:
    bench.store.append(run("a", 1, 3), writer="w")
    other = bench.open_another()
    assert other.head() == bench.store.head()
    assert other.read(after=0) == bench.store.read(after=0)
