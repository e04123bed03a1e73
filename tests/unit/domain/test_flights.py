"""`max_in_flight` holds for granted units too: who starts on the target first takes a place."""

import pytest
from tests import given

from smgate.domain import commands, facts

GRANTED = ("append", given.TARGET, "granted")
FULL = ("append", given.SAFE, "max_in_flight")
NODES = "abcd"


@pytest.fixture
def fleet():
    """Four granted units that wait for their owners; two may restart or bake at once."""
    made = given.Fleet().enforce().qualified()
    made.node(*NODES)
    for node in NODES:
        made.launch(node)
    made.rollout(max_in_flight=2)
    assert {made.told(node) for node in NODES} == {GRANTED}
    return made


def said(fleet, node):
    return fleet.decided(node).value


def test_who_waits_for_an_owner_takes_no_place_and_who_starts_does(fleet):
    fleet.restarts("a")
    fleet.restarts("b")
    assert [fleet.told(node) for node in "cd"] == [GRANTED, GRANTED]
    fleet.launch("c")
    assert (said(fleet, "c"), fleet.told("c")) == (given.SAFE, FULL)
    assert fleet.told("d") == GRANTED
    assert len(fleet.unit("c").grants) == 1


def test_a_place_that_is_free_again_is_for_the_next_start(fleet):
    fleet.restarts("a")
    fleet.restarts("b")
    fleet.restarts("c")
    fleet.bakes("a", 600)
    assert fleet.told("c") == GRANTED
    assert said(fleet, "c") == given.SAFE
    fleet.restarts("c")
    assert said(fleet, "c") == given.TARGET
    fleet.launch("d")
    assert fleet.told("d") == FULL


def test_units_that_start_at_one_moment_share_the_places(fleet):
    for node in NODES:
        fleet.launch(node, settled=False)
    fleet.settle()
    assert sorted(said(fleet, node) for node in NODES) == [given.TARGET] * 2 + [given.SAFE] * 2


def test_a_unit_that_was_started_on_its_grant_keeps_its_place_through_restarts(fleet):
    for node in "aba":
        fleet.restarts(node)
    assert [said(fleet, node) for node in "ab"] == [given.TARGET, given.TARGET]
    fleet.launch("c")
    assert said(fleet, "c") == given.SAFE


def test_a_start_that_got_the_safe_value_takes_no_place(fleet):
    fleet.orders(commands.DisableGate(gate=given.GATE, sms=("10.7",), reason="a drill"))
    fleet.restarts("a")
    fleet.orders(commands.EnableGate(gate=given.GATE, sms=("10.7",), reason="over"))
    fleet.restarts("b")
    fleet.restarts("c")
    assert [said(fleet, node) for node in "bc"] == [given.TARGET, given.TARGET]
    assert fleet.told("a") == GRANTED


def test_a_place_of_a_unit_that_went_bad_is_free(fleet):
    fleet.orders(commands.AbortRollout(rollout="r1", reason="again"))
    fleet.rollout("r2", max_in_flight=1, failures_max=9, failure_percent=100, success_percent=1)
    fleet.restarts("a")
    fleet.says("a", facts.GpuFaultSeen(gpu_uuid="GPU-a", xid=79))
    fleet.restarts("b")
    assert said(fleet, "b") == given.TARGET


def test_after_the_rollout_nobody_counts_places():
    fleet = given.Fleet().enforce().qualified()
    fleet.node(*NODES)
    for node in NODES:
        fleet.launch(node)
    fleet.rollout(max_in_flight=1, min_sample=1)
    fleet.restarts("a")
    fleet.bakes("a", 600)
    assert fleet.phase() == "completed"
    for node in "bcd":
        fleet.restarts(node)
    assert {said(fleet, node) for node in "bcd"} == {given.TARGET}
