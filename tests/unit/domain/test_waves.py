"""Waves: who is in one, how it is judged, what halts or pauses a rollout, when it is complete."""

from dataclasses import replace

import pytest
from tests import given

from smgate.domain import cohort, commands, decisions, facts, policy, rulings, state_rollouts, waves

NODES = tuple("abcdefghij")
PLAN = policy.RolloutPlan(id="r1", gate=given.GATE, sm="10.7", waves=(policy.Wave(percent=100),))


@pytest.fixture
def fleet():
    """Ten servers on SM107 of a qualified build."""
    made = given.Fleet(breaker_bad_units=100).enforce().qualified()
    made.node(*NODES)
    for node in NODES:
        made.launch(node, settled=False)
    made.settle()
    return made


def members(fleet, wave=-1, rollout="r1"):
    return [unit.partition(":")[0] for unit in fleet.state.rollouts[rollout].waves[wave].units]


def bake(fleet, *nodes):
    for node in nodes:
        fleet.restarts(node)
        fleet.bakes(node, 600)


def fault(fleet, *nodes):
    for node in nodes:
        fleet.restarts(node)
        fleet.says(node, facts.GpuFaultSeen(gpu_uuid=f"GPU-{node}", xid=79))


# The verdict, as a table


def judge(good, bad, pending=0, silent=0, **plan):
    rollout = state_rollouts.Rollout(
        plan=replace(PLAN, **plan), author="alice", position=1, since_led_us=0, phase="running"
    )
    counted = waves.Tally(
        good=("g",) * good, bad=("b",) * bad, pending=("p",) * pending, silent=("s",) * silent
    )
    return waves.verdict(rollout, counted.counts)[0]


@pytest.mark.parametrize(
    ("good", "silent", "plan", "verdict"),
    [
        (9, 1, {}, "inconclusive"),
        (9, 1, {"min_sample": 9}, "passed"),
        (8, 2, {"min_sample": 9}, "inconclusive"),
        (0, 10, {}, "inconclusive"),
        (0, 10, {"min_sample": 1}, "inconclusive"),
    ],
)
def test_silence_is_no_outcome_and_makes_no_sample_smaller(good, silent, plan, verdict):
    assert judge(good, 0, silent=silent, **plan) == verdict


@pytest.mark.parametrize(
    ("good", "bad", "pending", "plan", "verdict"),
    [
        (1, 0, 0, {}, "passed"),
        (0, 0, 0, {}, "inconclusive"),
        (0, 0, 1, {}, "running"),
        (9, 0, 1, {}, "running"),
        (9, 0, 1, {"min_sample": 9}, "passed"),
        (8, 0, 2, {"min_sample": 9}, "running"),
        (8, 0, 0, {"min_sample": 9}, "inconclusive"),
        (0, 1, 9, {}, "failed"),
        (9, 1, 0, {"failures_max": 2, "failure_percent": 11}, "inconclusive"),
        (9, 1, 0, {"failures_max": 2, "failure_percent": 10}, "failed"),
        (9, 1, 0, {"failures_max": 2, "failure_percent": 11, "success_percent": 90}, "passed"),
        (
            9,
            1,
            0,
            {"failures_max": 2, "failure_percent": 11, "success_percent": 90.1},
            "inconclusive",
        ),
        (8, 2, 0, {"failures_max": 2, "failure_percent": 100, "success_percent": 1}, "failed"),
        (1, 1, 8, {"failures_max": 9, "failure_percent": 50, "min_sample": 2}, "failed"),
        (1, 1, 8, {"failures_max": 9, "failure_percent": 50, "min_sample": 3}, "running"),
        (0, 1, 1, {"failures_max": 9, "failure_percent": 50}, "running"),
        (89, 161, 0, {"failures_max": 999, "failure_percent": 64.4}, "failed"),
        (
            161,
            89,
            0,
            {"failures_max": 999, "failure_percent": 99, "success_percent": 64.4},
            "passed",
        ),
    ],
)
def test_a_wave_is_judged_by_its_sample_its_shares_and_its_bounds(
    good, bad, pending, plan, verdict
):
    assert judge(good, bad, pending, **plan) == verdict


