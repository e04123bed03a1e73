"""The lease of a target that has not baked: who has one, and by which policy."""

import pytest
from tests import given

from smgate.domain import commands, decisions, errors, facts, policy

LEASE = 86_400


@pytest.fixture
def fleet():
    made = given.Fleet(bake_lease_s=LEASE).enforce().qualified()
    made.node("a", "b")
    for node in "ab":
        made.launch(node)
    return made


def lease(fleet, node="a"):
    return fleet.override(node).lease_s


def numbers(fleet, **changed):
    fleet.orders(commands.PublishPolicy(policy=policy.Policy(**changed), reason="other numbers"))


def test_only_a_grant_still_in_its_bake_has_one(fleet):
    assert lease(fleet) is None  # the safe value needs none
    fleet.rollout()
    assert lease(fleet) == LEASE
    fleet.restarts("a")
    assert fleet.decided("a").lease_s == LEASE
    fleet.bakes("a", 599)
    assert lease(fleet) == LEASE
    fleet.bakes("a", 1)
    assert lease(fleet) is None
    assert fleet.told("a") == ("append", given.TARGET, "granted")
    assert lease(fleet, "b") == LEASE


def test_a_verified_unit_never_has_one_again(fleet):
    fleet.rollout()
    fleet.restarts("a")
    fleet.bakes("a", 600)
    fleet.restarts("a")
    assert lease(fleet) is None
    fleet.instance("a", "exited", exit_code=1)
    fleet.restarts("a")
    assert lease(fleet) is None


@pytest.mark.parametrize(
    "end", [commands.HaltRollout, commands.PauseRollout, commands.AbortRollout]
)
def test_what_stops_the_rollout_leaves_the_lease(fleet, end):
    fleet.rollout()
    fleet.orders(end(rollout="r1", reason="look"))
    assert (fleet.told("a")[1], lease(fleet)) == (given.TARGET, LEASE)


def test_it_is_the_policys_of_now_and_not_that_of_the_grant(fleet):
    fleet.rollout()
    numbers(fleet, bake_lease_s=600)
    assert lease(fleet) == 600
    numbers(fleet)
    assert lease(fleet) is None
    numbers(fleet, bake_lease_s=7_200)
    assert lease(fleet) == 7_200
    assert len(fleet.seen(decisions.Granted)) == 2


def test_without_it_in_the_policy_nobody_has_one_and_nothing_more_is_said():
    fleet = given.Fleet().enforce().qualified()
    fleet.granted("a")
    said = len(fleet.seen(decisions.OverrideSet))
    fleet.bakes("a", 600)
    assert [one.lease_s for one in fleet.seen(decisions.OverrideSet)] == [None] * said


def test_what_a_person_or_a_completed_rollout_gave_has_none(fleet):
    fleet.rollout()
    for node in "ab":
        fleet.restarts(node)
        fleet.bakes(node, 600)
    fleet.node("late", "pinned")
    fleet.launch("late")
    assert fleet.told("late") == ("append", given.TARGET, "granted")
    assert lease(fleet, "late") is None
    fleet.launch("pinned", build=given.build(flashinfer_version="0.7.9"))
    fleet.orders(commands.PinUnit(unit="pinned", direction="on", break_glass=True, reason="mine"))
    assert (fleet.told("pinned")[1], lease(fleet, "pinned")) == (given.TARGET, None)


def test_in_observe_mode_there_is_none(fleet):
    fleet.rollout()
    fleet.orders(commands.SetGateMode(gate=given.GATE, sm="10.7", mode="observe", reason="stop"))
    assert lease(fleet) is None


def test_a_suspended_grant_has_none_and_has_it_again_with_the_target(fleet):
    fleet.rollout()
    fleet.orders(commands.DisableGate(gate=given.GATE, reason="a drill"))
    assert (fleet.told("a")[1], lease(fleet)) == (given.SAFE, None)
    fleet.orders(commands.EnableGate(gate=given.GATE, reason="over"))
    assert (fleet.told("a")[1], lease(fleet)) == (given.TARGET, LEASE)


def test_a_fault_takes_the_lease_with_the_grant(fleet):
    fleet.rollout()
    fleet.restarts("a")
    fleet.says("a", facts.GpuFaultSeen(gpu_uuid="GPU-a", xid=79))
    assert lease(fleet) is None


@pytest.mark.parametrize(("seconds", "taken"), [(0, False), (299, False), (300, True)])
def test_a_lease_that_a_node_in_contact_could_lose_is_refused(seconds, taken):
    wanted = policy.Policy(bake_lease_s=seconds)
    if taken:
        policy.validate_policy(wanted)
        return
    with pytest.raises(errors.RejectedError, match="bake_lease_s"):
        policy.validate_policy(wanted)
