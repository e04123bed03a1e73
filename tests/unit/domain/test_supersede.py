"""A rollout that takes over from another: what it ends, what it keeps, and what begins anew."""

import copy
from dataclasses import replace

import pytest
from tests import given

from smgate.domain import commands, decisions, exposure, facts, plan_ahead, policy, rulings

NEWER = given.build(flashinfer_version="0.7.3")
NODES = tuple("abcdefgh")
WAVES = (policy.Wave(count=1), policy.Wave(percent=50), policy.Wave(percent=100))


@pytest.fixture
def fleet():
    made = given.Fleet(breaker_bad_units=100).enforce().qualified()
    made.passes(*given.POOL, made=NEWER)
    made.node(*NODES)
    for node in NODES:
        made.launch(node, settled=False)
    made.settle()
    return made


def members(fleet, rollout, wave):
    return [unit.partition(":")[0] for unit in fleet.state.rollouts[rollout].waves[wave].units]


def bake(fleet, *nodes, **launch):
    for node in nodes:
        fleet.restarts(node, **launch)
        fleet.bakes(node, 600)


def half_done(fleet):
    """Rollout r1 has its first half baked, and its last wave is open."""
    fleet.rollout("r1", waves=WAVES)
    bake(fleet, *members(fleet, "r1", 0))
    half = members(fleet, "r1", 0) + members(fleet, "r1", 1)
    bake(fleet, *members(fleet, "r1", 1))
    fleet.orders(commands.PauseRollout(rollout="r1", reason="another plan"))
    return half


def test_starting_it_ends_the_other_with_a_code(fleet):
    half_done(fleet)
    fleet.rollout("r2", waves=WAVES, supersedes="r1")
    assert fleet.phase("r1") == "aborted"
    assert fleet.state.rollouts["r1"].halted_code == "superseded"
    assert fleet.seen(rulings.RolloutAborted)[0].code == "superseded"
    assert fleet.phase("r2") == "running"


def test_a_rollout_that_names_no_other_still_waits_for_its_end(fleet):
    half_done(fleet)
    plan = replace(fleet.state.rollouts["r1"].plan, id="r2")
    fleet.orders(commands.ProposeRollout(plan=plan, reason="better"))
    fleet.orders(commands.ApproveRollout(rollout="r2", reason="agreed"), by="bob")
    assert fleet.refuses(commands.StartRollout(rollout="r2", reason="now")) == "rollout_busy"


@pytest.mark.parametrize(
    ("other", "code"),
    [("r9", "unknown_rollout"), ("r2", "unknown_rollout"), ("elsewhere", "bad_policy")],
)
def test_what_it_cannot_take_over_from_is_refused(fleet, other, code):
    gate = replace(policy.KIMI_K3, candidate_sms=("10.7", "11.0"))
    fleet.orders(commands.PublishGate(gate=gate, reason="wider"))
    plan = policy.RolloutPlan(id="elsewhere", gate=given.GATE, sm="11.0", waves=WAVES)
    fleet.orders(commands.ProposeRollout(plan=plan, reason="there"))
    again = replace(plan, id="r2", sm="10.7", supersedes=other)
    assert fleet.refuses(commands.ProposeRollout(plan=again, reason="better")) == code


def test_units_whose_key_is_unchanged_keep_their_progress(fleet):
    half = half_done(fleet)
    fleet.rollout("r2", waves=WAVES, supersedes="r1")
    assert set(members(fleet, "r2", 0)) == set(half)
    assert fleet.verdicts("r2") == ["passed", "passed", None]
    assert members(fleet, "r2", 1) == []
    granted = len(fleet.seen(decisions.Granted))
    assert set(members(fleet, "r2", 2)) == set(NODES) - set(half)
    bake(fleet, *members(fleet, "r2", 2))
    assert fleet.phase("r2") == "completed"
    assert len(fleet.seen(decisions.Granted)) == granted == len(NODES)
    assert fleet.state.rollouts["r2"].completed_keys == (given.KEY,)


