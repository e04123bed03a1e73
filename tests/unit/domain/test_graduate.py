"""The end of a gate for an SM: when a person may say it, and what is decided from then on."""

from dataclasses import replace

import pytest
from tests import given

from smgate.domain import commands, decisions, exposure, facts, policy, rulings

GRADUATE = commands.GraduateGate(gate=given.GATE, sm="10.7", reason="a quarter without a bad sign")
BASELINE = ("untouched", None, "baseline_sm")


@pytest.fixture
def fleet():
    """A rollout has completed: a and b run the target; n came later, on a build nobody measured."""
    made = given.Fleet().enforce().qualified()
    made.node("a", "b", "n")
    for node in "ab":
        made.launch(node)
    made.rollout()
    for node in "ab":
        made.restarts(node)
        made.bakes(node, 600)
    assert made.phase() == "completed"
    made.launch("n", build=given.build(flashinfer_version="0.7.9"))
    assert made.told("n") == ("append", given.SAFE, "no_rollout")
    return made


def graduated(fleet):
    assert fleet.orders(GRADUATE) != ()
    return fleet


# What is decided from then on


def test_from_then_on_it_is_decided_as_a_baseline(fleet):
    graduated(fleet)
    for node in "abn":
        assert fleet.told(node) == BASELINE
    gate = fleet.state.gates[given.GATE]
    assert (gate.baseline_sms, gate.candidate_sms) == (("10.0", "10.3", "10.7"), ())


def test_grants_stay_and_nothing_is_granted_anew(fleet):
    before = [fleet.unit(node).grant for node in "ab"]
    graduated(fleet)
    assert [fleet.unit(node).grant for node in "ab"] == before
    assert fleet.seen(decisions.GrantEnded) == []
    assert fleet.unit("n").grant is None


def test_a_server_that_runs_the_target_there_is_no_longer_uncontrolled(fleet):
    fleet.serves("n")
    assert exposure.uncontrolled(fleet.state, fleet.unit("n"))
    assert "uncontrolled" in fleet.alarms()
    graduated(fleet)
    assert not exposure.uncontrolled(fleet.state, fleet.unit("n"))
    assert not exposure.exposed(fleet.state, fleet.unit("n"))
    assert fleet.alarms() & {"uncontrolled", "exposed"} == set()


@pytest.mark.parametrize(
    ("order", "code"),
    [
        (commands.DisableGate(gate=given.GATE, reason="wrong answers"), "gate_disabled"),
        (commands.PinUnit(unit="a", direction="off", reason="wrong answers"), "pinned_off"),
        (
            commands.PublishIssue(
                issue=policy.KnownIssue(id="i", title="t", match={"flashinfer": ("0.7.2*",)}),
                reason="upstream report",
            ),
            "known_issue:i",
        ),
    ],
    ids=["kill switch", "pin", "known issue"],
)
def test_its_protections_hold_on(fleet, order, code):
    graduated(fleet)
    fleet.orders(order)
    assert fleet.told("a") == ("append", given.SAFE, code)


def test_a_build_that_fails_later_is_stopped(fleet):
    graduated(fleet)
    fleet.check("p1", outcome="failed")
    fleet.check("p2", outcome="failed")
    assert fleet.standing() == "failed"
    fleet.launch("a")
    assert fleet.told("a")[1] == given.SAFE


def test_a_fault_on_the_target_still_ends_the_grant(fleet):
    graduated(fleet)
    fleet.says("a", facts.GpuFaultSeen(gpu_uuid="GPU-a", xid=79))
    assert fleet.told("a") == ("append", given.SAFE, "fault_in_service")


def test_an_sglang_that_would_not_select_it_there_is_not_left_alone(fleet):
    """Left alone, 0.5.18 makes BF16 of the experts on SM107."""
    graduated(fleet)
    old = given.build(sglang_version="0.5.18")
    fleet.launch("n", build=old)
    assert fleet.told("n") == ("append", given.SAFE, "baseline_sm")


def test_who_was_granted_the_target_on_such_an_sglang_keeps_it():
    old = given.build(sglang_version="0.5.18")
    fleet = given.Fleet().enforce().qualified(old)
    fleet.node("a")
    fleet.launch("a", build=old)
    fleet.rollout()
    fleet.restarts("a", build=old)
    fleet.bakes("a", 600)
    assert fleet.phase() == "completed"
    graduated(fleet)
    assert fleet.told("a") == ("append", given.TARGET, "baseline_sm")


def test_observe_mode_is_still_hands_off(fleet):
    fleet.orders(commands.SetGateMode(gate=given.GATE, sm="10.7", mode="observe", reason="look"))
    graduated(fleet)
    assert fleet.told("n")[2] == "observe"
    assert fleet.would("n") == BASELINE


# When it may be said


def test_a_rollout_must_have_completed():
    fleet = given.Fleet().enforce().qualified()
    assert fleet.refuses(GRADUATE) == "not_completed"
    fleet.node("a")
    fleet.launch("a")
    fleet.rollout()
    assert fleet.refuses(GRADUATE) == "not_completed"
    fleet.orders(commands.AbortRollout(rollout="r1", reason="no"))
    assert fleet.refuses(GRADUATE) == "not_completed"


