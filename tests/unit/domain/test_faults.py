"""Faults in service: what is a crash loop, and what a server without a grant leaves behind."""

import pytest
from tests import given

from smgate.domain import commands, decisions, values

FAULT = ("append", given.SAFE, "fault_in_service")
DAY_S = 86_400


def granted():
    made = given.Fleet().enforce().qualified()
    return made.granted("a", failures_max=9, failure_percent=100, success_percent=1)


def adopted():
    """Seen on the target before anybody decided about it."""
    made = given.Fleet().qualified()
    made.node("a")
    made.launch("a")
    made.serves("a")
    made.enforce()
    assert made.told("a")[2] == "adopted"
    return made


def pinned():
    """A person pinned it to the target, with no break-glass and no rollout."""
    made = given.Fleet().enforce().qualified()
    made.node("a")
    made.launch("a")
    made.orders(commands.PinUnit(unit="a", direction="on", reason="a measured exception"))
    made.restarts("a")
    assert made.told("a") == ("append", given.TARGET, "pinned_on")
    return made


def exits(fleet, *codes):
    for code in codes:
        fleet.serves("a")
        fleet.instance("a", "exited", exit_code=code)


# A crash loop


@pytest.mark.parametrize("code", [1, 137, 139, -6, -9, -11])
def test_three_failed_exits_are_a_crash_loop(code):
    fleet = granted()
    exits(fleet, code, code)
    assert fleet.told("a")[2] == "granted"
    exits(fleet, code)
    assert fleet.told("a") == FAULT


@pytest.mark.parametrize("code", [0, 130, 143, -2, -15])
def test_a_server_that_was_told_to_stop_did_not_crash(code):
    fleet = granted()
    exits(fleet, *[code] * 5)
    assert fleet.told("a")[2] == "granted"


def test_failed_exits_a_day_apart_are_no_loop():
    fleet = granted()
    for _ in range(5):
        exits(fleet, 1)
        fleet.later(DAY_S / 2)
    assert fleet.told("a")[2] == "granted"
    exits(fleet, 1)
    fleet.later(DAY_S / 2 - 1)
    exits(fleet, 1)
    assert fleet.told("a") == FAULT


# With no grant that could end


def faulted(fleet):
    return [(e.unit, e.kernel_keys, e.gpu_uuids) for e in fleet.seen(decisions.TargetFaulted)]


@pytest.mark.parametrize("begun", [adopted, pinned])
def test_a_crash_loop_is_a_fault_whoever_put_it_on_the_target(begun):
    fleet = begun()
    exits(fleet, 1, 1)
    assert faulted(fleet) == []
    exits(fleet, 1, 1)
    assert faulted(fleet) == [(fleet.id("a"), (given.KEY,), ("GPU-a",))]
    assert fleet.told("a") == FAULT
    fleet.launch("a")
    assert fleet.decided("a").value == given.SAFE


@pytest.mark.parametrize("begun", [adopted, pinned])
def test_a_hang_is_a_fault_whoever_put_it_on_the_target(begun):
    fleet = begun()
    fleet.instance("a", "unhealthy")
    hang_s = fleet.state.policy.hang_after_s
    (wait,) = [w for w in fleet.waits if w.code == "unhealthy"]
    assert wait.remaining_us == hang_s * 1_000_000
    fleet.later(hang_s - 1)
    assert faulted(fleet) == []
    fleet.later(1)
    assert fleet.told("a") == FAULT
    fleet.later(hang_s)
    assert len(faulted(fleet)) == 1
    assert [w for w in fleet.waits if w.code == "unhealthy"] == []


def test_a_break_glass_stays_on_the_target():
    fleet = pinned()
    pin = commands.PinUnit(unit="a", direction="on", break_glass=True, reason="it must serve")
    fleet.orders(pin)
    exits(fleet, 1, 1, 1)
    assert fleet.told("a") == ("append", given.TARGET, "pinned_on")


def test_a_fault_without_a_grant_is_a_bad_sign_for_the_breaker():
    fleet = given.Fleet(breaker_bad_units=1).qualified()
    fleet.node("a")
    fleet.launch("a")
    fleet.serves("a")
    exits(fleet, 1, 1, 1)
    assert fleet.state.breaker_position is not None


@pytest.mark.parametrize("runner", ["marlin", "triton"])
def test_what_crashes_or_hangs_off_the_target_says_nothing_about_it(runner):
    fleet = given.Fleet().enforce().qualified()
    fleet.node("a")
    fleet.launch("a")
    for _ in range(4):
        fleet.serves("a", runner)
        fleet.instance("a", "exited", exit_code=1)
    fleet.serves("a", runner)
    fleet.instance("a", "unhealthy")
    fleet.later(fleet.state.policy.hang_after_s)
    assert faulted(fleet) == []
    assert fleet.state.gpu_memory == {}


def test_a_baseline_server_that_crashes_is_no_case_for_the_gate():
    fleet = given.Fleet().enforce("10.3")
    fleet.node("a", sm="10.3")
    fleet.launch("a", sm="10.3")
    exits(fleet, 1, 1, 1, 1)
    assert faulted(fleet) == []
    assert fleet.told("a")[2] == "baseline_sm"


# A check that says another SM than its GPUs have


def test_a_check_of_another_sm_than_its_gpus_is_no_evidence():
    fleet = given.Fleet().enforce()
    fleet.node(*given.POOL, pool=True, sm="10.3")
    fleet.passes(*given.POOL)
    assert given.KEY not in fleet.state.keys
    fleet.node(*given.POOL, pool=True, gpus=(values.Gpu(uuid="GPU-other", sm="10.7"),))
    fleet.passes("p1", gpu_uuids=("GPU-other",))
    assert given.KEY in fleet.state.keys


def test_a_server_that_dies_before_it_attests_again_is_counted_by_what_it_would_run():
    fleet = adopted()
    for restarts in (1, 2, 3):
        fleet.instance("a", "exited", exit_code=1, restarts=restarts)
    assert fleet.told("a") == FAULT


def test_what_a_person_cleared_does_not_fault_again_by_its_old_exits():
    fleet = adopted()
    exits(fleet, 1, 1, 1, 1)
    assert fleet.told("a") == FAULT
    fleet.orders(commands.ClearMemory(unit="a", reason="the board was replaced"))
    assert len(faulted(fleet)) == 1
    assert fleet.told("a")[2] == "adopted"
