"""What a store answers for the part of its log that went to the archive."""

from __future__ import annotations

import concurrent.futures

import pytest
from tests.contract.conftest import Bench
from tests.log_records import record, run

from smgate.log import port, port_archive


def segment(store: port.Store, first: int, last: int, *, at_us: int = 50) -> port_archive.Segment:
    before, after = store.chain_at(first - 1), store.chain_at(last)
    assert before is not None
    assert after is not None
    return port_archive.Segment(
        first_position=first,
        last_position=last,
        folder="/somewhere",
        name=f"{first}",
        sha256="ab" * 32,
        chain_before=before,
        chain_after=after,
        recorded_at_us=at_us,
    )


def filled(store: port.Store) -> port.Store:
    """Positions 1 to 9 in three batches; those of two outboxes lie among each other."""
    store.append(run("a", 1, 2), writer="w")
    store.append([*run("a", 3, 4), *run("b", 1, 2)], writer="w")
    store.append([*run("a", 5, 5), *run("c", 1, 2)], writer="w")
    return store


def cut(store: port.Store, floor: int = 6, *, delete: bool = True) -> None:
    store.add_segment(segment(store, 1, floor))
    store.note_streams(after=0, through=floor)
    store.raise_floor(floor)
    while delete and store.delete_below_floor(most=4):
        pass


def test_a_log_that_was_not_cut_has_no_floor(store: port.Store) -> None:
    filled(store)
    assert store.head().floor_position == 0
    assert store.segments() == []
    assert store.delete_below_floor(most=10) == 0
    assert len(store.read(after=0)) == 9


def test_what_stands_behind_the_floor_is_as_it_was(bench: Bench) -> None:
    store = filled(bench.store)
    before = store.head()
    rest, batches = store.read(after=6), store.read_batches(after=6)
    cut(store)
    other = bench.open_another()
    assert other.read(after=6) == rest
    assert other.read_batches(after=6) == batches
    assert other.chain_at(9) == before.chain
    head = other.head()
    assert (head.position, head.chain, head.floor_position) == (9, before.chain, 6)
    assert [one.last_position for one in other.segments()] == [6]
    assert other.chain_at(6) == other.segments()[0].chain_after
    assert other.delete_below_floor(most=10) == 0


@pytest.mark.parametrize("delete", [True, False])
def test_a_read_that_begins_below_the_floor_is_told_so(store: port.Store, delete: bool) -> None:
    filled(store)
    cut(store, delete=delete)
    for after in (-(2**62), 0, 5):
        with pytest.raises(port.BelowFloorError) as caught:
            store.read(after=after)
        assert caught.value.floor == 6
    with pytest.raises(port.BelowFloorError):
        store.read_stream("a", after_version=3)
    with pytest.raises(port.BelowFloorError):
        store.read_batches(after=0)
    assert [one.version for one in store.read_stream("a", after_version=4)] == [5]
    assert store.read(after=9) == []
    assert store.read_stream("none") == []


def test_a_stream_has_the_versions_it_had(store: port.Store) -> None:
    filled(store)
    cut(store)
    assert [store.stream_version(name) for name in ("a", "b", "c", "d")] == [5, 2, 2, 0]


@pytest.mark.parametrize("gapless", [True, False])
def test_what_the_archive_has_is_answered_as_written_and_written_once(
    bench: Bench, gapless: bool
) -> None:
    store = filled(bench.store)
    other = bench.open_another()
    other.append(run("a", 5, 5), writer="w")  # so that it has seen the log without a floor
    cut(store)
    for one in (other, store):
        before = one.head()
        again = one.append(run("a", 1, 5), writer="w", gapless=gapless)
        assert again.positions == (0, 0, 0, 0, 7)
        assert (set(again.already), again.written) == ({0, 7}, ())
        assert one.append(run("b", 1, 1), writer="w", gapless=gapless).positions == (0,)
        assert one.head() == before


def test_a_stream_goes_on_where_it_was_cut(bench: Bench) -> None:
    store = filled(bench.store)
    cut(store)
    mixed = bench.open_another().append(run("b", 2, 4), writer="w", gapless=True)
    assert mixed.positions == (0, 10, 11)
    with pytest.raises(port.GapError):
        store.append(run("b", 6, 6), writer="w", gapless=True)
    assert store.append(run("new", 1, 1), writer="w", gapless=True).positions == (12,)


def test_other_content_behind_the_floor_is_a_conflict_still(store: port.Store) -> None:
    filled(store)
    cut(store)
    with pytest.raises(port.ConflictError):
        store.append([record("a", 5, "other")], writer="w")


def test_a_time_finds_the_floor_and_what_is_behind_it(bench: Bench) -> None:
    store = filled(bench.store)
    recorded_us = store.read_batches(after=0)[-1].recorded_at_us
    store.add_segment(segment(store, 1, 6, at_us=recorded_us - 5))
    store.raise_floor(6)
    while store.delete_below_floor(most=4):
        pass
    assert store.position_at(recorded_at_us=recorded_us) == 9
    assert store.position_at(recorded_at_us=recorded_us - 1) == 6
    with pytest.raises(port.BelowFloorError):
        store.position_at(recorded_at_us=recorded_us - 6)


def test_a_floor_is_never_lowered_and_a_file_is_listed_once(store: port.Store) -> None:
    filled(store)
    cut(store)
    store.raise_floor(2)
    assert store.head().floor_position == 6
    store.raise_floor(9)
    assert store.head().floor_position == 6, "no file ends there"
    listed = store.segments()
    store.add_segment(segment(store, 7, 9))
    store.add_segment(port_archive.Segment(**{**_fields(listed[0]), "name": "again"}))
    assert [one.name for one in store.segments()] == [listed[0].name, "7"]
    store.forget_segments()
    assert [one.name for one in store.segments()] == [listed[0].name]


def _fields(one: port_archive.Segment) -> dict[str, object]:
    return {name: getattr(one, name) for name in one.__slots__}


def test_an_append_fenced_by_epoch_goes_on_over_a_cut(bench: Bench) -> None:
    store = filled(bench.store)
    epoch = store.take_epoch(holder="leader")
    cut(bench.open_another())
    assert store.append(run("d", 1, 1), writer="w", epoch=epoch).positions == (10,)
    with pytest.raises(port.FencedError):
        store.append(run("d", 2, 2), writer="w", epoch=epoch - 1)


def test_retries_while_the_log_is_cut_are_never_written_again(bench: Bench) -> None:
    store = bench.store
    for version in range(1, 41):
        store.append(run("a", version, version), writer="w")

    def retry(_: int) -> int:
        other = bench.open_another()
        return sum(
            len(other.append(run("a", version, version), writer="w").written)
            for version in [*range(1, 41)] * 2
        )

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        retries = pool.map(retry, range(2))
        for floor in (10, 20, 30):
            store.add_segment(segment(store, floor - 9, floor))
            store.note_streams(after=floor - 10, through=floor)
            store.raise_floor(floor)
            while store.delete_below_floor(most=3):
                pass
        assert list(retries) == [0, 0]
    assert store.head().position == 40
