"""A person rules on a failed or flaky result: the node's own, the build's, or measured anew."""

import pytest
from tests import given

from smgate.domain import commands, decisions, rulings


@pytest.fixture
def fleet():
    """A pool of five nodes and SM107 enforced; the key passed on three of them."""
    made = given.Fleet().enforce()
    made.node("p1", "p2", "p3", "p4", "p5", pool=True)
    made.passes("p1", "p2", "p3")
    return made


def rule(ruling, node=None, gpus=()):
    return commands.RuleBuild(
        kernel_key=given.KEY, ruling=ruling, node=node, gpu_uuids=tuple(gpus), reason="looked"
    )


def flaky(fleet):
    return [w for w in fleet.waits if w.code == "flaky"]


def memory(fleet, node):
    return fleet.state.gpu_memory.get((f"GPU-{node}", given.KEY))


def test_a_node_fault_ends_suspicion_and_is_remembered_of_the_node(fleet):
    fleet.check("p4", outcome="failed")
    assert fleet.standing() == "suspect"
    fleet.orders(rule("node_fault", "p4"))
    assert fleet.standing() == "qualified"
    assert memory(fleet, "p4")[0] == "self_test_failed"
    assert fleet.orders(rule("node_fault", "p4")) == ()


def test_without_enough_passes_a_key_is_unknown_after_a_ruling(fleet):
    made = given.Fleet().enforce()
    made.node("p1", "p2", pool=True)
    made.passes("p1")
    made.check("p2", outcome="failed")
    made.orders(rule("node_fault", "p2"))
    assert made.standing() == "unknown"


def test_a_confirmed_failure_fails_the_key_without_a_second_chassis(fleet):
    fleet.check("p4", outcome="failed")
    fleet.orders(rule("confirmed", "p4"), role="operator")
    assert fleet.standing() == "failed"
    fleet.launch("p5")
    assert fleet.told("p5") == ("append", given.SAFE, "build_failed")
    assert fleet.orders(rule("confirmed", "p4"), role="operator") == ()
    fleet.passes("p5")
    assert fleet.standing() == "failed"


def test_a_grant_ends_when_a_person_confirms_the_failure(fleet):
    fleet.granted("a")
    fleet.check("p4", outcome="failed")
    assert fleet.unit("a").grant is not None
    fleet.orders(rule("confirmed", "p4"))
    assert fleet.unit("a").grant is None
    assert [e.code for e in fleet.seen(decisions.GrantEnded)] == ["build_failed"]


def test_a_ruling_can_be_taken_back_by_another(fleet):
    fleet.check("p4", outcome="failed")
    fleet.orders(rule("confirmed", "p4"))
    fleet.orders(rule("node_fault", "p4"))
    assert fleet.standing() == "qualified"
    fleet.orders(rule("confirmed", "p4"))
    assert fleet.standing() == "failed"


def test_a_node_fault_the_planner_found_can_be_called_the_builds(fleet):
    fleet.check("p4", outcome="failed")
    fleet.passes("p1", "p2", "p3")
    assert len(fleet.seen(decisions.BuildCleared)) == 1
    assert fleet.standing() == "qualified"
    fleet.orders(rule("confirmed", "p4"))
    assert fleet.standing() == "failed"


def test_of_two_failures_one_that_is_a_nodes_own_leaves_the_key_suspect(fleet):
    fleet.check("p4", outcome="failed")
    fleet.later(100)
    fleet.check("p5", outcome="failed")
    assert fleet.standing() == "failed"
    fleet.orders(rule("node_fault", "p4"))
    assert fleet.standing() == "suspect"
    assert [w.since_led_us for w in fleet.waits if w.code == "suspect"] == [
        fleet.state.led_us(fleet.now_us)
    ]
    fleet.passes("p1", "p2", "p3")
    assert fleet.standing() == "qualified"


def test_of_three_failures_one_that_is_a_nodes_own_leaves_the_key_failed(fleet):
    for node in ("p3", "p4", "p5"):
        fleet.check(node, outcome="failed")
    fleet.orders(rule("node_fault", "p4"))
    assert fleet.standing() == "failed"


def test_a_cleared_result_is_forgotten_and_must_be_measured_anew(fleet):
    fleet.check("p3", outcome="failed")
    assert memory(fleet, "p3") is not None
    fleet.orders(rule("cleared", "p3"))
    assert fleet.standing() == "unknown"
    assert memory(fleet, "p3") is None
    assert ("GPU-p3",) not in fleet.state.keys[given.KEY].sets
    fleet.passes("p3")
    assert fleet.standing() == "qualified"


