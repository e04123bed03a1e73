"""Traps of rollouts that other systems fell into, each as a pair.

One history must advance, the other, which differs by the trap alone, must not.
"""

import pytest
from tests import given

from smgate.domain import cohort, commands, facts, policy

GRANTED = ("append", given.TARGET, "granted")
NODES = tuple("abcdefghij")
TWO_WAVES = (policy.Wave(count=5), policy.Wave(percent=100))


def fleet_of(*nodes, **numbers):
    """Servers on SM107 of a qualified build, each behind its launch gate."""
    made = given.Fleet(breaker_bad_units=100, **numbers).enforce().qualified()
    made.node(*nodes)
    for node in nodes:
        made.launch(node, settled=False)
    made.settle()
    return made


def start(fleet, nodes, **plan):
    fleet.rollout(select=policy.Selector(units=tuple(fleet.id(n) for n in nodes)), **plan)


def members(fleet, wave=0):
    return [unit.partition(":")[0] for unit in fleet.state.rollouts["r1"].waves[wave].units]


def bake(fleet, *nodes):
    for node in nodes:
        fleet.restarts(node)
        fleet.bakes(node, 600)


def fault(fleet, *nodes):
    for node in nodes:
        fleet.restarts(node)
        fleet.says(node, facts.GpuFaultSeen(gpu_uuid=f"GPU-{node}", xid=79))


def advanced(fleet):
    return len(fleet.state.rollouts["r1"].waves) > 1


# T1: a wave advanced because all had ended, though the success target was missed


@pytest.mark.parametrize(("good", "advances"), [(5, True), (3, False)])
def test_trap_t01_a_wave_that_ended_below_its_success_target_does_not_advance(good, advances):
    fleet = fleet_of(*NODES)
    start(
        fleet,
        NODES,
        waves=TWO_WAVES,
        success_percent=90,
        failure_percent=50,
        failures_max=100,
    )
    wave = members(fleet)
    bake(fleet, *wave[:good])
    fault(fleet, *wave[good:])
    assert advanced(fleet) is advances
    if not advances:
        assert fleet.verdicts() == ["inconclusive"]
        assert fleet.phase() == "paused"


# T2: > where >= was meant, and a threshold that could not be read failed open


@pytest.mark.parametrize(
    ("success_percent", "failure_percent", "advances"),
    [(80, 20.1, True), (80.1, 20.1, False), (80, 20, False)],
    ids=["reached", "just missed", "failures reached"],
)
def test_trap_t02_a_threshold_is_reached_at_its_value(success_percent, failure_percent, advances):
    fleet = fleet_of(*NODES)
    start(
        fleet,
        NODES,
        waves=TWO_WAVES,
        success_percent=success_percent,
        failure_percent=failure_percent,
        failures_max=100,
    )
    wave = members(fleet)
    bake(fleet, *wave[:4])
    fault(fleet, *wave[4:])
    assert advanced(fleet) is advances


@pytest.mark.parametrize(
    ("percent", "taken"), [(90.0, True), (0.0, False), (100.5, False), (float("nan"), False)]
)
def test_trap_t02_a_threshold_that_cannot_hold_is_refused_when_it_is_written(percent, taken):
    fleet = given.Fleet()
    plan = policy.RolloutPlan(
        id="r1",
        gate=given.GATE,
        sm="10.7",
        waves=(policy.Wave(count=1),),
        success_percent=percent,
    )
    command = commands.ProposeRollout(plan=plan, reason="r")
    if taken:
        assert fleet.orders(command)
    else:
        assert fleet.refuses(command) == "bad_policy"


# T3: the denominator counted the wrong population


def never_heard_of(fleet):
    return None  # a node of the wave that no fact ever spoke of


def no_gpu(fleet):
    fleet.node("x", gpus=())
    fleet.launch("x", platform="none", gpus=(), settled=False)


def hands_off(fleet):
    fleet.node("x")
    fleet.launch("x", asked_runner="triton", asked_runner_in="argv")


def other_sm(fleet):
    fleet.node("x", sm="10.3")
    fleet.launch("x", sm="10.3")


def superseded(fleet):
    fleet.node("x")
    fleet.launch("x", gpus=(given.values.Gpu(uuid="GPU-a", sm="10.7"),))


@pytest.mark.parametrize("stranger", [never_heard_of, no_gpu, hands_off, other_sm, superseded])
def test_trap_t03_who_cannot_be_granted_is_in_no_denominator(stranger):
    fleet = given.Fleet().enforce().qualified()
    stranger(fleet)
    fleet.node("a", "b")
    for node in "ab":
        fleet.launch(node)
    fleet.rollout(
        waves=(policy.Wave(percent=100),), select=policy.Selector(racks=("r1",)), min_sample=2
    )
    wave = set(members(fleet))
    assert wave >= {"a", "b"}
    assert "x" not in wave
    bake(fleet, "a", "b")
    assert fleet.phase() == "completed"


