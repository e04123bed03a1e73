"""Retired machines: gone by a person's word, or ephemeral and long silent."""

import pytest
from tests import given

from smgate.domain import commands, errors, facts, rulings

DAY_S = 86_400


@pytest.fixture
def fleet():
    made = given.Fleet().enforce()
    made.node("a", "b")
    return made


def retire(fleet, node):
    return fleet.orders(commands.RetireNode(node=node, reason="sent back"), role="operator")


def test_a_retired_machine_takes_its_unit_out_of_every_count(fleet):
    fleet.launch("a")
    unit = fleet.id("a")
    retire(fleet, "a")
    assert not fleet.state.units[unit].live
    assert retire(fleet, "a") == ()


def test_a_server_still_running_on_a_retired_machine_is_left_alone(fleet):
    fleet.launch("a")
    fleet.instance("a")
    retire(fleet, "a")
    assert fleet.told("a")[0::2] == ("keep", "retired")


def test_a_retired_machine_that_is_no_rank_of_this_launch_is_no_member(fleet):
    fleet.launch("a", nnodes=2, node_rank=0, unit_name="pair")
    fleet.launch("b", nnodes=2, node_rank=1, unit_name="pair")
    retire(fleet, "b")
    fleet.launch("a", nnodes=2, node_rank=0, unit_name="pair")
    fleet.later(61)
    assert fleet.state.units["pair"].override.code != "retired"
    assert fleet.state.units["pair"].override.nodes == ("a",)


def test_enrolling_again_brings_a_machine_back(fleet):
    retire(fleet, "a")
    fleet.record(
        rulings.NodeEnrolled(node="a", machine_id="m", agent_version="0.1.0"), "operator:join/1"
    )
    fleet.launch("a")
    assert fleet.told("a")[2] != "retired"


def test_a_machine_that_nobody_knows_is_not_retired(fleet):
    with pytest.raises(errors.RejectedError, match="No node"):
        retire(fleet, "c")


@pytest.mark.parametrize(("ephemeral", "gone"), [(True, True), (False, False)])
def test_only_an_ephemeral_machine_retires_itself_after_a_day_of_silence(fleet, ephemeral, gone):
    fleet.says("a", facts.NodeReported(agent_version="0.1.0", ephemeral=ephemeral))
    fleet.later(DAY_S - 1, silent=["a"])
    assert not fleet.state.nodes["a"].retired
    fleet.later(1, silent=["a"])
    assert fleet.state.nodes["a"].retired is gone


def test_what_is_gone_waits_for_nothing(fleet):
    fleet.launch("a", nnodes=2, node_rank=0, unit_name="pair")
    assert [wait.code for wait in fleet.waits] == ["unit_launch"]
    retire(fleet, "a")
    fleet.later(60)
    assert fleet.waits == ()
