"""The fleet that plays itself: equal bytes for a seed, every invariant asked, nothing violated."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

from smgate.scenario import invariants, virtual, virtual_people

SEEDS = (6, 11)
"""In each a Friday's image is wrong, a rollout halts and another completes."""
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
    assert asked >= {check.__name__ for check, _ in invariants.OF_EVENTS}
    assert asked >= {"recomputes", "waits_are_kept", "nothing_is_forgotten", "replays"}


def test_much_happens_in_it_and_is_told(worlds: list[virtual.World]) -> None:
    counted = {name for world in worlds for name in world.counts}
    assert counted >= {"completed", "grants", "grants_ended", "halts", "hours_without_controller"}
    told = "\n".join(line for world in worlds for line in world.lines)
    for word in ("ALARM", "is qualified", "wave 0", "FAILED", "went silent", "REFUSED", "freeze"):
        assert word in told


def test_a_wrong_kernel_is_granted_to_nobody_once_a_check_can_tell(
    worlds: list[virtual.World],
) -> None:
    assert sum(world.counts["grants_on_wrong_kernels"] for world in worlds) == 0
    assert any(world.wrong for world in worlds)


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
