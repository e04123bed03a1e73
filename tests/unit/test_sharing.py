"""Equal parts of decoded events are one object, and nothing but memory depends on it."""

import gc
import pathlib
import tracemalloc

import msgspec
import pytest
from tests.bench import decide, fleets

from smgate.domain import evolve, facts, planner
from smgate.log import codec, sharing

GOLDEN = pathlib.Path(__file__).parents[1] / "golden" / "events"
NODES = 200
BYTES_PER_NODE_MAX = 9_000
"""Of a settled fleet with its planner; 100,000 such nodes stay below 1 GiB."""


def again(event):
    """The event as it is read from the log."""
    return codec.decode(codec.name_of(event), codec.version_of(event), codec.encode(event))


def test_what_two_launches_have_in_common_is_there_once():
    one, other = again(fleets.launch("a", 1)), again(fleets.launch("b", 1))
    assert one == fleets.launch("a", 1)
    assert one.build is other.build
    assert one.layout is other.layout
    assert one.model is other.model
    report = again(fleets.reported(1, "a"))
    assert [gpu.uuid for gpu in one.gpus] == [gpu.uuid for gpu in report.gpus]
    assert all(mine.uuid is its.uuid for mine, its in zip(one.gpus, report.gpus, strict=True))


def test_what_alike_servers_attest_is_one_event():
    one, other = again(fleets.effective("marlin")), again(fleets.effective("marlin"))
    assert one == fleets.effective("marlin")
    assert one is other
    assert again(fleets.effective("triton")) == fleets.effective("triton")


def test_what_differs_stays_apart():
    usual = fleets.launch("a", 1)
    pinned = facts.LaunchPlanned(
        **{name: getattr(usual, name) for name in facts.LaunchPlanned.__slots__}
        | {"build": type(usual.build)(artifact_pins={"cubins": "1"})}
    )
    assert again(pinned).build.artifact_pins == {"cubins": "1"}
    assert again(usual).build == usual.build


def test_a_stream_of_distinct_builds_does_not_fill_the_memory():
    usual = fleets.launch("a", 1)
    large, kept = "x" * 1_000_000, sharing._kept[type(usual.build)]
    most = 0
    for number in range(2 * sharing.KEPT_BYTES_MAX // len(large)):
        planned = facts.LaunchPlanned(
            launch_id="a-1",
            platform="cuda",
            argv_read=True,
            build=type(usual.build)(artifact_pins={"cubins": f"{number}{large}"}),
        )
        assert again(planned) == planned
        assert sum(map(len, kept)) <= sharing.KEPT_BYTES_MAX
        most = max(most, len(kept))
    assert most > sharing.KEPT_BYTES_MAX // len(large) // 2
    kept.clear()


def test_many_small_parts_do_not_fill_the_memory_either():
    kept = sharing._Kept()
    for number in range(2 * sharing.KEPT_MAX + 10):
        assert sharing._keep(kept, b"%d" % number, number) == number
    assert 1 < len(kept) <= sharing.KEPT_MAX


@pytest.mark.parametrize("kind", [*sharing.SHARED, *sharing.WHOLE], ids=lambda kind: kind.__name__)
def test_an_event_with_shared_parts_reads_like_any_other(kind):
    """As msgspec reads the class itself, with each field there, missing and of a wrong type."""
    name, plain = codec._NAME_OF[kind], msgspec.json.Decoder(kind)
    files = sorted(GOLDEN.glob(f"{name}*.json"))
    assert files
    for file in files:
        full = msgspec.json.decode(file.read_bytes())
        for field in [None, *sharing.SHARED.get(kind, kind.__slots__)]:
            for change in ({}, {field: 7}, {field: None}):
                data = {key: value for key, value in full.items() if key != field}
                data |= change if field else {}
                sent = msgspec.json.encode(data, order="sorted")
                try:
                    expected = plain.decode(sent)
                except msgspec.DecodeError:
                    with pytest.raises(codec.UnknownEventError):
                        codec.decode(name, codec._READER.newest[name], sent)
                else:
                    read = codec.decode(name, codec._READER.newest[name], sent)
                    assert (type(read), read) == (kind, expected)


def test_a_node_takes_less_memory_than_a_fleet_of_a_hundred_thousand_may():
    made = fleets.of(NODES)
    log, now_us = decide.stored(made), made.now_us
    del made
    gc.collect()
    tracemalloc.start()
    try:
        fleet, kept = evolve.fold(codec.recorded(record) for record in log), planner.Planner()
        assert not kept.plan(fleet, now_us).events
        gc.collect()
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert held / NODES < BYTES_PER_NODE_MAX
