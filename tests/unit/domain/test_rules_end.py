"""Rules 7 to 12 of the decision table: must it end? What ends a grant, what only suspends it."""

import pytest
from tests import given

from smgate.domain import commands, decisions, policy

GRANTED = ("append", given.TARGET, "granted")
ISSUE = policy.KnownIssue(
    id="fi-4122", title="SiTU kernels are wrong", match={"flashinfer": ("0.7.2.*",)}
)


@pytest.fixture
def fleet():
    """Two servers on the target by a rollout's grant, of a qualified build, on SM107."""
    return given.Fleet().enforce().qualified().granted("a", "b")


def disable(fleet, *sms):
    fleet.orders(commands.DisableGate(gate=given.GATE, sms=sms, reason="wrong answers"))


def pin(fleet, unit, direction, *, break_glass=False):
    fleet.orders(
        commands.PinUnit(unit=unit, direction=direction, break_glass=break_glass, reason="why")
    )


def faults(fleet, node):
    fleet.says(node, given.facts.GpuFaultSeen(gpu_uuid=f"GPU-{node}", xid=79))


def fail(fleet, node, **changes):
    fleet.check(node, outcome="failed", **changes)


def other_build(fleet, node):
    """The node's server is restarted with another image; the grant does not cover it."""
    made = given.build(flashinfer_version="0.7.3")
    fleet.launch(node, build=made)
    return made


# 7 the kill switch


def test_the_kill_switch_gives_the_safe_value_and_lifting_it_lets_the_grant_count_again(fleet):
    disable(fleet)
    assert fleet.told("a") == ("append", given.SAFE, "gate_disabled")
    assert fleet.seen(decisions.GrantEnded) == []
    fleet.orders(commands.EnableGate(gate=given.GATE, reason="fixed"))
    assert fleet.told("a") == GRANTED


def test_the_kill_switch_names_its_sms_and_means_the_candidates_by_default(fleet):
    fleet.enforce("10.3")
    fleet.node("x", sm="10.3")
    fleet.launch("x", sm="10.3")
    disable(fleet)
    assert fleet.told("x")[2] == "baseline_sm"
    disable(fleet, "10.3")
    assert fleet.told("x") == ("append", given.SAFE, "gate_disabled")


@pytest.mark.parametrize("direction", ["on", "off"])
def test_nothing_passes_the_kill_switch(fleet, direction):
    pin(fleet, "a", direction, break_glass=direction == "on")
    disable(fleet)
    assert fleet.told("a")[:2] == ("append", given.SAFE)
    assert fleet.told("a")[2] == "gate_disabled"


def test_lifting_the_kill_switch_brings_nothing_back_that_a_keep_rule_ended_meanwhile(fleet):
    disable(fleet)
    faults(fleet, "a")
    fleet.orders(commands.EnableGate(gate=given.GATE, reason="fixed"))
    assert fleet.told("a") == ("append", given.SAFE, "fault_in_service")
    assert fleet.told("b") == GRANTED


# 8 pinned off


def test_pinned_off_ends_the_grant_and_unpinning_does_not_bring_it_back(fleet):
    pin(fleet, "a", "off")
    assert fleet.told("a") == ("append", given.SAFE, "pinned_off")
    assert [e.code for e in fleet.seen(decisions.GrantEnded)] == ["pinned_off"]
    fleet.orders(commands.PauseRollout(rollout="r1", reason="look"))
    fleet.orders(commands.UnpinUnit(unit="a", reason="fine"))
    assert fleet.told("a") == ("append", given.SAFE, "rollout_paused")


def test_pinned_off_says_nothing_about_the_kernel_or_the_rollout(fleet):
    pin(fleet, "a", "off")
    assert fleet.state.gpu_memory == {}
    assert fleet.state.bad_signs == []
    assert fleet.phase() == "running"
    fleet.bakes("b", 600)
    assert fleet.verdicts() == ["passed"]