def propose(fleet, name):
    plan = replace(fleet.state.rollouts["r1"].plan, id=name)
    fleet.orders(commands.ProposeRollout(plan=plan, reason="more"))


@pytest.mark.parametrize("phase", ["proposed", "approved", "running", "paused"])
def test_a_rollout_that_has_not_ended_stands_against_it(fleet, phase):
    propose(fleet, "r2")
    if phase != "proposed":
        fleet.orders(commands.ApproveRollout(rollout="r2", reason="agreed"), by="bob")
    if phase in ("running", "paused"):
        fleet.orders(commands.StartRollout(rollout="r2", reason="now"))
    if phase == "paused":
        fleet.orders(commands.PauseRollout(rollout="r2", reason="look"))
    assert fleet.phase("r2") == phase
    assert fleet.refuses(GRADUATE) == "rollout_busy"
    fleet.orders(commands.AbortRollout(rollout="r2", reason="no"))
    graduated(fleet)


def test_a_halt_stands_against_it_until_another_completes(fleet):
    fleet.rollout("r2", select=policy.Selector(units=("n",)))
    fleet.orders(commands.HaltRollout(rollout="r2", reason="bad"))
    assert fleet.refuses(GRADUATE) == "rollout_halted"
    other = given.build(flashinfer_version="0.7.9")
    fleet.passes(*given.POOL, made=other)
    fleet.rollout("r3", select=policy.Selector(units=("n",)))
    fleet.restarts("n", build=other)
    fleet.bakes("n", 600)
    assert fleet.phase("r3") == "completed"
    graduated(fleet)


def test_a_suspect_or_failed_key_of_the_sm_stands_against_it(fleet):
    other = given.build(flashinfer_version="0.7.8")
    fleet.check("p1", outcome="failed", made=other)
    assert fleet.refuses(GRADUATE) == "build_suspect"
    fleet.check("p2", outcome="failed", made=other)
    assert fleet.refuses(GRADUATE) == "build_failed"


def test_a_failure_on_another_sm_does_not(fleet):
    fleet.node("base", sm="10.0", pool=True)
    fleet.check("base", outcome="failed", sm="10.0")
    assert [key.standing for key in fleet.state.keys.values() if key.sm == "10.0"] == ["suspect"]
    graduated(fleet)


def test_a_freeze_and_an_open_breaker_stand_against_it(fleet):
    fleet.orders(commands.DeclareFreeze(id="holiday", reason="nobody is here"))
    assert fleet.refuses(GRADUATE) == "freeze"
    fleet.orders(commands.LiftFreeze(id="holiday", reason="back"))
    fleet.record(decisions.BreakerTripped(units=("a",), window_s=60), "controller")
    assert fleet.refuses(GRADUATE) == "breaker_open"


@pytest.mark.parametrize("sm", ["12.0", "9.0", "blackwell"])
def test_only_a_candidate_can_graduate(fleet, sm):
    assert fleet.refuses(replace(GRADUATE, sm=sm)) == "bad_sm"
    assert fleet.refuses(replace(GRADUATE, gate="other")) == "unknown_gate"


def test_it_is_said_once_and_by_an_approver(fleet):
    assert fleet.refuses(GRADUATE, role="viewer") == "forbidden"
    graduated(fleet)
    assert fleet.orders(GRADUATE) == ()
    assert fleet.orders(replace(GRADUATE, sm="10.3")) == ()


# Afterwards


def test_no_rollout_is_proposed_for_it_any_more(fleet):
    graduated(fleet)
    plan = replace(fleet.state.rollouts["r1"].plan, id="r2")
    assert fleet.refuses(commands.ProposeRollout(plan=plan, reason="more")) == "bad_policy"


def test_the_kill_switch_without_sms_means_what_graduated_too(fleet):
    graduated(fleet)
    fleet.orders(commands.DisableGate(gate=given.GATE, reason="wrong answers"))
    assert fleet.seen(rulings.GateDisabled)[0].sms == ("10.7",)
    fleet.orders(commands.EnableGate(gate=given.GATE, reason="right after all"))
    assert fleet.told("a") == BASELINE


def test_the_kill_switch_of_a_gate_without_candidates_is_never_silent(fleet):
    gate = replace(policy.KIMI_K3, candidate_sms=(), baseline_sms=("10.0", "10.7"))
    fleet.orders(commands.PublishGate(gate=gate, reason="by hand"))
    assert fleet.refuses(commands.DisableGate(gate=given.GATE, reason="bad")) == "bad_sm"


def test_publishing_it_as_a_candidate_again_takes_it_back(fleet):
    graduated(fleet)
    fleet.orders(commands.PublishGate(gate=policy.KIMI_K3, reason="too early"))
    assert fleet.told("a") == ("append", given.TARGET, "granted")
    assert fleet.told("n") == ("append", given.SAFE, "no_rollout")
    assert fleet.state.graduated == {}
