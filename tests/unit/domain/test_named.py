"""What a log says of what nobody told of: a unit is there by its name, of anything else nothing is left."""

from dataclasses import replace

import pytest
from tests import given
from tests.unit import test_golden_events as golden

from smgate.domain import commands, decisions, evolve, named, state
from smgate.log import codec
from smgate.views import present_rollout

UNKNOWN = sorted(codec._NAME_OF[kind] for kind in named._KNOWN)
UNITS = [
    codec._NAME_OF[kind]
    for kind, (one, several, _) in named.SPEAKS.items()
    if (one or several) and kind not in named._KNOWN
]


def first(name):
    """An event of this kind, at the beginning of a log."""
    fleet = state.Fleet()
    evolve.evolve(fleet, golden.recorded(1, name))
    return fleet


@pytest.mark.parametrize("name", sorted(set(UNKNOWN) - {"rollout_proposed"}))
def test_what_is_said_of_what_nobody_told_of_leaves_nothing(name):
    left, nothing = golden.contents(first(name)), golden.contents(state.Fleet())
    units = left.pop("units")
    assert all(unit == state.Unit(id=unit.id, position=1) for unit in units.values())
    nothing.pop("units")
    assert left == nothing


@pytest.mark.parametrize("name", sorted(UNITS))
def test_a_unit_that_is_named_is_a_unit(name):
    assert set(first(name).units) == {"two"}


def opened(fleet, number):
    unit = fleet.unit("a").id
    fleet.record(
        decisions.WaveOpened(rollout="r1", wave=number, units=(unit, "unheard"), eligible=2),
        "controller",
    )
    return fleet.state.rollouts["r1"].waves


def test_a_wave_of_a_unit_that_nobody_reported_can_be_shown():
    fleet = given.Fleet().enforce().qualified()
    fleet.launch("a")
    fleet.orders(commands.DeclareFreeze(id="night", reason="a test"))
    fleet.rollout()
    [wave] = opened(fleet, 0)
    assert "unheard" in wave.members
    shown = present_rollout.rollouts(fleet.state)["r1"]["waves"][0]["members"]
    assert [one["unit"] for one in shown] == [fleet.unit("a").id, "unheard"]


def test_a_wave_that_is_open_or_not_planned_is_not_opened():
    fleet = given.Fleet().enforce().qualified()
    fleet.launch("a")
    fleet.orders(commands.DeclareFreeze(id="night", reason="a test"))
    fleet.rollout()
    assert opened(fleet, 7) == []
    assert len(opened(fleet, 0)) == 1
    assert len(opened(fleet, 0)) == 1


def test_a_rollout_proposed_again_stays_the_first():
    fleet = given.Fleet().enforce().qualified()
    fleet.orders(commands.DeclareFreeze(id="night", reason="a test"))
    fleet.rollout()
    before = fleet.state.rollouts["r1"]
    proposed = golden.recorded(1, "rollout_proposed").event
    fleet.record(replace(proposed, plan=replace(proposed.plan, id="r1")), "operator:anna")
    assert fleet.state.rollouts["r1"] is before
