"""Decided, told, safe: three numbers of taking back, and what `drain ls` says of each server."""

from dataclasses import replace

import pytest
from tests import given
from tests.given_drains import fleet_on_target, hook_ends, pin_off

from smgate.domain import commands, exposure, take_back, why


def numbers(fleet, **held):
    """Decided, told and safe of SM107."""
    one = take_back.stages(fleet.state, held).get("10.7", take_back.Stages())
    return one.decided, one.told, one.safe


def rows(fleet):
    return {
        row["unit"].partition(":")[0]: row for row in take_back.rows(fleet.state, {}, fleet.now_us)
    }


def test_each_number_counts_for_itself_from_the_decision_to_the_attested_value():
    fleet = fleet_on_target("a", "b", "c")
    assert numbers(fleet) == (0, 0, 0)
    pin_off(fleet, "a")
    assert numbers(fleet) == (1, 0, 0)
    told_at = fleet.unit("a").override_position
    assert numbers(fleet, a=told_at - 1) == (1, 0, 0)
    assert numbers(fleet, a=told_at) == (1, 1, 0)
    fleet.launch("a")
    fleet.instance("a", "starting")
    fleet.effective("a", given.SAFE)
    assert numbers(fleet) == (1, 0, 1)


def test_a_server_that_went_down_is_neither_exposed_nor_safe():
    fleet = fleet_on_target("a", "b", "c")
    pin_off(fleet, "a")
    fleet.instance("a", "exited", exit_code=0)
    assert not exposure.exposed(fleet.state, fleet.unit("a"))
    assert numbers(fleet) == (1, 0, 0)


def test_the_kill_switch_takes_back_without_a_restart_and_is_counted_alike():
    fleet = fleet_on_target("a", "b", "c")
    fleet.orders(commands.DisableGate(gate=given.GATE, reason="stop"))
    assert numbers(fleet) == (3, 0, 0)
    assert {row["restart"] for row in rows(fleet).values()} == {"next start"}
    fleet.restarts("a")
    assert numbers(fleet) == (3, 0, 1)
    fleet.orders(commands.EnableGate(gate=given.GATE, reason="go on"))
    assert numbers(fleet) == (0, 0, 0)


@pytest.mark.parametrize(
    "command",
    [
        commands.ExcludeUnit(unit="a", reason="mine"),
        commands.SetGateMode(gate=given.GATE, sm="10.7", mode="observe", reason="r"),
    ],
)
def test_what_nobody_steers_any_more_is_not_being_taken_back(command):
    fleet = fleet_on_target("a", "b", "c")
    pin_off(fleet, "a")
    fleet.orders(command)
    assert numbers(fleet) == (0, 0, 0)


def test_a_server_that_never_ran_the_target_is_not_being_taken_back():
    fleet = given.Fleet().enforce()
    fleet.node("a")
    fleet.launch("a")
    fleet.serves("a", given.SAFE)
    assert numbers(fleet) == (0, 0, 0)


def test_one_that_attests_the_target_after_the_decision_counts_from_then_on():
    fleet = given.Fleet().enforce()
    fleet.node("a")
    fleet.launch("a")
    fleet.serves("a", given.TARGET)
    assert fleet.told("a")[1] == given.SAFE
    assert numbers(fleet) == (1, 0, 0)


def test_every_server_has_its_restart_its_owner_and_its_next_step():
    fleet = fleet_on_target("a", "b", "c", "d")
    fleet.restarts("d")  # by its owner: nobody gave it a hook
    pin_off(fleet, "a", "b", "d")
    found = {name: (row["restart"], row["owner"]) for name, row in rows(fleet).items()}
    assert found == {
        "a": ("ordered", "node"),
        "b": ("waits: budget", "operator"),
        "d": ("waits: external", "unit owner"),
    }
    hook_ends(fleet, "a", "failed", 3)
    assert rows(fleet)["a"]["restart"] == "failed: hook_failed"
    assert rows(fleet)["a"]["order"] is not None
    fleet.restarts("a", restarter="hook")
    assert [row["safe"] for row in take_back.rows(fleet.state, {}, fleet.now_us)][-1] is True
    assert (rows(fleet)["a"]["restart"], rows(fleet)["a"]["owner"]) == ("none", None)


def test_one_that_waits_for_an_answer_names_the_change():
    fleet = fleet_on_target("a", "b")
    fleet.check("p1", outcome="failed")
    ruling = commands.RuleBuild(kernel_key=given.KEY, node="p1", ruling="confirmed", reason="seen")
    fleet.orders(ruling)
    row = rows(fleet)["a"]
    (change,) = fleet.state.open_changes
    assert (row["restart"], row["owner"]) == ("asked", "approver")
    assert row["next_step"] == f"smgate change show {change}"
    fleet.orders(commands.WithdrawChange(change=change, reason="tonight they serve"))
    assert rows(fleet)["a"]["restart"] == "waits: declined"


def test_since_when_a_server_is_taken_back_is_said_to_the_second():
    fleet = fleet_on_target("a")
    pin_off(fleet, "a")
    at_us = fleet.now_us
    fleet.later(90)
    assert rows(fleet)["a"]["since"] == why.iso(at_us)


def test_a_decision_at_the_first_position_of_a_log_is_not_told_to_who_never_spoke():
    fleet = fleet_on_target("a")
    pin_off(fleet, "a")
    unit = fleet.unit("a")
    unit.override_position = 1
    assert not take_back.is_told(unit, {})
    assert take_back.is_told(unit, {"a": 1})
    unit.override = replace(unit.override, nodes=())
    assert not take_back.is_told(unit, {})
