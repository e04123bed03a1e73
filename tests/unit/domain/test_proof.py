"""The positive control: a probe version counts once it has passed on a baseline SM."""

from dataclasses import replace

import pytest
from tests import given

from smgate.domain import commands, decisions, evolve, policy, why_build

CHECKS = policy.KIMI_K3.required_checks
BASELINE_KEY = given.key_of(sm="10.3")


@pytest.fixture
def fleet():
    """A pool on SM107 and a pool node on SM103; a baseline's proof is required."""
    made = given.Fleet(baseline_proof="required").enforce()
    made.node("p1", "p2", "p3", "p4", pool=True)
    made.node("b1", pool=True, sm="10.3")
    return made


def proves(fleet, node="b1", version="1", sm="10.3"):
    for check in CHECKS:
        fleet.check(node, check, sm=sm, probe_version=version)


def told(fleet):
    return why_build.explain_key(fleet.state, given.KEY, fleet.now_us)


def unproven_waits(fleet):
    return [w for w in fleet.waits if w.code == "check_unproven"]


def asked(fleet):
    return [e.node for e in fleet.seen(decisions.SelfTestWanted) if e.purpose == "prove"]


# What counts


def test_passes_of_an_unproven_probe_qualify_nothing_until_a_baseline_proves_it(fleet):
    fleet.passes("p1", "p2", "p3")
    assert fleet.standing() == "unknown"
    proves(fleet)
    assert fleet.standing() == "qualified"


def test_a_probe_that_was_proven_first_counts_at_once(fleet):
    proves(fleet)
    fleet.passes("p1", "p2", "p3")
    assert fleet.standing() == "qualified"
    assert unproven_waits(fleet) == []


def test_where_no_proof_is_required_none_is_waited_for():
    made = given.Fleet()
    made.node(*given.POOL, pool=True)
    made.passes(*given.POOL)
    assert policy.Policy().baseline_proof == "not_required"
    assert made.standing() == "qualified"
    assert told(made)["unproven"] == []


def test_a_failure_of_an_unproven_probe_blocks_and_revokes_nothing(fleet):
    proves(fleet)
    fleet.passes("p1", "p2", "p3")
    fleet.granted("a")
    fleet.check("a", outcome="failed", probe_version="2")
    assert fleet.standing() == "qualified"
    assert fleet.state.gpu_memory == {}
    assert fleet.unit("a").grant is not None


def test_a_held_failure_counts_when_its_probe_is_proven(fleet):
    proves(fleet)
    fleet.passes("p1", "p2", "p3")
    fleet.granted("a")
    fleet.check("a", outcome="failed", probe_version="2")
    proves(fleet, version="2")
    assert fleet.standing() == "suspect"
    assert fleet.unit("a").grant is None
    assert [e.code for e in fleet.seen(decisions.GrantEnded)] == ["self_test_failed"]


def test_a_second_held_failure_ends_its_grant_though_the_key_was_suspect_before(fleet):
    proves(fleet)
    fleet.passes("p1", "p2", "p3")
    fleet.granted("a")
    fleet.check("a", outcome="failed", probe_version="2", chassis="p1")
    fleet.check("p1", outcome="failed")
    assert fleet.standing() == "suspect"
    assert fleet.unit("a").grant is not None
    proves(fleet, version="2")
    assert fleet.standing() == "suspect"
    assert fleet.unit("a").grant is None


def test_the_failures_of_a_broken_probe_leave_no_mark_on_its_successor(fleet):
    for node in ("p1", "p2", "p3"):
        fleet.check(node, outcome="failed", probe_version="broken")
    proves(fleet, version="2")
    fleet.passes("p1", "p2", "p3", probe_version="2")
    assert fleet.standing() == "qualified"
    assert list(fleet.state.unproven_probes) == ["broken"]


