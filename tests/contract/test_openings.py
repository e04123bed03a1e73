"""Opening balances of other releases: read with defaults and upcasters, or refused."""

from __future__ import annotations

import dataclasses
import pathlib

import msgspec
import pytest
from tests.contract import test_cut as cuts
from tests.contract.conftest import Bench, ManualClock

from smgate.domain import planner
from smgate.log import codec, graph, memory, port
from smgate.service import cut, fold, openings, snapshots


def of_another_release(change) -> graph.Codec:
    """A codec that writes what another release would have written."""
    made = graph.Codec(snapshots.Folded)
    write = made.encode

    def encode(state: object) -> bytes:
        document = msgspec.json.decode(write(state))
        change(document["classes"])
        return msgspec.json.encode(document)

    made.encode = encode  # type: ignore[method-assign]
    return made


def without_newer_fields(classes: graph.Plain) -> None:
    del classes["state.Fleet"]["columns"]["touched_nodes"]
    del classes["state.Unit"]["columns"]["former_grants"]


def with_an_older_field(classes: graph.Plain) -> None:
    classes["state.Fleet"]["columns"]["weather"] = ["fine"]


def cut_by(store: port.Store, folder: pathlib.Path, change, monkeypatch) -> snapshots.Folded:
    """Cut by another release; what this one would have folded of the uncut log."""
    uncut = fold.folded_at(store, cuts.FLOOR)
    with monkeypatch.context() as other:
        other.setattr(snapshots, "state_codec", lambda: of_another_release(change))
        other.setattr(cut, "_check_readable", lambda _: None)
        [name] = cut.cut(store, folder, through=cuts.FLOOR).files
    (folder / name).unlink()
    return uncut


def test_a_release_whose_fold_has_another_field_decides_the_same(
    bench: Bench, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = cuts.fill(bench.store)
    uncut = cut_by(store, tmp_path, without_newer_fields, monkeypatch)
    folded = openings.load(store, cuts.FLOOR)
    assert folded is not None
    assert folded.fleet.touched_nodes == {} != uncut.fleet.touched_nodes
    now_us = uncut.fleet.now_us + cuts.LATER_US
    assert planner.plan(folded.fleet, now_us) == planner.plan(uncut.fleet, now_us)


def test_a_field_that_went_needs_an_upcaster(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = cuts.fill(memory.MemoryStore(clock_us=ManualClock()))
    uncut = cut_by(store, tmp_path, with_an_older_field, monkeypatch)
    with pytest.raises(openings.UnreadableOpeningError, match=r"weather") as caught:
        fold.Folder(store).catch_up()
    assert caught.value.code == "opening_unreadable"

    def drop(document: graph.Plain) -> graph.Plain:
        del document["classes"]["state.Fleet"]["columns"]["weather"]
        return document

    assert openings.load(store, cuts.FLOOR, upcasters={1: drop}) == uncut
    with pytest.raises(openings.UnreadableOpeningError, match="brought up"):
        openings.load(store, cuts.FLOOR, upcasters={1: lambda document: document["nothing"]})


def test_an_opening_balance_that_is_not_what_was_written_stops_the_fold(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = cuts.fill(memory.MemoryStore(clock_us=ManualClock()))
    cut.cut(store, tmp_path, through=cuts.FLOOR)
    [record] = store.read_stream(openings.stream(cuts.FLOOR))
    event = codec.recorded(record).event
    for changes in ({"sha256": "ab" * 32}, {"state_version": 7}):
        changed = dataclasses.replace(event, **changes)
        bad = record._replace(data=codec.encode(changed))
        with monkeypatch.context() as other:
            other.setattr(store, "read_stream", lambda *_, bad=bad, **__: [bad])
            with pytest.raises(openings.UnreadableOpeningError):
                fold.Folder(store).catch_up()
    with monkeypatch.context() as other:
        other.setattr(store, "read_stream", lambda *_, **__: [])
        with pytest.raises(openings.UnreadableOpeningError, match="not there"):
            fold.Folder(store).catch_up()
