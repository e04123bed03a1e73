"""What one unit waits for, as its why says it."""

import pytest
from tests import given

from smgate.domain import commands, facts, why_waits


@pytest.fixture
def fleet():
    """Three servers that the agent may restart and that serve on the target."""
    made = given.Fleet().enforce().qualified().granted("a", "b", "c")
    for node in "abc":
        made.restarts(node, restarter="hook")
    return made


def waiting(fleet, node):
    return {
        one["code"]: one["subject"]
        for one in why_waits.of_unit(fleet.state, fleet.id(node), fleet.now_us)
    }


def pin_off(fleet, node):
    fleet.orders(commands.PinUnit(unit=fleet.id(node), direction="off", reason="a drill"))


def test_a_unit_that_waits_for_nothing_says_so(fleet):
    pin_off(fleet, "a")
    assert waiting(fleet, "b") == {}


def test_a_restart_that_was_ordered_and_one_that_waits_for_its_turn_are_said(fleet):
    pin_off(fleet, "a")
    pin_off(fleet, "b")
    assert waiting(fleet, "a") == {"drain": fleet.id("a")}
    assert waiting(fleet, "b") == {"drain_waits": fleet.id("b")}


def test_a_change_that_names_the_unit_is_said_of_it_alone(fleet):
    fleet.alone(commands.PinUnit(unit=fleet.id("c"), direction="on", reason="it was measured"))
    assert waiting(fleet, "c") == {"change_asked": fleet.newest_change()}
    assert waiting(fleet, "b") == {}


def test_a_plan_that_is_held_about_the_unit_is_said(fleet):
    for node in ("p1", "p2"):
        fleet.check(node, "moe_mxfp4", "failed")
    assert "change_held" in waiting(fleet, "a")


def test_a_grant_that_waits_for_a_restart_is_said(fleet):
    fleet.node("d")
    fleet.launch("d")
    assert waiting(fleet, "d") == {}
    fleet.says("a", facts.GapNoticed(lost_outbox_id="x"))
    fleet.orders(commands.AbortRollout(rollout="r1", reason="a wider one"))
    fleet.rollout("r2")
    assert "grant" in waiting(fleet, "d")
