"""A launch on the GPUs of the one before takes over what was worked out there, where that still holds."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.bench import fleets

from smgate.domain import facts, keys, readings, state, values

A2A = "deepep"


def launched(*launches: facts.LaunchPlanned) -> tuple[state.Fleet, state.Rank]:
    made = fleets.History()
    for one in (fleets.reported(1, "a"), *launches):
        made.record(one, "node:a")
        if made.fleet.node_units.get("a"):  # as a plan or a view would
            readings.rank_key(made.fleet, fleets.unit(made, "a").known_ranks[0])
    return made.fleet, fleets.unit(made, "a").known_ranks[0]


@pytest.mark.parametrize(
    ("changes", "a2a"),
    [
        ({}, "none"),
        ({"asked_a2a": A2A}, A2A),
        ({"asked_runner": "megamoe"}, "megamoe"),
        ({"dry_resolved": values.Pair(runner="marlin", a2a=A2A)}, A2A),
        ({"build": replace(fleets.BUILD, flashinfer_version="0.7.3")}, "none"),
        ({"layout": replace(fleets.LAYOUT, tp=4)}, "none"),
    ],
    ids=lambda value: value if isinstance(value, str) else "+".join(value) or "nothing",
)
def test_the_kernel_key_is_that_of_the_launch_itself(changes: dict[str, object], a2a: str) -> None:
    first = fleets.launch("a", 1)
    second = replace(first, launch_id="a-2", **changes)  # type: ignore[arg-type]
    assert second.gpus is first.gpus
    fleet, rank = launched(first, second)
    assert rank.planned is second
    assert rank.gpu_uuids == tuple(sorted(gpu.uuid for gpu in first.gpus))
    assert readings.rank_key(fleet, rank) == keys.kernel_key(
        sm="10.7", build=second.build, layout=second.layout, a2a=a2a
    )


def test_an_sm_that_is_read_anew_counts_for_it() -> None:
    first = fleets.launch("a", 1)
    second, third = replace(first, launch_id="a-2"), replace(first, launch_id="a-3")
    others = tuple(replace(gpu, sm="9.0") for gpu in first.gpus)
    corrected = replace(fleets.reported(1, "a"), gpus=others)
    made = fleets.History()
    for one in (fleets.reported(1, "a"), first, second, corrected):
        made.record(one, "node:a")
    assert readings.rank_sm(made.fleet, fleets.unit(made, "a").known_ranks[0]) == "9.0"
    made.record(third, "node:a")
    assert readings.rank_sm(made.fleet, fleets.unit(made, "a").known_ranks[0]) == "10.7"
