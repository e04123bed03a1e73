"""The standing of kernel keys: what qualifies, what makes suspect, what fails, what is asked of whom."""

from dataclasses import replace

import pytest
from tests import given

from smgate.domain import commands, decisions, policy, values

CHECKS = policy.KIMI_K3.required_checks
NEWER = given.build(flashinfer_version="0.7.3")


@pytest.fixture
def fleet():
    """A pool of five nodes, each in a chassis of its own, and SM107 enforced."""
    made = given.Fleet().enforce()
    made.node("p1", "p2", "p3", "p4", "p5", pool=True)
    return made


def asked(fleet, purpose="qualify"):
    return [e.node for e in fleet.seen(decisions.SelfTestWanted) if e.purpose == purpose]


# Qualified: a count of distinct GPU sets of the pool


def test_three_gpu_sets_of_the_pool_qualify_a_key(fleet):
    fleet.passes("p1", "p2")
    assert fleet.standing() == "unknown"
    fleet.passes("p3")
    assert fleet.standing() == "qualified"
    assert fleet.seen(decisions.BuildQualified)[0].gpu_sets == (
        ("GPU-p1",),
        ("GPU-p2",),
        ("GPU-p3",),
    )


def test_the_same_gpu_set_counts_once(fleet):
    for _ in range(3):
        fleet.passes("p1")
    assert fleet.standing() == "unknown"


def test_a_gpu_is_never_counted_twice(fleet):
    fleet.passes("p1", gpu_uuids=("GPU-1", "GPU-2"))
    fleet.passes("p1", gpu_uuids=("GPU-2", "GPU-3"))
    fleet.passes("p1", gpu_uuids=("GPU-1",))
    assert fleet.standing() == "unknown"
    fleet.passes("p2", "p3")
    assert fleet.standing() == "qualified"


def test_production_nodes_qualify_nothing(fleet):
    fleet.node("a", "b", "c")
    fleet.passes("a", "b", "c")
    assert fleet.standing() == "unknown"


def test_every_required_check_must_pass(fleet):
    for node in ("p1", "p2", "p3"):
        fleet.check(node, "moe_mxfp4")
    assert fleet.standing() == "unknown"


@pytest.mark.parametrize("outcome", ["skipped"])
def test_a_skipped_check_is_absence(fleet, outcome):
    fleet.passes("p1", "p2")
    fleet.check("p3", "api_boundary")
    fleet.check("p3", "moe_mxfp4", outcome)
    assert fleet.standing() == "unknown"
    assert fleet.state.gpu_memory == {}


@pytest.mark.parametrize("control", ["missed", "not_run"])
def test_a_pass_whose_control_was_not_caught_proves_nothing(fleet, control):
    fleet.passes("p1", "p2")
    fleet.passes("p3", negative_control=control)
    assert fleet.standing() == "unknown"
    fleet.passes("p3")
    assert fleet.standing() == "qualified"


def test_a_failure_whose_control_was_missed_blocks_and_revokes_nothing(fleet):
    fleet.passes("p1", "p2")
    fleet.check("p3", "api_boundary")
    fleet.check("p3", "moe_mxfp4", "failed", negative_control="missed")
    assert fleet.standing() == "unknown"
    assert fleet.state.gpu_memory == {}


def test_a_check_without_a_control_of_its_own_needs_none(fleet):
    for node in ("p1", "p2", "p3"):
        fleet.check(node, "api_boundary", negative_control="not_run")
        fleet.check(node, "moe_mxfp4")
    assert fleet.standing() == "qualified"


def test_evidence_is_for_one_exact_key(fleet):
    fleet.passes("p1", "p2")
    fleet.passes("p3", made=NEWER)
    fleet.passes("p4", layout=replace(given.LAYOUT, tp=4))
    fleet.passes("p5", sm="10.3")
    assert {evidence.standing for evidence in fleet.state.keys.values()} == {"unknown"}


@pytest.mark.parametrize(
    ("racks", "standing"), [(("r1", "r1", "r1"), "unknown"), (("r1", "r1", "r2"), "qualified")]
)
def test_the_policy_can_ask_for_several_racks(racks, standing):
    fleet = given.Fleet(min_domains=2)
    for node, rack in zip(("p1", "p2", "p3"), racks, strict=True):
        fleet.node(node, rack=rack, pool=True)
        fleet.passes(node)
    assert fleet.standing() == standing


# Suspect, failed, cleared


