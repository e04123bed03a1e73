"""Who must agree to what: narrowing needs one person, widening a second one."""

from dataclasses import replace

import pytest
from tests import given
from tests.unit.domain import test_commands

from smgate.domain import commands, decisions, policy, rulings

ENFORCE = commands.SetGateMode(gate=given.GATE, sm="10.7", mode="enforce", reason="go")
TRUSTING = policy.Policy(second_person="rollouts")


@pytest.fixture
def fleet():
    made = given.Fleet()
    made.node("a")
    made.launch("a")
    return made


def newest(fleet):
    """The id of the newest change."""
    return list(fleet.state.changes)[-1]


def accept(fleet, change, by="bob", **how):
    return fleet.alone(commands.AcceptChange(change=change, reason="yes"), by=by, **how)


def test_what_widens_is_asked_and_changes_nothing(fleet):
    [asked] = fleet.alone(ENFORCE, role="operator")
    assert isinstance(asked, rulings.ChangeAsked)
    assert (asked.command, asked.by, asked.reason) == ("gate_mode", "alice", "go")
    assert asked.body == {"gate": given.GATE, "sm": "10.7", "mode": "enforce"}
    assert fleet.state.mode_of(given.GATE, "10.7") == "observe"
    assert fleet.state.changes[newest(fleet)].sentence == (
        f"alice asks for: gate mode {given.GATE} 10.7 enforce."
    )


def test_what_narrows_is_done_by_one_person_whatever_waits(fleet):
    fleet.alone(ENFORCE)
    narrow = commands.DisableGate(gate=given.GATE, reason="r")
    assert isinstance(fleet.alone(narrow, role="operator")[0], rulings.GateDisabled)
    assert fleet.state.changes[newest(fleet)].open


def test_it_is_done_when_another_person_accepts(fleet):
    fleet.alone(ENFORCE, role="operator")
    change = newest(fleet)
    answer = commands.AcceptChange(change=change, reason="yes")
    assert fleet.refuses(answer, by="alice") == "same_person"
    assert fleet.refuses(answer, by="alice", role="admin") == "same_person"
    assert fleet.refuses(answer, by="bob", role="operator") == "forbidden"
    accept(fleet, change)
    assert fleet.state.mode_of(given.GATE, "10.7") == "enforce"


def test_asked_for_twice_it_is_one_change_whoever_asks(fleet):
    fleet.alone(commands.PinUnit(unit="a", direction="on", reason="r"))
    again = commands.PinUnit(unit=fleet.id("a"), direction="on", reason="another reason")
    assert fleet.alone(again) == ()
    assert fleet.alone(again, by="bob") == ()
    assert len(fleet.state.changes) == 1
    accept(fleet, newest(fleet))
    assert fleet.unit("a").pin.direction == "on"
    fleet.orders(commands.UnpinUnit(unit="a", reason="r"))
    assert len(fleet.alone(again)) == 1  # what was accepted may be asked for again


def test_a_bad_command_is_refused_at_once_and_one_that_is_so_already_asks_nobody(fleet):
    unknown = commands.SetGateMode(gate="x", sm="10.7", mode="enforce", reason="r")
    assert fleet.refuses(unknown) == "unknown_gate"
    assert fleet.alone(commands.ResetBreaker(reason="r")) == ()
    assert fleet.state.changes == {}


def test_what_was_asked_for_a_unit_is_meant_for_that_unit_alone(fleet):
    fleet.alone(commands.PinUnit(unit="a", direction="on", reason="r"))
    fleet.node("ab")
    fleet.launch("ab")
    fleet.launch("a", gpus=(given.values.Gpu(uuid="GPU-a9", sm="10.7"),))  # now `a` is ambiguous
    done = accept(fleet, newest(fleet))
    assert [type(one) for one in done] == [rulings.ChangeAccepted, rulings.PinSet]


@pytest.mark.parametrize(
    "name", sorted(test_commands.WIDENS - {"rollout_start", "rollout_approve"})
)
def test_every_command_that_widens_waits_for_another_person(name):
    from smgate.domain import decider

    command = test_commands.every_command()[name]
    waits = decider.needs_another(given.Fleet().state, command)
    assert waits is (name != "change_accept")


def rollout(fleet, name="r1"):
    plan = replace(test_commands.PLAN, id=name)
    fleet.alone(commands.ProposeRollout(plan=plan, reason="r"), role="operator")


def test_the_two_people_of_a_rollout_are_all_it_needs(fleet):
    rollout(fleet)
    approve = commands.ApproveRollout(rollout="r1", reason="r")
    assert fleet.refuses(approve, by="bob", role="operator") == "forbidden"
    fleet.alone(approve, by="bob")
    fleet.alone(commands.StartRollout(rollout="r1", reason="r"), role="operator")  # its author
    assert fleet.phase() == "running"
    assert fleet.state.changes == {}
    fleet.alone(commands.PauseRollout(rollout="r1", reason="r"), role="operator")
    fleet.alone(commands.ResumeRollout(rollout="r1", reason="r"))
    assert fleet.phase() == "paused"
    accept(fleet, newest(fleet))
    assert fleet.phase() == "running"


def test_where_rollouts_alone_need_two_people_an_approver_widens_alone(fleet):
    fleet.orders(commands.PublishPolicy(policy=TRUSTING, reason="r"))
    [done] = fleet.alone(ENFORCE)
    assert isinstance(done, rulings.GateModeSet)
    assert fleet.refuses(ENFORCE, role="operator") == "forbidden"
    rollout(fleet)
    assert fleet.refuses(commands.ApproveRollout(rollout="r1", reason="r")) == "same_person"


def test_a_policy_names_what_needs_a_second_person(fleet):
    odd = replace(TRUSTING, second_person="nobody")
    assert fleet.refuses(commands.PublishPolicy(policy=odd, reason="r")) == "bad_policy"


def test_an_old_log_without_the_field_asks_for_a_second_person():
    assert policy.Policy().second_person == "every_widening"


def test_nobody_is_asked_by_what_the_controller_does_itself(fleet):
    fleet.alone(ENFORCE)
    fleet.later(policy.Policy().change_timeout_s + 1)
    [said] = fleet.seen(decisions.WaitTimedOut)
    assert (said.code, said.subject, said.owner) == ("change_asked", newest(fleet), "approver")
    assert fleet.seen(rulings.GateModeSet) == []
