"""States as bytes: what is one object stays one, equal states have equal bytes, nothing is guessed."""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass, field

import msgspec
import pytest
from tests.unit import test_golden_events as story

from smgate.domain import evolve, state
from smgate.log import graph
from smgate.service import snapshots


@dataclass(frozen=True, slots=True)
class Chip:
    name: str
    pins: dict[str, str] = field(default_factory=dict)
    heat: float | None = None


@dataclass(frozen=True, slots=True)
class Said:
    by: str
    chip: Chip


@dataclass(frozen=True, slots=True)
class Asked:
    of: tuple[Chip, ...]


@dataclass(slots=True)
class Server:
    name: str
    chips: tuple[Chip, ...] = ()
    seen: set[tuple[str, int]] = field(default_factory=set)
    worked_out: int = field(default=-1, compare=False)
    names: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.worked_out = len(self.chips)


@dataclass(slots=True)
class House:
    servers: dict[str, Server] = field(default_factory=dict)
    favourite: Server | None = None
    by_place: dict[tuple[str, int], list[Server]] = field(default_factory=dict)
    last: dict[str | None, Said | Asked] = field(default_factory=dict)
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    pairs: list[tuple[int, Chip]] = field(default_factory=list)
    hot: frozenset[str] = frozenset()
    kept: dict[object, object] = field(default_factory=dict, compare=False)


CODEC = graph.Codec(House)


def a_house() -> House:
    server = Server("a", (Chip("g", {"x": "1"}), Chip("g", {"x": "1"})), {("b", 2), ("a", 1)})
    return House(
        servers={"a": server, "0": Server("0")},
        favourite=server,
        by_place={("rack", 1): [server]},
        last={None: Said("n", Chip("h", heat=1.5)), "s": Asked((Chip("h", heat=1.5),))},
        counts=Counter({("q", "r"): 2}),
        pairs=[(1, Chip("g", {"x": "1"}))],
        hot=frozenset({"z", "y"}),
        kept={object(): object()},
    )


def plain(house: House) -> graph.Plain:
    return msgspec.json.decode(CODEC.encode(house))


def read(document: graph.Plain) -> House:
    return CODEC.decode(msgspec.json.encode(document))


def test_a_state_is_read_as_it_was_written() -> None:
    house = a_house()
    again = CODEC.decode(CODEC.encode(house))
    assert again == house
    assert CODEC.encode(again) == CODEC.encode(house)
    assert again.favourite is again.servers["a"] is again.by_place["rack", 1][0]
    assert type(again.counts) is Counter
    assert list(again.servers) == ["a", "0"]


def test_what_can_be_worked_out_again_is_not_written() -> None:
    again = CODEC.decode(CODEC.encode(a_house()))
    assert again.kept == {}
    assert again.servers["a"].worked_out == 2


def test_frozen_values_that_say_the_same_are_written_once() -> None:
    assert plain(a_house())["classes"]["test_graph.Chip"]["count"] == 2
    again = CODEC.decode(CODEC.encode(a_house()))
    assert again.pairs[0][1] is again.servers["a"].chips[0]


def test_mutable_objects_that_say_the_same_stay_two() -> None:
    house = House(by_place={("p", 1): [Server("a"), Server("a")]})
    one, other = CODEC.decode(CODEC.encode(house)).by_place["p", 1]
    assert one == other
    assert one is not other


def test_what_was_taken_down_does_not_change_with_the_state() -> None:
    house = a_house()
    before, walked = CODEC.encode(house), CODEC.walk(house)
    house.servers["a"].names.append("later")
    house.servers["a"].seen.clear()
    house.servers["new"] = Server("new")
    house.counts["q", "r"] += 1
    assert walked.encode() == before
    assert CODEC.encode(house) != before


def test_a_field_that_is_not_there_has_its_default() -> None:
    document = plain(a_house())
    del document["classes"]["test_graph.Server"]["columns"]["seen"]
    del document["classes"]["test_graph.House"]["columns"]["counts"]
    again = read(document)
    assert again.servers["a"].seen == set()
    assert again.servers["a"].seen is not again.servers["0"].seen
    assert again.counts == Counter()


def without_a_name(document: graph.Plain) -> None:
    del document["classes"]["test_graph.Server"]["columns"]["name"]


def with_another_field(document: graph.Plain) -> None:
    document["classes"]["test_graph.Server"]["columns"]["weight"] = [1, 2]


def with_another_class(document: graph.Plain) -> None:
    document["classes"]["test_graph.Rack"] = {"count": 0, "columns": {}}


def with_too_few(document: graph.Plain) -> None:
    document["classes"]["test_graph.Server"]["columns"]["name"].pop()


def with_another_type(document: graph.Plain) -> None:
    document["classes"]["test_graph.Server"]["columns"]["name"] = [1, 2]


def with_a_number_too_high(document: graph.Plain) -> None:
    document["classes"]["test_graph.House"]["columns"]["favourite"] = [7]


def with_a_number_below_zero(document: graph.Plain) -> None:
    document["classes"]["test_graph.House"]["columns"]["favourite"] = [-1]


def with_another_union_member(document: graph.Plain) -> None:
    pairs = [[None, ["test_graph.Server", 0]]]
    document["classes"]["test_graph.House"]["columns"]["last"] = [pairs]


def with_another_root(document: graph.Plain) -> None:
    document["root"] = ["test_graph.Server", 0]


def with_another_part(document: graph.Plain) -> None:
    document["more"] = 1


@pytest.mark.parametrize(
    "changed",
    [
        without_a_name,
        with_another_field,
        with_another_class,
        with_too_few,
        with_another_type,
        with_a_number_too_high,
        with_a_number_below_zero,
        with_another_union_member,
        with_another_root,
        with_another_part,
    ],
)
def test_what_does_not_fit_is_refused(changed) -> None:
    document = plain(a_house())
    changed(document)
    with pytest.raises(graph.UnreadableError):
        read(document)


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"\xff", b'{"classes":{},"root":["test_graph.House",0]}']
)
def test_bytes_that_are_no_state_are_refused(data) -> None:
    with pytest.raises(graph.UnreadableError):
        CODEC.decode(data)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_number_that_json_lacks_is_not_written(number) -> None:
    with pytest.raises(ValueError, match="cannot be part of a state"):
        CODEC.encode(House(pairs=[(1, Chip("g", heat=number))]))


def test_an_object_of_another_class_than_it_says_is_not_written() -> None:
    with pytest.raises(TypeError, match="Said stands where"):
        CODEC.encode(House(favourite=Said("n", Chip("h"))))
    said = Said("n", Chip("h"))
    with pytest.raises(TypeError, match="Said stands where"):
        CODEC.encode(House(last={"s": said}, pairs=[(1, said)]))


@pytest.mark.parametrize(
    "hint",
    [object, bytes, set[Chip], dict[Chip, int], Chip | int, list[object], Chip | Said | None],
)
def test_a_field_that_could_not_be_written_is_refused_at_once(hint) -> None:
    made = dataclasses.make_dataclass("Made", [("value", hint)], slots=True)
    made.__module__ = __name__
    with pytest.raises(TypeError):
        graph.Codec(made)


def test_the_story_of_all_events_is_read_as_it_was_written() -> None:
    fleet = state.Fleet()
    for position, name in enumerate(story.HISTORY, start=1):
        evolve.evolve(fleet, story.recorded(position, name))
        folded = snapshots.Folded(fleet)
        written = snapshots.state_codec().encode(folded)
        read_again = snapshots.state_codec().decode(written)
        assert read_again == folded, name
        assert snapshots.state_codec().encode(read_again) == written, name