def test_pinned_off_comes_before_known_issues(fleet):
    fleet.orders(commands.PublishIssue(issue=ISSUE, reason="read it"))
    pin(fleet, "a", "off")
    assert fleet.told("a")[2] == "pinned_off"


# 9 known issues


def test_a_known_issue_gives_the_safe_value_and_withdrawing_it_lets_the_grant_count_again(fleet):
    fleet.orders(commands.PublishIssue(issue=ISSUE, reason="read it"))
    assert fleet.told("a") == ("append", given.SAFE, "known_issue:fi-4122")
    assert fleet.seen(decisions.GrantEnded) == []
    fleet.orders(commands.WithdrawIssue(issue_id="fi-4122", reason="a mistake"))
    assert fleet.told("a") == GRANTED


@pytest.mark.parametrize(
    ("match", "severity"),
    [
        ({"flashinfer": ("0.7.2",)}, "block"),
        ({"flashinfer": ("0.7.2.*",), "sm": ("10.3",)}, "block"),
        ({"flashinfer": ("0.7.2.*",)}, "info"),
        ({"disqualifying_env": ("FLASHINFER_*",)}, "block"),
    ],
)
def test_a_known_issue_that_does_not_hold_changes_nothing(fleet, match, severity):
    issue = policy.KnownIssue(id="other", title="t", severity=severity, match=match)
    fleet.orders(commands.PublishIssue(issue=issue, reason="read it"))
    assert fleet.told("a") == GRANTED


def test_a_known_issue_on_a_field_that_was_not_read_stops_a_start_and_ends_nothing(fleet):
    issue = policy.KnownIssue(id="cute", title="t", match={"cute_dsl": ("4.8.*",)})
    fleet.orders(commands.PublishIssue(issue=issue, reason="read it"))
    assert fleet.told("a") == GRANTED
    fleet.node("c")
    fleet.launch("c")
    assert "known_issue_unevaluable" in fleet.override("c").also


# 10 what went wrong here


def test_a_failed_self_test_here_ends_the_grant_here_and_nowhere_else(fleet):
    fail(fleet, "a")
    assert fleet.told("a") == ("append", given.SAFE, "self_test_failed")
    assert [e.unit for e in fleet.seen(decisions.GrantEnded)] == [fleet.id("a")]
    assert fleet.told("b") == GRANTED
    assert fleet.standing() == "suspect"


def test_what_went_wrong_stays_with_the_gpus_and_the_kernel_key(fleet):
    fail(fleet, "a")
    fleet.instance("a", "exited", exit_code=0)
    other_build(fleet, "a")
    assert fleet.told("a")[2] != "self_test_failed"
    gpus = (given.values.Gpu(uuid="GPU-a", sm="10.7"),)
    fleet.node("renamed", gpus=gpus)
    fleet.launch("renamed", gpus=gpus)
    assert fleet.told("renamed") == ("append", given.SAFE, "self_test_failed")


def test_a_failure_of_another_key_on_the_same_gpus_ends_no_grant(fleet):
    made = other_build(fleet, "a")
    fail(fleet, "a", made=made)
    assert fleet.told("a") == ("append", given.SAFE, "self_test_failed")
    assert fleet.seen(decisions.GrantEnded) == []
    fleet.launch("a")
    assert fleet.told("a") == GRANTED


def test_ranks_that_disagreed_are_remembered(fleet):
    fleet.node("m", "n")
    for rank, node in enumerate("mn"):
        fleet.launch(node, nnodes=2, node_rank=rank, unit_name="two")
    for rank, node in enumerate("mn"):
        fleet.serves(node, ("marlin", "auto")[rank], unit_name="two", nnodes=2, node_rank=rank)
    assert fleet.told("two") == ("append", given.SAFE, "unit_disagreed_here")
    assert len(fleet.seen(decisions.UnitDisagreed)) == 1
    assert "unit_disagrees" in fleet.alarms()


# 11 the build failed