def test_what_a_broken_probe_measured_can_be_forgotten(fleet):
    fleet.check("p1", outcome="failed", probe_version="broken")
    rule = commands.RuleBuild(kernel_key=given.KEY, node="p1", ruling="node_fault", reason="r")
    assert fleet.refuses(rule) == "no_failure"
    assert len(unproven_waits(fleet)) == 1
    fleet.orders(replace(rule, ruling="cleared"))
    assert unproven_waits(fleet) == []
    assert told(fleet)["results"] == []
    proves(fleet, version="broken")
    assert fleet.standing() == "unknown"


def test_a_held_failure_is_not_hidden_by_a_later_pass(fleet):
    fleet.check("p1", outcome="failed")
    fleet.passes("p1", "p2", "p3")
    proves(fleet)
    assert fleet.standing() == "suspect"


@pytest.mark.parametrize(
    "wrong",
    [
        {"sm": "12.0"},
        {"sm": "10.7"},
        {"negative_control": "missed"},
        {"outcome": "failed"},
        {"outcome": "skipped"},
        {"probe_version": "2"},
        {"name": "api_boundary"},
    ],
    ids=str,
)
def test_only_the_controlled_check_passed_on_a_baseline_proves_a_probe(fleet, wrong):
    fleet.passes("p1", "p2", "p3")
    at = wrong.get("sm", "10.3")
    fleet.check("b1", **{"sm": at, "gpu_uuids": (f"GPU-of-{at}",), **wrong})
    assert fleet.standing() == "unknown"
    fleet.check("b1", sm="10.0", gpu_uuids=("GPU-of-10.0",))
    assert fleet.standing() == "qualified"


def test_a_probe_that_fails_on_the_baseline_makes_that_no_suspect_until_another_proves_it(fleet):
    fleet.check("b1", outcome="failed", sm="10.3")
    assert fleet.state.keys[BASELINE_KEY].standing == "unknown"
    assert fleet.state.gpu_memory == {}
    fleet.node("b2", pool=True, sm="10.3")
    proves(fleet, "b2")
    assert fleet.state.keys[BASELINE_KEY].standing == "suspect"


def test_a_proven_probe_that_fails_on_a_baseline_makes_its_key_suspect(fleet):
    proves(fleet)
    fleet.check("b1", outcome="failed", sm="10.3", gpu_uuids=("GPU-other",))
    assert fleet.state.keys[BASELINE_KEY].standing == "suspect"


def test_every_required_controlled_check_must_be_proven(fleet):
    stricter = replace(policy.KIMI_K3, required_checks=("quantize", "moe_mxfp4"))
    fleet.orders(commands.PublishGate(gate=stricter, reason="r"))
    for node in ("p1", "p2", "p3"):
        fleet.check(node, "quantize")
        fleet.check(node)
    fleet.check("b1", sm="10.3")
    assert fleet.standing() == "unknown"
    fleet.check("b1", "quantize", sm="10.0", gpu_uuids=("GPU-of-10.0",))
    assert fleet.standing() == "qualified"


def test_a_check_without_a_control_needs_no_proof(fleet):
    fleet.check("p1", "api_boundary", "failed")
    assert fleet.standing() == "suspect"


def test_a_gate_without_a_baseline_can_prove_nothing(fleet):
    alone = replace(policy.KIMI_K3, baseline_sms=())
    fleet.orders(commands.PublishGate(gate=alone, reason="r"))
    proves(fleet)
    fleet.passes("p1", "p2", "p3")
    assert fleet.standing() == "unknown"
    fleet.orders(commands.PublishGate(gate=policy.KIMI_K3, reason="back"))
    proves(fleet)
    assert fleet.standing() == "qualified"


def test_when_proof_is_no_longer_required_what_was_held_counts(fleet):
    fleet.passes("p1", "p2", "p3")
    fleet.orders(commands.PublishPolicy(policy=policy.Policy(), reason="no baseline here"))
    assert fleet.standing() == "qualified"
    assert fleet.state.unproven_probes == {}