@pytest.mark.parametrize(
    ("bad", "plan", "advances"),
    [
        (1, {"failures_max": 2, "failure_percent": 25, "success_percent": 80}, True),
        (2, {"failures_max": 2, "failure_percent": 100, "success_percent": 10}, False),
        (2, {"failures_max": 100, "failure_percent": 25, "success_percent": 10}, False),
    ],
    ids=["below both", "absolute", "share"],
)
def test_trap_t03_the_absolute_bound_and_the_share_hold_together(bad, plan, advances):
    fleet = fleet_of(*NODES)
    start(fleet, NODES, waves=TWO_WAVES, **plan)
    wave = members(fleet)
    bake(fleet, *wave[bad:])
    fault(fleet, *wave[:bad])
    assert advanced(fleet) is advances


@pytest.mark.parametrize(("baked", "advances"), [(2, True), (1, False)])
def test_trap_t03_a_group_of_one_is_too_small_a_sample(baked, advances):
    fleet = fleet_of(*NODES)
    start(fleet, NODES, waves=(policy.Wave(count=2), policy.Wave(percent=100)), min_sample=2)
    bake(fleet, *members(fleet)[:baked])
    assert advanced(fleet) is advances


# T8: after a rollback the new state was still wanted, and any retry applied it again


@pytest.mark.parametrize("failed", [False, True])
def test_trap_t08_what_was_rolled_back_here_is_not_offered_again(failed):
    fleet = fleet_of("a", "b")
    start(fleet, "ab", failures_max=100, failure_percent=100)
    fleet.restarts("a")
    if failed:
        fleet.says("a", facts.GpuFaultSeen(gpu_uuid="GPU-a", xid=79))
        fleet.restarts("a")
    fleet.orders(commands.AbortRollout(rollout="r1", reason="enough"))
    fleet.rollout("r2")
    fleet.restarts("a")
    assert (fleet.told("a") == GRANTED) is not failed
    assert fleet.told("b") == GRANTED


@pytest.mark.parametrize(
    ("halted", "told"),
    [(False, GRANTED), (True, ("append", given.SAFE, "rollout_halted"))],
)
def test_trap_t08_after_a_halt_no_restart_gets_the_target(halted, told):
    fleet = fleet_of("a", "b")
    start(fleet, "ab")
    fleet.orders(commands.PinUnit(unit="b", direction="off", reason="hold"))
    if halted:
        fleet.orders(commands.HaltRollout(rollout="r1", reason="bad"))
    fleet.orders(commands.UnpinUnit(unit="b", reason="go on"))
    fleet.launch("b")
    assert fleet.told("b") == told
    assert fleet.told("a") == GRANTED


# T9: the same nodes were always the canary


def ranks(salt, units):
    order = cohort.in_cohort_order(salt, units)
    return [order.index(unit) for unit in units]


def correlation(first, second):
    n = len(first)
    distance = sum((a - b) ** 2 for a, b in zip(first, second, strict=True))
    return 1 - 6 * distance / (n * (n * n - 1))


@pytest.mark.parametrize(("second", "independent"), [("r2", True), ("r1", False)])
def test_trap_t09_two_rollouts_take_their_canaries_independently(second, independent):
    units = [f"node-{number:03}" for number in range(400)]
    found = correlation(ranks("r1", units), ranks(second, units))
    assert (abs(found) < 0.15) is independent


# T21: the author approved their own rollout (the log's own constraint has its test there)


@pytest.mark.parametrize(("by", "approved"), [("bob", True), ("alice", False)])
def test_trap_t21_the_author_cannot_approve_whatever_the_role(by, approved):
    fleet = fleet_of("a")
    plan = policy.RolloutPlan(id="r1", gate=given.GATE, sm="10.7", waves=(policy.Wave(count=1),))
    fleet.orders(commands.ProposeRollout(plan=plan, reason="r"), by="alice", role="admin")
    approve = commands.ApproveRollout(rollout="r1", reason="r")
    if approved:
        fleet.orders(approve, by=by, role="approver")
        fleet.orders(commands.StartRollout(rollout="r1", reason="r"))
        assert fleet.told("a")[2] == "granted"
    else:
        assert fleet.refuses(approve, by=by, role="admin") == "same_person"
        assert fleet.told("a")[2] == "not_approved"