def test_a_confirmed_failure_ends_every_grant_of_the_key(fleet):
    fail(fleet, "p1")
    assert fleet.told("a") == GRANTED
    fail(fleet, "p2")
    assert fleet.standing() == "failed"
    assert fleet.told("a")[:2] == ("append", given.SAFE)
    assert {e.code for e in fleet.seen(decisions.GrantEnded)} == {"build_failed"}
    assert fleet.told("a")[2] == "build_failed"
    fleet.node("c")
    fleet.launch("c")
    assert fleet.told("c") == ("append", given.SAFE, "build_failed")


def test_a_confirmed_failure_of_another_key_ends_no_grant(fleet):
    made = other_build(fleet, "a")
    fleet.passes("p1", made=made)
    fail(fleet, "p1", made=made)
    fail(fleet, "p2", made=made)
    assert fleet.told("a") == ("append", given.SAFE, "build_failed")
    fleet.launch("a")
    assert fleet.told("a") == GRANTED


def test_memory_comes_before_the_build_and_the_build_before_faults(fleet):
    faults(fleet, "b")
    fail(fleet, "a")
    fail(fleet, "p2")
    assert fleet.told("a")[2] == "self_test_failed"
    assert fleet.told("b")[2] == "build_failed"


# 12 faults in service


def test_a_gpu_fault_on_the_target_ends_the_grant_here(fleet):
    faults(fleet, "a")
    assert fleet.told("a") == ("append", given.SAFE, "fault_in_service")
    assert fleet.told("b") == GRANTED


def test_a_gpu_fault_off_the_target_says_nothing(fleet):
    fleet.node("c")
    fleet.restarts("c", build=given.build(flashinfer_version="0.7.3"))
    assert fleet.told("c")[1] == given.SAFE
    faults(fleet, "c")
    assert fleet.told("c")[2] != "fault_in_service"


def test_a_gpu_fault_counts_for_an_adopted_server_too(fleet):
    fleet.orders(commands.SetGateMode(gate=given.GATE, sm="10.7", mode="observe", reason="wait"))
    fleet.node("c")
    fleet.launch("c", build=given.build(flashinfer_version="0.7.3"))
    fleet.serves("c")
    fleet.enforce()
    assert fleet.told("c")[2] == "adopted"
    faults(fleet, "c")
    assert fleet.told("c") == ("append", given.SAFE, "fault_in_service")


@pytest.mark.parametrize(
    ("exits", "code"), [(2, "granted"), (3, "fault_in_service")], ids=["below", "at the limit"]
)
def test_a_crash_loop_on_the_target_ends_the_grant(fleet, exits, code):
    for _ in range(exits):
        fleet.instance("a", "exited", exit_code=1)
        fleet.restarts("a")
    assert fleet.told("a")[2] == code


@pytest.mark.parametrize(
    ("changes", "served", "code"),
    [
        ({"exit_code": 0}, True, "granted"),
        ({"exit_code": None}, True, "granted"),
        ({"exit_code": 0}, False, "granted"),
        ({"exit_code": None}, False, "fault_in_service"),
        ({"exit_code": 1}, False, "fault_in_service"),
    ],
)
def test_a_failed_start_counts_even_if_it_attested_nothing(fleet, changes, served, code):
    for _ in range(3):
        fleet.launch("a")
        fleet.instance("a", "serving" if served else "starting")
        fleet.instance("a", "exited", **changes)
    assert fleet.told("a")[2] == code


def test_an_exit_that_is_reported_twice_counts_once(fleet):
    for _ in range(4):
        fleet.instance("a", "exited", exit_code=1)
    assert fleet.told("a") == GRANTED


def test_exits_off_the_target_say_nothing_about_it(fleet):
    disable(fleet)
    for _ in range(4):
        fleet.restarts("a")
        fleet.instance("a", "exited", exit_code=1)
    fleet.orders(commands.EnableGate(gate=given.GATE, reason="fixed"))
    assert fleet.told("a") == GRANTED