# Membership


def test_waves_are_cumulative_in_cohort_order_and_frozen(fleet):
    ids = [fleet.id(node) for node in NODES]
    fleet.rollout(
        waves=[policy.Wave(count=2), policy.Wave(percent=50), policy.Wave(percent=100)],
        select=policy.Selector(units=tuple(ids)),
    )
    order = cohort.in_cohort_order("r1", ids)
    assert fleet.state.rollouts["r1"].waves[0].units == tuple(order[:2])
    fleet.node("late")
    fleet.launch("late")
    assert len(members(fleet)) == 2
    bake(fleet, *members(fleet))
    assert fleet.state.rollouts["r1"].waves[1].units == tuple(order[2:5])
    bake(fleet, *members(fleet))
    assert fleet.state.rollouts["r1"].waves[2].units == tuple(order[5:])
    bake(fleet, *members(fleet))
    assert fleet.phase() == "completed"
    assert fleet.verdicts() == ["passed"] * 3


def test_a_wave_takes_only_units_it_could_grant(fleet):
    fleet.launch("a", build=given.build(flashinfer_version="0.7.3"))
    fleet.launch("b", asked_runner="triton", asked_runner_in="argv")
    fleet.launch("c", platform="rocm")
    fleet.orders(commands.ExcludeUnit(unit="d", reason="mine"))
    fleet.orders(commands.PinUnit(unit="e", direction="off", reason="hold"))
    fleet.says("f", facts.GapNoticed(lost_outbox_id="box"))
    fleet.check("g", outcome="failed", made=given.BUILD, gpu_uuids=("GPU-none",))
    fleet.passes("p1", "p2", "p3")
    assert fleet.standing() == "qualified"
    fleet.later(301, silent="h")
    fleet.enforce("9.0")
    fleet.launch("j", gpus=(given.values.Gpu(uuid="GPU-j", sm="9.0"),))
    fleet.rollout()
    assert sorted(members(fleet)) == ["g", "i"]


def test_a_rollout_with_nobody_to_grant_waits(fleet):
    fleet.rollout(select=policy.Selector(racks=("elsewhere",)))
    assert fleet.verdicts() == []
    assert fleet.phase() == "running"
    assert "rollout" in {wait.code for wait in fleet.waits}


def test_a_wave_that_adds_nobody_passes(fleet):
    fleet.rollout(
        waves=[policy.Wave(percent=100), policy.Wave(percent=100)],
        select=policy.Selector(units=(fleet.id("a"),)),
    )
    bake(fleet, "a")
    assert fleet.verdicts() == ["passed", "passed"]
    assert fleet.phase() == "completed"


def test_a_unit_with_a_grant_for_an_older_build_is_in_the_waves_of_a_newer_one(fleet):
    select = policy.Selector(units=(fleet.id("a"),))
    fleet.rollout(select=select)
    bake(fleet, "a")
    newer = given.build(flashinfer_version="0.7.3")
    fleet.passes(*given.POOL, made=newer)
    fleet.launch("a", build=newer)
    fleet.rollout("r2", select=select)
    assert members(fleet, rollout="r2") == ["a"]
    assert fleet.told("a") == ("append", given.TARGET, "granted")


# A good outcome


@pytest.fixture
def canary(fleet):
    """A rollout whose only member, `a`, was restarted onto the target."""
    fleet.rollout(select=policy.Selector(units=(fleet.id("a"),)))
    fleet.restarts("a")
    return fleet


def test_a_unit_is_good_when_it_has_baked_with_traffic(canary):
    canary.bakes("a", 599)
    assert canary.verdicts() == [None]
    canary.bakes("a", 600, requests=0)
    assert canary.verdicts() == [None]
    canary.bakes("a", 1)
    assert canary.verdicts() == ["passed"]


