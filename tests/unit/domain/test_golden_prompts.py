"""Golden prompts: answers that count, what they make of a wave, and that none is never a pass."""

from dataclasses import replace

import pytest
from tests import given

from smgate.domain import commands, decisions, errors, facts, plan_check, plan_lint, policy

SET = "00aa11bb22cc33dd"


@pytest.fixture
def fleet():
    made = given.Fleet().enforce().qualified()
    made.node("a", "b")
    for node in "ab":
        made.launch(node)
    return made


def start(fleet, **changes):
    fleet.rollout(**{"golden": "require", **changes})


def answers(fleet, node, mismatches=0, *, prompts=64, named=SET):
    fleet.says(
        node,
        facts.GoldenFinished(
            instance_id="k3", set_digest=named, prompts=prompts, mismatches=mismatches
        ),
    )


def bake(fleet, *nodes):
    for node in nodes:
        fleet.restarts(node)
        fleet.bakes(node, 600)


def test_a_member_is_good_only_when_they_were_asked(fleet):
    start(fleet)
    bake(fleet, "a", "b")
    assert fleet.verdicts() == [None]
    answers(fleet, "a")
    assert fleet.verdicts() == [None]
    answers(fleet, "b")
    assert fleet.phase() == "completed"


def test_asked_before_the_bake_is_over_they_count_too(fleet):
    start(fleet)
    for node in "ab":
        fleet.restarts(node)
        answers(fleet, node)
    assert fleet.verdicts() == [None]
    for node in "ab":
        fleet.bakes(node, 600)
    assert fleet.phase() == "completed"


@pytest.mark.parametrize(
    ("mismatches", "allowed", "good"), [(0, 0, True), (1, 0, False), (2, 2, True), (3, 2, False)]
)
def test_too_many_wrong_answers_are_a_fault_in_service(fleet, mismatches, allowed, good):
    start(fleet, golden_mismatches_max=allowed)
    bake(fleet, "a", "b")
    answers(fleet, "b")
    answers(fleet, "a", mismatches)
    assert fleet.phase() == ("completed" if good else "halted")
    if good:
        return
    [ended] = fleet.seen(decisions.GrantEnded)
    assert (ended.unit, ended.code) == (fleet.id("a"), "fault_in_service")
    assert f"{mismatches} golden prompts" in ended.sentence
    assert fleet.told("a") == ("append", given.SAFE, "fault_in_service")
    assert fleet.told("b") == ("append", given.TARGET, "granted")


def test_right_answers_after_wrong_ones_do_not_undo_them(fleet):
    start(fleet, failures_max=9, failure_percent=100.0, golden_mismatches_max=1)
    bake(fleet, "a", "b")
    answers(fleet, "a", 2)
    answers(fleet, "a", 0)
    assert fleet.told("a")[2] == "fault_in_service"


def test_the_worst_of_several_sets_counts(fleet):
    start(fleet, golden_mismatches_max=1)
    bake(fleet, "a", "b")
    answers(fleet, "b")
    answers(fleet, "a", 0)
    assert fleet.phase() == "completed"
    answers(fleet, "b", 2, named="ff" * 8)
    assert fleet.told("b")[2] == "fault_in_service"


def test_without_require_they_are_seen_and_change_nothing(fleet):
    start(fleet, golden="ignore")
    bake(fleet, "a")
    answers(fleet, "a", 64)
    bake(fleet, "b")
    assert fleet.phase() == "completed"
    assert fleet.unit("a").grant.golden_mismatches == 64
    assert fleet.seen(decisions.GrantEnded) == []


# Answers that say nothing of the target


def test_answers_of_the_safe_value_do_not_count(fleet):
    start(fleet)
    fleet.serves("a", given.SAFE)
    answers(fleet, "a", 64)
    assert fleet.unit("a").grant.golden == {}
    bake(fleet, "a", "b")
    answers(fleet, "b")
    assert fleet.verdicts() == [None]


def test_answers_of_a_server_that_attested_nothing_do_not_count(fleet):
    start(fleet)
    fleet.launch("a")
    fleet.instance("a")
    answers(fleet, "a")
    assert fleet.unit("a").grant.golden == {}


def test_answers_of_the_server_of_an_earlier_launch_do_not_count(fleet):
    start(fleet)
    fleet.restarts("a")
    fleet.launch("a")
    answers(fleet, "a", 64)
    assert fleet.unit("a").grant.golden == {}


def test_answers_of_a_server_that_nobody_knows_do_not_count(fleet):
    start(fleet)
    bake(fleet, "a")
    fleet.says(
        "a", facts.GoldenFinished(instance_id="other", set_digest=SET, prompts=1, mismatches=1)
    )
    assert fleet.unit("a").grant.golden == {}
    assert fleet.phase() == "running"


def test_answers_of_a_server_without_a_grant_end_nothing(fleet):
    fleet.serves("a")
    answers(fleet, "a", 64)
    assert fleet.seen(decisions.GrantEnded) == []


# With the rest


def test_a_lease_ends_with_the_answers_not_before(fleet):
    fleet.orders(
        commands.PublishPolicy(policy=policy.Policy(bake_lease_s=600), reason="be careful")
    )
    start(fleet)
    bake(fleet, "a")
    assert fleet.override("a").lease_s == 600
    answers(fleet, "a")
    assert fleet.override("a").lease_s is None


def test_one_that_waits_for_answers_is_in_flight(fleet):
    start(fleet, max_in_flight=1)
    bake(fleet, "a")
    fleet.node("c")
    fleet.launch("c")
    assert fleet.told("c")[2] == "max_in_flight"
    answers(fleet, "a")
    fleet.launch("c")
    assert fleet.told("c")[2] == "granted"


PLAN = policy.RolloutPlan(
    id="r1", gate=given.GATE, sm="10.7", waves=(policy.Wave(count=1), policy.Wave(percent=100))
)


def test_an_allowance_that_nobody_asks_about_is_odd():
    plan = replace(PLAN, golden_mismatches_max=1)
    assert [one.code for one in plan_lint.remarks(plan)] == ["golden_ignored"]
    assert plan_lint.remarks(replace(plan, golden="require")) == []


def test_a_negative_allowance_is_refused():
    with pytest.raises(errors.RejectedError, match="golden_mismatches_max"):
        plan_check.validate(replace(PLAN, golden_mismatches_max=-1), {given.GATE: policy.KIMI_K3})