@pytest.mark.parametrize("outcome", ["failed", "error", "timeout"])
@pytest.mark.parametrize("check", CHECKS)
def test_one_failure_makes_a_key_suspect_whatever_it_was_before(fleet, check, outcome):
    fleet.passes("p1", "p2", "p3")
    fleet.check("p4", check, outcome)
    assert fleet.standing() == "suspect"
    assert "build_suspect" in fleet.alarms()


def test_a_check_that_the_gate_does_not_require_makes_nothing_suspect(fleet):
    fleet.passes("p1", "p2", "p3")
    fleet.check("p4", "memory", "failed")
    assert fleet.standing() == "qualified"
    assert fleet.state.gpu_memory == {}


def test_a_pass_after_a_failure_stays_a_failure(fleet):
    fleet.check("p1", outcome="failed")
    fleet.passes("p1", "p2", "p3")
    assert fleet.standing() == "suspect"
    fleet.check("p4", outcome="failed")
    assert fleet.seen(decisions.BuildFailed)[0].chassis == ("p1", "p4")


def test_a_failure_after_a_pass_is_a_failure(fleet):
    fleet.passes("p1", "p2", "p3")
    fleet.check("p1", outcome="failed")
    assert fleet.standing() == "suspect"


def test_a_second_failure_in_another_chassis_fails_the_key(fleet):
    fleet.check("p1", outcome="failed")
    fleet.check("p2", outcome="failed")
    assert fleet.standing() == "failed"
    assert fleet.seen(decisions.BuildFailed)[0].chassis == ("p1", "p2")


@pytest.mark.parametrize(
    "second",
    [
        {"node": "p1", "gpu_uuids": ("GPU-other",)},
        {"node": "p2", "chassis": "p1"},
        {"node": "p2", "gpu_uuids": ("GPU-p1", "GPU-p2")},
    ],
    ids=["same node", "same chassis", "shared GPU"],
)
def test_a_second_failure_of_one_chassis_does_not(fleet, second):
    fleet.check("p1", outcome="failed")
    fleet.check(second.pop("node"), outcome="failed", **second)
    assert fleet.standing() == "suspect"


def test_two_failures_at_once_go_through_suspect(fleet):
    for node in ("p1", "p2"):
        fleet.record(
            given.facts.CheckFinished(
                check="moe_mxfp4",
                outcome="failed",
                reason="wrong",
                sm="10.7",
                gpu_uuids=(f"GPU-{node}",),
                build=given.BUILD,
                layout=given.LAYOUT,
                probe_version="1",
            ),
            f"node:{node}",
        )
    fleet.settle()
    assert len(fleet.seen(decisions.BuildSuspected)) == 1
    assert fleet.standing() == "failed"


def test_enough_passes_elsewhere_since_make_it_the_nodes_own_fault(fleet):
    fleet.passes("p2", "p3", "p4")
    fleet.check("p1", outcome="failed")
    assert fleet.standing() == "suspect"
    fleet.passes("p2", "p3")
    assert fleet.standing() == "suspect"
    fleet.passes("p4")
    assert fleet.standing() == "qualified"
    assert fleet.seen(decisions.BuildCleared)[0].node_fault_gpu_uuids == ("GPU-p1",)
    fleet.launch("p1")
    assert fleet.told("p1") == ("append", given.SAFE, "self_test_failed")


def test_passes_in_the_same_chassis_clear_nothing(fleet):
    fleet.passes("p2", "p3", "p4")
    fleet.check("p1", outcome="failed")
    fleet.passes("p2", "p3")
    fleet.passes("p1", gpu_uuids=("GPU-other",))
    assert fleet.standing() == "suspect"


def test_a_failed_key_stays_failed(fleet):
    fleet.check("p1", outcome="failed")
    fleet.check("p2", outcome="failed")
    fleet.passes("p3", "p4", "p5")
    assert fleet.standing() == "failed"


def test_a_key_that_stays_suspect_is_said_after_its_time(fleet):
    fleet.check("p1", outcome="failed")
    fleet.later(3599)
    assert fleet.seen(decisions.WaitTimedOut) == []
    fleet.later(1)
    assert [e.code for e in fleet.seen(decisions.WaitTimedOut)] == ["suspect"]
    fleet.later(3600)
    assert len(fleet.seen(decisions.WaitTimedOut)) == 1


# What is asked of whom


def test_a_new_key_is_asked_of_the_pool_the_fewest_sets_that_do(fleet):
    fleet.node("a")
    fleet.launch("a")
    assert asked(fleet) == []
    for node in ("p1", "p2", "p3", "p4"):
        fleet.launch(node, settled=False)
    fleet.settle()
    assert asked(fleet) == ["p1", "p2", "p3"]
    assert fleet.unit("p1").override is None
    fleet.passes("p1")
    assert fleet.decided("p1").value == given.SAFE


