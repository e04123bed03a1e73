"""Snapshots beside the log: the newest few, and the chain at every end of a batch."""

from __future__ import annotations

import dataclasses

from tests.contract.conftest import Bench
from tests.log_records import run

from smgate.log import chain, port, port_snapshots


def at(position: int, **changes: object) -> port_snapshots.Snapshot:
    made = port_snapshots.Snapshot(
        position=position,
        chain=bytes([position]) * 32,
        fold_version=f"v{position}",
        created_at_us=position * 10,
        data=b"\x00data\xff" * position,
    )
    return dataclasses.replace(made, **changes)


def places(store: port.Store) -> list[int]:
    return [one.position for one in store.snapshots()]


def test_a_log_without_snapshots_has_none(store: port.Store) -> None:
    assert store.snapshots() == []
    assert store.snapshot_data(1) is None


def test_a_snapshot_is_read_as_it_was_kept_by_whoever_opens_the_log(bench: Bench) -> None:
    bench.store.keep_snapshot(at(5), most=2)
    other = bench.open_another()
    assert other.snapshots() == [dataclasses.replace(at(5), data=b"")]
    assert other.snapshot_data(5) == at(5).data


def test_the_newest_stay_and_come_first(store: port.Store) -> None:
    for position in (3, 5, 8):
        store.keep_snapshot(at(position), most=2)
    assert places(store) == [8, 5]
    assert store.snapshot_data(3) is None


def test_one_of_the_same_position_takes_the_place_of_the_other(store: port.Store) -> None:
    store.keep_snapshot(at(5), most=2)
    store.keep_snapshot(at(5, fold_version="newer", data=b"x"), most=2)
    assert store.snapshots() == [at(5, fold_version="newer", data=b"")]
    assert store.snapshot_data(5) == b"x"


def test_those_beyond_the_newest_are_of_another_log_and_go(store: port.Store) -> None:
    for position in (3, 9):
        store.keep_snapshot(at(position), most=2)
    store.keep_snapshot(at(6), most=2)
    assert places(store) == [6, 3]


def test_the_chain_is_known_at_the_ends_of_batches_alone(store: port.Store) -> None:
    assert store.chain_at(0) == chain.GENESIS
    assert store.chain_at(1) is None
    first = store.append(run("a", 1, 3), writer="w").head
    second = store.append(run("b", 1, 2), writer="w").head
    found = [store.chain_at(position) for position in range(7)]
    assert found == [chain.GENESIS, None, None, first.chain, None, second.chain, None]


def test_a_snapshot_moves_nothing_of_the_log(store: port.Store) -> None:
    before = store.append(run("a", 1, 3), writer="w").head
    store.keep_snapshot(at(3), most=2)
    assert store.head() == before