def test_a_unit_that_went_down_again_is_not_good(canary):
    canary.instance("a", "unhealthy")
    canary.bakes("a", 600)
    assert canary.verdicts() == [None]
    canary.instance("a", "serving")
    assert canary.verdicts() == ["passed"]


def test_serving_on_anything_but_the_target_bakes_nothing(canary):
    canary.effective("a", "marlin")
    canary.bakes("a", 600)
    assert canary.unit("a").grant.bake_s == 0


def test_the_longest_serving_instance_counts_not_the_sum(canary):
    canary.instance("a", instance_id="k4")
    for instance in ("k3", "k4"):
        canary.says(
            "a",
            facts.EffectiveSeen(
                instance_id=instance, runner=given.TARGET, a2a="none", source="log"
            ),
            facts.BakeInterval(instance_id=instance, interval_s=599, requests=9, failures=0),
        )
    assert canary.unit("a").grant.bake_s == 599
    assert canary.verdicts() == [None]


def test_every_rank_must_attest_the_target():
    fleet = given.Fleet().enforce().qualified()
    fleet.node("m", "n")

    def start():
        for number, node in enumerate("mn"):
            fleet.launch(node, nnodes=2, node_rank=number, unit_name="two")

    start()
    fleet.rollout(select=policy.Selector(units=("two",)))
    start()
    fleet.serves("m", nnodes=2, node_rank=0)
    fleet.bakes("m", 600)
    assert fleet.verdicts() == [None]
    fleet.serves("n", nnodes=2, node_rank=1)
    assert fleet.verdicts() == ["passed"]


# Halting and pausing


def test_a_failing_canary_halts_and_the_next_wave_never_opens(fleet):
    fleet.rollout(waves=[policy.Wave(count=1), policy.Wave(percent=100)])
    fault(fleet, *members(fleet))
    assert fleet.phase() == "halted"
    assert fleet.verdicts() == ["failed"]
    assert "rollout_halted" in fleet.alarms()


def test_a_unit_that_goes_bad_after_its_wave_passed_halts_too(fleet):
    fleet.rollout(waves=[policy.Wave(count=1), policy.Wave(percent=100)])
    (canary,) = members(fleet)
    bake(fleet, canary)
    assert fleet.verdicts() == ["passed", None]
    fleet.says(canary, facts.GpuFaultSeen(gpu_uuid=f"GPU-{canary}", xid=79))
    assert fleet.phase() == "halted"
    assert fleet.verdicts() == ["passed", "failed"]


def test_a_bf16_server_halts_the_wave_and_says_nothing_about_the_kernel(canary):
    canary.says("a", facts.MemoryFallbackSeen(instance_id="k3", phase="active"))
    assert canary.phase() == "halted"
    assert canary.state.rollouts["r1"].halted_code == "memory_fallback"
    assert canary.standing() == "qualified"
    assert canary.told("a") == ("append", given.TARGET, "granted")
    assert canary.state.gpu_memory == {}


def test_a_server_that_was_bf16_before_its_grant_halts_nothing(fleet):
    fleet.serves("a", "auto")
    assert "memory_fallback" in fleet.alarms()
    fleet.rollout(select=policy.Selector(units=(fleet.id("a"),)))
    assert fleet.phase() == "running"
    fleet.says("a", facts.MemoryFallbackSeen(instance_id="k3", phase="crashed"))
    assert fleet.phase() == "running"
    bake(fleet, "a")
    assert fleet.verdicts() == ["passed"]


def test_a_confirmed_failure_of_its_key_halts(canary):
    canary.check("p1", outcome="failed")
    assert canary.phase() == "running"
    canary.check("p2", outcome="failed")
    assert canary.phase() == "halted"


def test_a_wave_whose_time_runs_out_is_inconclusive_and_pauses(canary):
    canary.later(7 * 86400 - 1)
    assert canary.phase() == "running"
    canary.later(1)
    assert canary.phase() == "paused"
    assert canary.verdicts() == ["inconclusive"]
    assert canary.seen(rulings.RolloutPaused)[0].code == "wave_inconclusive"
    assert canary.told("a") == ("append", given.TARGET, "granted")


