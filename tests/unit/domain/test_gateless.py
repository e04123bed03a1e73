"""Which servers came without a launch gate, and which only look so."""

import pytest
from tests import given

from smgate.domain import facts


@pytest.fixture
def fleet():
    """One node of an enforced SM."""
    made = given.Fleet().enforce()
    made.node("a")
    return made


def test_a_first_launch_through_the_gate_is_told_though_the_exit_before_is_not_reported_yet(fleet):
    fleet.serves("a", "auto")  # it came without a launch gate
    fleet.launch("a")
    assert fleet.told("a") == ("append", given.SAFE, "no_rollout")
    assert "unit_unsteerable" not in fleet.alarms()


def test_a_launch_of_one_rank_says_nothing_of_another_rank_without_a_gate(fleet):
    fleet.node("b")
    other = facts.InstanceChanged(
        instance_id="k3", state="serving", unit_name="two", nnodes=2, node_rank=1
    )
    fleet.says("b", other)
    fleet.launch("a", nnodes=2, unit_name="two")
    fleet.later(60)
    assert fleet.told("two") == ("untouched", None, "unit_unsteerable")


def test_a_server_of_a_launch_that_is_not_known_came_through_a_gate(fleet):
    fleet.launch("a")
    fleet.instance("a", launch_id="lost-with-a-log")
    assert fleet.told("a") == ("append", given.SAFE, "no_rollout")


def test_a_server_whose_gpus_are_known_later_is_one_unit(fleet):
    fleet.instance("a", "starting", gpu_uuids=())
    fleet.instance("a", "starting")
    assert fleet.id("a") == "a:" + fleet.id("a")[2:] != "a:nogpu"