def test_what_was_held_counts_in_the_order_it_was_measured(fleet):
    fleet.check("p1", outcome="failed", probe_version="1")
    fleet.check("p1", probe_version="2")
    fleet.orders(commands.PublishPolicy(policy=policy.Policy(), reason="no baseline here"))
    assert [wait.code for wait in fleet.waits if wait.code == "flaky"] == ["flaky"]


def test_requiring_proof_takes_nothing_back():
    made = given.Fleet().enforce().qualified()
    required = policy.Policy(baseline_proof="required")
    made.orders(commands.PublishPolicy(policy=required, reason="from now on"))
    assert made.standing() == "qualified"
    made.node("p4", pool=True)
    made.check("p4", outcome="failed", probe_version="2")
    assert made.standing() == "qualified"


def test_the_same_log_folds_to_the_same_state_whatever_was_held(fleet):
    fleet.passes("p1", "p2", "p3")
    proves(fleet)
    assert evolve.fold(fleet.history) == fleet.state


# What is said


def test_why_says_that_a_check_is_unproven_and_what_it_lacks(fleet):
    fleet.passes("p1")
    fleet.passes("p2", negative_control="missed")
    found = {one["node"]: one for one in told(fleet)["unproven"]}
    assert {node: one["lacks"] for node, one in found.items()} == {
        "p1": "baseline_proof",
        "p2": "negative_control",
    }
    assert "check_unproven" in told(fleet)["sentence"]
    proves(fleet)
    assert [one["node"] for one in told(fleet)["unproven"]] == ["p2"]
    fleet.passes("p2")
    assert told(fleet)["unproven"] == []


def test_an_unproven_probe_waits_for_an_operator_and_is_said_after_its_time(fleet):
    fleet.passes("p1")
    fleet.later(600)
    fleet.passes("p2")
    (wait,) = unproven_waits(fleet)
    assert (wait.subject, wait.owner) == ("1", "operator")
    fleet.later(3000)
    assert [e.code for e in fleet.seen(decisions.WaitTimedOut)] == ["check_unproven"]
    proves(fleet)
    assert unproven_waits(fleet) == []


# What is asked of whom


def test_one_baseline_gpu_set_is_asked_for_a_new_probe_version(fleet):
    fleet.node("b2", pool=True, sm="10.0")
    fleet.launch("b1", sm="10.3")
    assert asked(fleet) == []
    fleet.passes("p1", "p2", "p3")
    fleet.launch("b1", sm="10.3", settled=False)
    fleet.launch("b2", sm="10.0", settled=False)
    fleet.settle()
    assert asked(fleet) == ["b1"]
    proves(fleet)
    assert fleet.standing() == "qualified"
    fleet.launch("b2", sm="10.0")
    assert asked(fleet) == ["b1"]


def test_a_gpu_set_that_proved_nothing_is_not_asked_again_until_a_newer_probe(fleet):
    fleet.passes("p1", probe_version="2")
    fleet.launch("b1", sm="10.3")
    proves(fleet, version="old")
    fleet.launch("b1", sm="10.3")
    assert asked(fleet) == ["b1"]
    fleet.node("b2", pool=True, sm="10.3")
    fleet.launch("b2", sm="10.3")
    assert asked(fleet) == ["b1", "b2"]
    fleet.later(200)
    fleet.passes("p1", probe_version="3")
    fleet.launch("b1", sm="10.3")
    assert asked(fleet) == ["b1", "b2", "b1"]


@pytest.mark.parametrize(("mode", "nodes"), [("observe", []), ("enforce", ["c1"])])
def test_a_production_baseline_is_asked_only_where_it_is_enforced(fleet, mode, nodes):
    fleet.orders(commands.SetGateMode(gate=given.GATE, sm="10.3", mode=mode, reason="r"))
    fleet.node("c1", sm="10.3")
    fleet.passes("p1")
    fleet.launch("c1", sm="10.3")
    assert asked(fleet) == nodes
