"""A server that hangs on the target: a fault in service, bounded by the policy."""

import pytest
from tests import given

HANG_S = 900


@pytest.fixture
def fleet():
    """A unit granted the target, serving on it."""
    made = given.Fleet(hang_after_s=HANG_S).enforce().qualified()
    made.node("a")
    made.launch("a")
    made.rollout()
    made.restarts("a")
    made.serves("a", given.TARGET)
    assert made.told("a") == ("append", given.TARGET, "granted")
    return made


def test_a_server_unhealthy_for_too_long_loses_its_grant(fleet):
    fleet.instance("a", "unhealthy")
    fleet.later(HANG_S - 1)
    assert fleet.told("a")[2] == "granted"
    assert [w.code for w in fleet.waits if w.subject == fleet.id("a")] == ["unhealthy"]
    fleet.later(1)
    assert fleet.told("a") == ("append", given.SAFE, "fault_in_service")


def test_a_server_that_recovers_in_time_keeps_it(fleet):
    fleet.instance("a", "unhealthy")
    fleet.later(HANG_S - 1)
    fleet.instance("a", "serving")
    fleet.instance("a", "unhealthy")
    fleet.later(HANG_S - 1)
    assert fleet.told("a")[2] == "granted"


def test_nobody_hangs_while_nobody_leads(fleet):
    fleet.instance("a", "unhealthy")
    fleet.away(10 * HANG_S)
    assert fleet.told("a")[2] == "granted"


def test_a_hang_on_the_safe_value_says_nothing_of_the_target():
    fleet = given.Fleet(hang_after_s=HANG_S).enforce().qualified()
    fleet.node("a")
    fleet.launch("a")
    fleet.serves("a", given.SAFE)
    fleet.instance("a", "unhealthy")
    fleet.later(2 * HANG_S)
    assert fleet.state.gpu_memory == {}
