"""How many people must agree to a plan, and who may be one of them."""

import pytest
from tests import given

from smgate.domain import commands, decider, errors, plan_check, policy, rulings


@pytest.fixture
def fleet():
    made = given.Fleet().enforce().qualified()
    made.node("a")
    made.launch("a")
    return made


def propose(fleet, approvals):
    plan = policy.RolloutPlan(
        id="r1", gate=given.GATE, sm="10.7", waves=(policy.Wave(percent=100),), approvals=approvals
    )
    fleet.orders(commands.ProposeRollout(plan=plan, reason="better"), by="alice")


def approve(fleet, by):
    return fleet.orders(commands.ApproveRollout(rollout="r1", reason="agreed"), by=by)


START = commands.StartRollout(rollout="r1", reason="now")


@pytest.mark.parametrize("needed", [1, 2, 3])
def test_it_can_start_when_as_many_people_agreed_as_the_plan_says(fleet, needed):
    propose(fleet, needed)
    for number, by in enumerate(["bob", "carol", "dave"][:needed], start=1):
        assert fleet.phase() == "proposed"
        assert fleet.refuses(START) == "rollout_proposed"
        approve(fleet, by)
        assert len(fleet.seen(rulings.RolloutApproved)) == number
    assert fleet.phase() == "approved"
    fleet.orders(START)
    assert fleet.told("a")[2] == "granted"


def test_one_person_counts_once_and_is_told_that_it_is_so_already(fleet):
    propose(fleet, 2)
    assert len(approve(fleet, "bob")) == 1
    assert approve(fleet, "bob") == ()
    assert fleet.phase() == "proposed"


def test_its_author_is_none_of_them_however_many_agreed(fleet):
    propose(fleet, 2)
    command = commands.ApproveRollout(rollout="r1", reason="agreed")
    assert fleet.refuses(command, by="alice") == "same_person"
    approve(fleet, "bob")
    assert fleet.refuses(command, by="alice") == "same_person"


def test_nobody_approves_what_has_all_it_needs(fleet):
    propose(fleet, 1)
    approve(fleet, "bob")
    command = commands.ApproveRollout(rollout="r1", reason="agreed")
    assert approve(fleet, "bob") == ()
    assert fleet.refuses(command, by="carol") == "rollout_approved"


def test_the_same_name_twice_in_the_log_is_one_person(fleet):
    propose(fleet, 2)
    for _ in range(2):
        fleet.record(
            rulings.RolloutApproved(rollout="r1", approver="bob", reason="x"), "operator:bob"
        )
    assert fleet.phase() == "proposed"


def test_the_wait_and_the_reason_say_how_many_are_missing(fleet):
    propose(fleet, 2)
    approve(fleet, "bob")
    [wait] = [one for one in fleet.waits if one.code == "rollout"]
    assert wait.sentence == "Rollout r1 is proposed; 1 of 2 people have approved it."
    assert "another person than alice, bob" in wait.next_step
    assert "by 2 people other than its author" in fleet.override("a").sentence
    assert fleet.told("a")[2] == "not_approved"
    roles = frozenset({"approver"})
    with pytest.raises(errors.RejectedError) as refusal:
        decider.decide(fleet.state, START, by="dora", roles=roles, now_us=fleet.now_us)
    assert "1 of 2 people" in refusal.value.next_step


def test_a_plan_that_needs_nobody_is_refused(fleet):
    plan = policy.RolloutPlan(
        id="r1", gate=given.GATE, sm="10.7", waves=(policy.Wave(count=1),), approvals=0
    )
    with pytest.raises(errors.RejectedError, match="approvals is 0"):
        plan_check.validate(plan, fleet.state.gates)