def test_clearing_one_set_forgets_no_failure_of_another_on_the_same_gpu(fleet):
    fleet.check("p4", outcome="failed", gpu_uuids=("GPU-1", "GPU-2"))
    fleet.check("p4", outcome="failed", gpu_uuids=("GPU-2", "GPU-3"))
    fleet.orders(rule("cleared", gpus=("GPU-2", "GPU-1")))
    assert fleet.state.gpu_memory.keys() == {("GPU-2", given.KEY), ("GPU-3", given.KEY)}
    assert fleet.standing() == "suspect"


def test_what_else_went_wrong_on_the_gpus_is_not_forgotten(fleet):
    fleet.granted("a")
    fleet.says("a", given.facts.GpuFaultSeen(gpu_uuid="GPU-a", xid=31))
    before = memory(fleet, "a")
    assert before[0] == "fault_in_service"
    fleet.check("a", outcome="failed")
    fleet.orders(rule("cleared", "a"))
    assert memory(fleet, "a") == before


@pytest.mark.parametrize(
    ("code", "command"),
    [
        ("no_failure", rule("cleared", "p1")),
        ("no_failure", rule("node_fault", "nobody")),
        ("no_failure", rule("confirmed", gpus=("GPU-p1",))),
        ("bad_ruling", rule("cleared")),
        ("bad_ruling", rule("cleared", "p4", ("GPU-p4",))),
        ("ambiguous_gpu_set", rule("cleared", "p4")),
        ("unknown_build", commands.RuleBuild(kernel_key="x", ruling="cleared", reason="r")),
    ],
)
def test_a_ruling_is_on_one_failed_result(fleet, code, command):
    fleet.check("p4", outcome="failed", gpu_uuids=("GPU-1",))
    fleet.check("p4", outcome="failed", gpu_uuids=("GPU-2",))
    assert fleet.refuses(command) == code


def test_a_failure_of_a_check_that_is_not_required_is_nothing_to_rule_on(fleet):
    fleet.check("p4", "memory", "failed")
    assert fleet.refuses(rule("confirmed", "p4")) == "no_failure"


def test_a_ruling_on_what_the_log_does_not_know_changes_nothing(fleet):
    for key, gpus in (("x", ("GPU-p1",)), (given.KEY, ("GPU-none",))):
        fleet.record(
            rulings.CheckRuled(kernel_key=key, gpu_uuids=gpus, ruling="confirmed", reason="r"),
            "operator:alice",
        )
    assert fleet.standing() == "qualified"


# Flaky: a pass after a failure


def test_a_pass_after_a_failure_is_flaky_and_waits_for_a_person(fleet):
    fleet.check("p4", outcome="failed")
    assert flaky(fleet) == []
    fleet.later(60)
    fleet.passes("p4")
    (wait,) = flaky(fleet)
    assert (wait.owner, wait.since_led_us) == ("approver", fleet.state.led_us(fleet.now_us))
    assert "build rule" in wait.next_step
    fleet.later(3600)
    assert "flaky" in {e.code for e in fleet.seen(decisions.WaitTimedOut)}


def test_a_failure_after_a_pass_is_not_flaky(fleet):
    fleet.check("p1", outcome="failed")
    assert fleet.standing() == "suspect"
    assert flaky(fleet) == []


def test_a_flaky_result_is_no_node_fault_by_itself(fleet):
    fleet.check("p4", outcome="failed")
    fleet.passes("p4")
    fleet.passes("p1", "p2", "p3")
    assert fleet.standing() == "suspect"
    fleet.orders(rule("node_fault", "p4"))
    assert fleet.standing() == "qualified"


@pytest.mark.parametrize("ruling", ["node_fault", "confirmed", "cleared"])
def test_any_ruling_ends_the_wait_for_one(fleet, ruling):
    fleet.check("p4", outcome="failed")
    fleet.passes("p4")
    fleet.orders(rule(ruling, "p4"))
    assert flaky(fleet) == []


def test_a_flaky_result_waits_no_longer_than_somebody_leads(fleet):
    fleet.check("p4", outcome="failed")
    fleet.now_us += 1800 * given.SECOND_US
    for check in given.policy.KIMI_K3.required_checks:
        fleet.record(
            given.facts.CheckFinished(
                check=check,
                outcome="passed",
                reason="ok",
                sm="10.7",
                gpu_uuids=("GPU-p4",),
                build=given.BUILD,
                layout=given.LAYOUT,
                probe_version="1",
                negative_control="caught",
            ),
            "node:p4",
        )
    fleet.away(1800)
    (wait,) = flaky(fleet)
    assert wait.remaining_us == 3600 * given.SECOND_US