def sentence(fleet, code):
    (wait,) = [wait for wait in fleet.waits if wait.code == code]
    return wait.sentence


def test_a_check_that_never_answers_holds_a_launch_no_longer_than_its_time(fleet):
    fleet.launch("p1")
    fleet.later(99)
    assert fleet.unit("p1").override is None
    assert "the checks asked of it" in sentence(fleet, "unit_launch")
    fleet.later(1)
    assert fleet.decided("p1").value == given.SAFE
    assert [e.code for e in fleet.seen(decisions.WaitTimedOut)] == ["wanted_check"]
    fleet.launch("p2")
    assert asked(fleet) == ["p1", "p2"]


@pytest.mark.parametrize("how", ["timed out", "skipped"])
def test_a_check_that_came_to_nothing_is_asked_of_another_launch_that_waits(how):
    fleet = given.Fleet(min_gpu_sets=1, gather_s=600).enforce()
    fleet.node("p1", "p2", pool=True)
    fleet.launch("p1")
    fleet.launch("p2", nnodes=2, unit_name="two")
    assert asked(fleet) == ["p1"]
    if how == "timed out":
        fleet.later(100)
    else:
        for check in CHECKS:
            fleet.check("p1", check, "skipped")
    assert asked(fleet) == ["p1", "p2"]


def test_nothing_is_asked_for_a_baseline_or_a_known_gpu_set(fleet):
    fleet.enforce("10.0")
    fleet.launch("p1", sm="10.0")
    fleet.passes("p2")
    fleet.launch("p2")
    assert asked(fleet) == []


def test_a_suspect_key_is_asked_of_three_others(fleet):
    fleet.passes("p1", "p2", "p3")
    fleet.check("p1", outcome="failed")
    for node in "abcd":
        fleet.node(node)
        fleet.launch(node, settled=False)
    fleet.settle()
    assert asked(fleet, "confirm") == ["a", "b", "c"]


def test_observe_leaves_production_launches_alone(fleet):
    fleet.orders(commands.SetGateMode(gate=given.GATE, sm="10.7", mode="observe", reason="wait"))
    fleet.passes("p1", "p2", "p3")
    fleet.check("p1", outcome="failed")
    fleet.node("a")
    fleet.launch("a")
    assert asked(fleet, "confirm") == []
    fleet.launch("p4")
    assert asked(fleet, "confirm") == ["p4"]


def test_where_only_another_rack_is_missing_only_another_rack_is_asked():
    fleet = given.Fleet(min_domains=2).enforce()
    fleet.node("p1", "p2", "p3", "p4", pool=True)
    fleet.node("q1", pool=True, rack="r2")
    fleet.passes("p1", "p2", "p3")
    fleet.launch("p4")
    fleet.launch("q1")
    assert asked(fleet) == ["q1"]


def test_an_incomplete_build_has_no_key_and_no_evidence(fleet):
    fleet.passes("p1", "p2", "p3", made=given.build(driver_version=None))
    assert fleet.state.keys == {}


def test_a_pool_node_that_reports_itself_late_counts_from_then_on(fleet):
    made = given.Fleet()
    made.passes("p1", "p2", "p3")
    made.node(*given.POOL, pool=True)
    made.passes(*given.POOL)
    assert made.standing() == "qualified"


def test_gpu_sets_are_named_in_one_order(fleet):
    fleet.passes("p1", gpu_uuids=("GPU-2", "GPU-1"))
    fleet.passes("p1", gpu_uuids=("GPU-1", "GPU-2"))
    assert list(fleet.state.keys[given.KEY].sets) == [("GPU-1", "GPU-2")]


def test_a_gpu_that_is_known_by_its_node_alone_has_its_sm(fleet):
    fleet.launch("p1", gpus=(values.Gpu(uuid="GPU-p1"),))
    assert asked(fleet) == ["p1"]


def test_a_launch_waits_for_its_check_as_long_as_the_check_may_take():
    fleet = given.Fleet(gather_s=60, check_timeout_s=100).enforce()
    fleet.node("p1", pool=True)
    fleet.launch("p1")
    fleet.later(99)
    (wait,) = (wait for wait in fleet.waits if wait.code == "unit_launch")
    assert wait.remaining_us == 1_000_000
    fleet.later(1)
    assert fleet.told("p1")