def test_a_resumed_wave_has_its_time_again(canary):
    canary.later(7 * 86400)
    canary.orders(commands.ResumeRollout(rollout="r1", reason="go on"))
    assert canary.verdicts() == [None]
    canary.later(7 * 86400 - 1)
    assert canary.phase() == "running"
    canary.bakes("a", 600)
    assert canary.phase() == "completed"


def test_the_time_of_a_wave_stands_still_while_nobody_leads(canary):
    canary.away(30 * 86400)
    assert canary.phase() == "running"


def test_a_wave_whose_other_members_went_silent_on_the_target_does_not_advance(fleet):
    fleet.rollout(waves=[policy.Wave(count=2), policy.Wave(percent=100)])
    first, second = members(fleet)
    bake(fleet, first)
    fleet.restarts(second)
    fleet.later(300, silent=second)
    assert fleet.verdicts() == ["inconclusive"]
    assert fleet.phase() == "paused"
    fleet.orders(commands.ExcludeUnit(unit=second, reason="dead"))
    fleet.orders(commands.ResumeRollout(rollout="r1", reason="go on"))
    assert fleet.verdicts() == ["passed", None]


def test_a_member_lost_before_it_started_on_the_target_neither_passes_nor_blocks(fleet):
    fleet.rollout(waves=[policy.Wave(count=2), policy.Wave(percent=100)])
    first, second = members(fleet)
    fleet.later(300, silent=second)
    assert fleet.verdicts() == [None]
    bake(fleet, first)
    assert fleet.verdicts() == ["passed", None]
    assert fleet.seen(decisions.WaveJudged)[0].good == (fleet.id(first),)


def test_a_wave_of_which_every_member_was_lost_is_inconclusive(fleet):
    fleet.rollout(waves=[policy.Wave(count=1), policy.Wave(percent=100)])
    (only,) = members(fleet)
    fleet.later(300, silent=only)
    assert fleet.verdicts() == ["inconclusive"]
    assert fleet.phase() == "paused"


def test_a_member_that_a_person_takes_out_neither_passes_nor_blocks(fleet):
    fleet.rollout(select=policy.Selector(units=tuple(fleet.id(n) for n in "abc")))
    fleet.orders(commands.ExcludeUnit(unit="a", reason="mine"))
    fleet.orders(commands.PinUnit(unit="b", direction="off", reason="hold"))
    bake(fleet, "c")
    assert fleet.seen(decisions.WaveJudged)[0].good == (fleet.id("c"),)
    assert fleet.phase() == "completed"


# Completion


def test_a_completed_rollout_names_only_keys_with_a_good_outcome(fleet):
    newer = given.build(flashinfer_version="0.7.3")
    fleet.passes(*given.POOL, made=newer)
    fleet.launch("b", build=newer)
    fleet.rollout(select=policy.Selector(units=(fleet.id("a"), fleet.id("b"))), min_sample=1)
    bake(fleet, "a")
    assert fleet.phase() == "completed"
    assert fleet.state.rollouts["r1"].completed_keys == (given.KEY,)


def test_grants_outlive_their_rollout(canary):
    canary.bakes("a", 600)
    assert canary.phase() == "completed"
    canary.restarts("a")
    assert canary.told("a") == ("append", given.TARGET, "granted")


@pytest.mark.parametrize("command", [commands.HaltRollout, commands.AbortRollout])
def test_ending_a_rollout_ends_no_grant(canary, command):
    canary.orders(command(rollout="r1", reason="enough"))
    canary.restarts("a")
    assert canary.told("a") == ("append", given.TARGET, "granted")
    assert canary.seen(decisions.GrantEnded) == []


def test_a_rollout_that_takes_too_long_is_said(canary):
    canary.orders(commands.PauseRollout(rollout="r1", reason="look"))
    canary.later(30 * 86400)
    assert "rollout" in {event.code for event in canary.seen(decisions.WaitTimedOut)}
