"""What went wrong in service on GPUs is remembered until a person says that they were repaired."""

import pytest
from tests import given

from smgate.domain import commands, facts, policy, rulings

GRANTED = ("append", given.TARGET, "granted")
CLEAR = commands.ClearMemory(unit="a", reason="GPU replaced in place, burn-in passed")


def faulted():
    """A server on the target had an Xid: its grant ended and its GPUs are remembered."""
    fleet = given.Fleet(breaker_bad_units=100).enforce().qualified()
    fleet.granted("a", "b", failures_max=100, failure_percent=100)
    fleet.says("a", facts.GpuFaultSeen(gpu_uuid="GPU-a", xid=79))
    assert fleet.told("a") == ("append", given.SAFE, "fault_in_service")
    return fleet


@pytest.mark.parametrize("cleared", [True, False])
def test_repaired_gpus_are_offered_the_target_again_by_a_new_rollout_only_once_cleared(cleared):
    fleet = faulted()
    fleet.orders(commands.AbortRollout(rollout="r1", reason="again"))
    if cleared:
        fleet.orders(CLEAR)
        assert fleet.told("a")[2] == "no_rollout", "forgetting grants nothing by itself"
    fleet.rollout("r2", waves=(policy.Wave(percent=100),))
    fleet.restarts("a")
    assert (fleet.told("a") == GRANTED) is cleared
    assert fleet.told("b") == GRANTED


def test_what_it_clears_is_named_in_the_log_and_saying_it_again_finds_nothing():
    fleet = faulted()
    (event,) = fleet.orders(CLEAR)
    assert event == rulings.MemoryCleared(
        unit=fleet.id("a"),
        gpu_uuids=("GPU-a",),
        kernel_keys=(given.KEY,),
        reason=CLEAR.reason,
    )
    assert fleet.orders(CLEAR) == ()


def test_what_a_check_found_is_not_cleared_by_it():
    fleet = given.Fleet().enforce().qualified().granted("a")
    fleet.check("a", outcome="failed")
    assert fleet.orders(CLEAR) == ()
    assert fleet.told("a")[2] == "self_test_failed"


def test_it_widens_so_it_waits_for_another_person_and_cannot_be_done_alone():
    fleet = faulted()
    assert fleet.refuses(CLEAR, break_glass_s=60) == "no_break_glass"
    [asked] = fleet.alone(CLEAR, role="operator")
    assert isinstance(asked, rulings.ChangeAsked)
    assert fleet.told("a") == ("append", given.SAFE, "fault_in_service")


def test_other_gpus_and_their_kernel_keys_keep_their_memory():
    fleet = faulted()
    fleet.says("b", facts.GpuFaultSeen(gpu_uuid="GPU-b", xid=79))
    fleet.orders(CLEAR)
    assert fleet.told("b") == ("append", given.SAFE, "fault_in_service")
    assert ("GPU-a", given.KEY) not in fleet.state.gpu_memory