def test_a_new_key_has_canaries_of_its_own(fleet):
    half = half_done(fleet)
    changed = sorted(set(NODES) - set(half))
    for node in changed:
        fleet.launch(node, build=NEWER)
    fleet.rollout("r2", waves=WAVES, supersedes="r1")
    canaries = set(members(fleet, "r2", 0)) - set(half)
    assert len(canaries) == 1
    assert fleet.verdicts("r2") == [None]
    bake(fleet, *canaries, build=NEWER)
    assert len(members(fleet, "r2", 1)) == 1
    bake(fleet, *members(fleet, "r2", 1), build=NEWER)
    assert len(members(fleet, "r2", 2)) == 2


def test_what_went_bad_after_the_change_halts_the_successor(fleet):
    half = half_done(fleet)
    fleet.rollout("r2", waves=WAVES, supersedes="r1")
    fleet.says(half[0], facts.GpuFaultSeen(gpu_uuid=f"GPU-{half[0]}", xid=79))
    assert fleet.phase("r2") == "halted"


@pytest.mark.parametrize("baked", [True, False])
def test_it_waits_for_no_more_restarts_than_its_waves_need(fleet, baked):
    fleet.rollout("r1", waves=[policy.Wave(percent=50)])
    (first, *others) = members(fleet, "r1", 0)
    if baked:
        bake(fleet, first)
    fleet.rollout("r2", waves=WAVES, supersedes="r1")
    canary = members(fleet, "r2", 0)
    assert len(canary) == 1
    assert set(canary) <= {first, *others}
    assert fleet.verdicts("r2")[0] == ("passed" if baked else None)
    assert all(fleet.told(node)[1] == given.TARGET for node in (first, *others))
    if not baked:
        bake(fleet, *canary)
    assert set(canary + members(fleet, "r2", 1)) == {first, *others}


def test_what_was_carried_over_and_is_in_no_wave_yet_is_watched_too(fleet):
    fleet.rollout("r1", waves=[policy.Wave(percent=50)])
    nodes = members(fleet, "r1", 0)
    fleet.rollout("r2", waves=WAVES, supersedes="r1")
    (waiting, *_) = sorted(set(nodes) - set(members(fleet, "r2", 0)))
    fleet.restarts(waiting)
    assert exposure.in_flight(fleet.state, fleet.state.rollouts["r2"]) == 1
    fleet.says(waiting, facts.GpuFaultSeen(gpu_uuid=f"GPU-{waiting}", xid=79))
    assert fleet.phase("r2") == "halted"


def test_a_key_that_had_not_baked_begins_anew_with_what_is_granted_already(fleet):
    fleet.rollout("r1", waves=[policy.Wave(percent=100)])
    fleet.rollout("r2", waves=WAVES, supersedes="r1")
    assert len(members(fleet, "r2", 0)) == 1
    assert len(fleet.seen(decisions.Granted)) == len(NODES)
    bake(fleet, *members(fleet, "r2", 0))
    assert fleet.verdicts("r2") == ["passed", None]
    assert len(members(fleet, "r2", 1)) == 3


@pytest.mark.parametrize("changed", [True, False])
def test_the_waves_foreseen_are_the_waves_of_the_successor(fleet, changed):
    half = half_done(fleet)
    for node in sorted(set(NODES) - set(half)) if changed else ():
        fleet.launch(node, build=NEWER)
    plan = replace(
        fleet.state.rollouts["r1"].plan, id="r2", supersedes="r1", waves=WAVES, max_in_flight=100
    )
    shown = plan_ahead.foresee(copy.deepcopy(fleet.state), plan, fleet.now_us)["waves"]
    fleet.rollout("r2", waves=WAVES, supersedes="r1")
    started = fleet.seen(rulings.RolloutStarted)[-1]
    assert started.carried_keys == (given.KEY,)
    opened = fleet.state.rollouts["r2"].waves
    assert [wave.units for wave in opened] == [tuple(one["units"]) for one in shown[: len(opened)]]
    assert len(opened) == (1 if changed else 3)
