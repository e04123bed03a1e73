"""After a first failure: whose passes answer it, who is asked, and what a ruling leaves behind."""

import pytest
from tests import given
from tests.given import KEY, POOL

from smgate.domain import commands, decisions, policy

GRANTED = ("append", given.TARGET, "granted")
CHECKS = ("api_boundary", "moe_mxfp4")


@pytest.fixture
def suspect():
    """Qualified on the pool; then a node of its own chassis failed once."""
    fleet = given.Fleet().enforce().qualified()
    fleet.node("bad", pool=True)
    fleet.check("bad", outcome="failed")
    assert fleet.standing() == "suspect"
    return fleet


def rule(ruling, node):
    return commands.RuleBuild(kernel_key=KEY, node=node, ruling=ruling, reason="looked at it")


# Whose passes answer it


@pytest.mark.parametrize(
    ("checks", "standing"),
    [(CHECKS[:1], "suspect"), (CHECKS[1:], "suspect"), (CHECKS, "qualified")],
)
def test_a_failure_is_answered_by_every_check_run_again(suspect, checks, standing):
    for node in POOL:
        for check in checks:
            suspect.check(node, check)
    assert suspect.standing() == standing


def test_the_checks_that_answer_come_in_any_order(suspect):
    for node, first, second in zip(POOL, (0, 1, 1), (1, 0, 0), strict=True):
        suspect.check(node, CHECKS[first])
        assert suspect.standing() == "suspect"
        suspect.check(node, CHECKS[second])
    assert suspect.standing() == "qualified"


# Who is asked


def asked(fleet):
    return [(e.node, e.purpose) for e in fleet.seen(decisions.SelfTestWanted)]


def test_a_gpu_set_that_passed_before_the_failure_is_asked_again(suspect):
    suspect.launch("p1")
    assert asked(suspect) == [("p1", "confirm")]


def test_a_gpu_set_that_passed_since_is_not_asked_again(suspect):
    suspect.passes("p1")
    suspect.launch("p1")
    assert asked(suspect) == []


def test_nobody_is_asked_in_the_chassis_that_failed(suspect):
    suspect.node("beside", chassis="bad")
    suspect.launch("beside")
    assert asked(suspect) == []
    suspect.node("elsewhere")
    suspect.launch("elsewhere")
    assert asked(suspect) == [("elsewhere", "confirm")]


# What a ruling leaves behind


def test_a_failed_build_that_is_ruled_away_bars_no_unit_that_did_not_fail_itself():
    fleet = given.Fleet().enforce().qualified().granted("a")
    fleet.node("bad1", "bad2", pool=True)
    fleet.check("bad1", outcome="failed")
    fleet.check("bad2", outcome="failed")
    assert fleet.told("a") == ("append", given.SAFE, "build_failed")
    fleet.orders(rule("node_fault", "bad1"))
    fleet.orders(rule("node_fault", "bad2"))
    assert fleet.standing() == "qualified"
    fleet.rollout("r2")
    assert fleet.told("a") == GRANTED


def test_a_check_that_failed_on_one_rank_is_remembered_on_its_gpus_alone():
    fleet = given.Fleet().enforce().qualified()
    fleet.node("m", "n", "spare")
    for rank, node in enumerate("mn"):
        fleet.launch(node, nnodes=2, node_rank=rank, unit_name="two")
    fleet.rollout()
    assert fleet.told("two") == GRANTED
    fleet.check("n", outcome="failed")
    assert fleet.told("two") == ("append", given.SAFE, "self_test_failed")
    fleet.orders(rule("node_fault", "n"))
    assert fleet.told("two") == ("append", given.SAFE, "self_test_failed")
    fleet.rollout("r2")
    for rank, node in enumerate(("m", "spare")):
        fleet.launch(node, nnodes=2, node_rank=rank, unit_name="two")
    assert fleet.told("two") == GRANTED


# A control that caught nothing


def unproven(fleet):
    return [wait for wait in fleet.waits if wait.code == "check_unproven"]


@pytest.mark.parametrize("control", ["missed", "not_run"])
def test_a_check_whose_control_caught_nothing_waits_for_somebody_to_repair_it(control):
    fleet = given.Fleet().enforce().qualified()
    fleet.node("a", "b", pool=True)
    fleet.check("a", negative_control=control)
    fleet.check("b", negative_control=control)
    (wait,) = unproven(fleet)
    assert wait.sentence == (
        "moe_mxfp4 of probe version 1 counts for nothing on a and 1 other GPU sets: "
        "its negative control was not caught."
    )
    fleet.later(fleet.state.policy.confirm_timeout_s)
    assert [e.code for e in fleet.seen(decisions.WaitTimedOut)] == ["check_unproven"]
    fleet.check("a")
    assert [w.sentence for w in unproven(fleet)] == [
        "moe_mxfp4 of probe version 1 counts for nothing on b: its negative control was not caught."
    ]
    fleet.orders(rule("cleared", "b"))
    assert unproven(fleet) == []
    assert fleet.standing() == "qualified"


# Evidence that grows old


OLD_S = policy.Policy().evidence_max_age_s + 1


def test_old_evidence_is_young_again_when_enough_of_the_pool_was_measured_since():
    fleet = given.Fleet().enforce().qualified()
    fleet.node("a")
    fleet.rollout()
    fleet.later(OLD_S)
    fleet.launch("a")
    fleet.passes(*POOL[:2])
    fleet.check("p3")
    assert "evidence_old" in (fleet.override("a").code, *fleet.override("a").also)
    fleet.check("p3", "api_boundary")
    assert fleet.told("a") == GRANTED
    assert len(fleet.seen(decisions.BuildQualified)) == 2


def test_the_pool_is_asked_for_a_key_whose_evidence_is_old_and_not_before():
    fleet = given.Fleet().enforce().qualified()
    fleet.launch("p1")
    assert asked(fleet) == []
    fleet.later(OLD_S)
    for node in ("p1", "p1", "p2", "p3", "p1"):
        fleet.launch(node)
        if asked(fleet):
            fleet.passes(node)
    assert asked(fleet) == [(node, "qualify") for node in ("p1", "p2", "p3")]
    fleet.launch("p1")
    assert len(asked(fleet)) == len(POOL)


def test_what_was_accepted_as_like_a_key_grows_young_with_it():
    fleet = given.Fleet().enforce().qualified()
    made = given.build(jit_cache_version="0.7.2+cu130")
    fleet.node("a")
    fleet.launch("a", build=made)
    like = commands.AcceptBuild(kernel_key=given.key_of(made), like=KEY, reason="the same kernels")
    fleet.orders(like)
    fleet.later(OLD_S)
    fleet.rollout()
    assert "evidence_old" in (fleet.override("a").code, *fleet.override("a").also)
    fleet.passes(*POOL)
    assert fleet.told("a") == GRANTED
