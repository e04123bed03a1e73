"""The fleet that plays itself: equal bytes for a seed, every invariant asked, nothing violated."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

from smgate.domain import decisions
from smgate.scenario import invariants, virtual, virtual_people

SEEDS = (6, 11)
TIMES_REAL_SPEED_MIN = 1_000
"""Tens of thousands on a free core; the suite shares its cores."""

PRINT = """\
import json
from smgate.scenario import virtual, virtual_people
world = virtual_people.play(virtual.Spec(seed=3, nodes=10, days=2))
print(json.dumps([world.lines, world.summary()]))
"""


@pytest.fixture(scope="module")
def worlds() -> list[virtual.World]:
    began_s = time.monotonic()
    played = [virtual_people.play(virtual.Spec(seed=s, nodes=16, days=8)) for s in SEEDS]
    assert len(SEEDS) * 8 * 86_400 > TIMES_REAL_SPEED_MIN * (time.monotonic() - began_s)
    return played


def test_the_same_seed_gives_the_same_bytes_whatever_the_seed_of_hashes() -> None:
    printed = {
        subprocess.run(
            [sys.executable, "-c", PRINT],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("0", "1")
    }
    assert len(printed) == 1
    assert b"granted" in printed.pop()


def test_nothing_that_must_hold_was_violated(worlds: list[virtual.World]) -> None:
    assert [world.watch.violations for world in worlds] == [[], []]
    assert all(world.summary()["chain_ok"] for world in worlds)


def test_every_invariant_was_asked(worlds: list[virtual.World]) -> None:
    asked = {name for world in worlds for name in world.watch.checks}
    rare = (decisions.DrainOrdered,)
    assert asked >= {check.__name__ for check, kinds in invariants.OF_EVENTS if kinds != rare}
    assert asked >= {"recomputes", "waits_are_kept", "nothing_is_forgotten", "replays"}


def test_much_happens_in_it_and_is_told(worlds: list[virtual.World]) -> None:
    assert all(world.counts["grants"] > world.counts["grants_ended"] for world in worlds)
    assert all(world.counts["hours_without_controller"] > 0 for world in worlds)
    told = "\n".join(line for world in worlds for line in world.lines)
    for word in ("ALARM", "is QUALIFIED", "wave 0", "loses its network", "gate mode set"):
        assert word in told


def test_a_wrong_kernel_that_a_check_can_tell_is_granted_to_nobody() -> None:
    wrong = set()
    for seed in range(1, 7):
        spec = virtual.Spec(seed=seed, nodes=8, days=6, faults=frozenset({"image", "wrong"}))
        world = virtual_people.play(spec)
        wrong |= world.wrong - world.unseen
        if not world.unseen:
            assert world.counts["grants_on_wrong_kernels"] == 0
    assert wrong


@pytest.mark.parametrize("fault", virtual.FAULTS)
def test_each_misfortune_can_come_alone(fault: str) -> None:
    spec = virtual.Spec(seed=2, nodes=7, days=5, faults=frozenset({fault}))
    world = virtual_people.play(spec)
    assert world.watch.violations == []
    assert world.counts["grants"] > 0


def test_another_seed_is_another_history() -> None:
    quiet = [
        json.dumps(virtual_people.play(virtual.Spec(seed=s, nodes=6, days=1)).lines) for s in (1, 2)
    ]
    assert quiet[0] != quiet[1]
