"""Changes that wait for a person: how each opens, who may answer, how each ends."""

import pytest
from tests import given
from tests.unit.domain.test_commands import every_command

from smgate.domain import (
    bodies,
    changes,
    commands,
    decisions,
    errors,
    policy,
    rules,
    rulings,
    waits,
)

HOUR = 3600
HELD = decisions.ChangeHeld(
    code="change_limit",
    subject=given.KEY,
    units=("a:1", "b:1"),
    sentence="The key failed; 2 servers run it.",
    would="2 servers restart.",
    numbers={"restarts": 2.0},
    timeout_s=HOUR,
)


@pytest.fixture
def fleet():
    return given.Fleet()


def hold(fleet):
    """The controller holds a plan."""
    recorded = fleet.record(HELD, "controller")
    fleet.settle()
    return f"c{recorded.position}"


def wait_of(fleet, change):
    found = [wait for wait in fleet.waits if wait.subject == change]
    return found[0] if found else None


@pytest.mark.parametrize("name", sorted(commands.NAMES))
def test_a_command_is_kept_as_plain_data_and_comes_back_as_it_was(name):
    command = every_command()[name]
    body = bodies.of_command(command)
    assert "reason" not in body
    assert bodies.to_command(name, body, reason=command.reason) == command
    assert bodies.name_of(command) == name


def test_a_body_from_before_a_field_was_there_has_its_default():
    body = bodies.of_command(commands.PublishPolicy(policy=policy.Policy(), reason="r"))
    del body["policy"]["gather_s"]
    read = bodies.to_command("policy_publish", body, reason="r")
    assert read == commands.PublishPolicy(policy=policy.Policy(), reason="r")


def test_a_held_plan_waits_for_an_approver_until_one_accepts(fleet):
    change = hold(fleet)
    waiting = wait_of(fleet, change)
    assert (waiting.code, waiting.owner, waiting.sentence) == (
        "change_held",
        "approver",
        HELD.sentence,
    )
    assert f"smgate change accept {change}" in waiting.next_step
    assert fleet.refuses(commands.AcceptChange(change=change, reason="r"), role="operator") == (
        "forbidden"
    )
    fleet.orders(commands.AcceptChange(change=change, reason="go"), by="bob")
    found = changes.held(fleet.state, "change_limit", given.KEY)
    assert (found.ended, found.accepted_by) == ("accepted", "bob")
    assert wait_of(fleet, change) is None
    assert fleet.orders(commands.AcceptChange(change=change, reason="go"), by="bob") == ()
    assert fleet.refuses(commands.AcceptChange(change=change, reason="r"), by="eve") == (
        "change_accepted"
    )


def test_a_held_plan_that_waits_too_long_is_said_once_and_goes_on_waiting(fleet):
    change = hold(fleet)
    fleet.later(HOUR - 1)
    assert fleet.seen(decisions.WaitTimedOut) == []
    fleet.later(2)
    fleet.later(HOUR)
    assert [one.subject for one in fleet.seen(decisions.WaitTimedOut)] == [change]
    assert fleet.state.changes[change].open


def test_an_operator_may_withdraw_and_that_is_once(fleet):
    change = hold(fleet)
    fleet.orders(commands.WithdrawChange(change=change, reason="no"), role="operator")
    assert fleet.state.changes[change].ended == "withdrawn"
    assert fleet.orders(commands.WithdrawChange(change=change, reason="no")) == ()
    assert fleet.refuses(commands.AcceptChange(change=change, reason="r")) == "change_withdrawn"


def test_a_change_that_never_was_is_refused(fleet):
    assert fleet.refuses(commands.AcceptChange(change="c1", reason="r")) == "unknown_change"
    assert fleet.refuses(commands.WithdrawChange(change="c9", reason="r")) == "unknown_change"


def test_while_nobody_leads_a_change_does_not_grow_old(fleet):
    change = hold(fleet)
    fleet.away(10 * HOUR)
    fleet.later(HOUR - 1)
    assert fleet.seen(decisions.WaitTimedOut) == []
    fleet.later(2)
    assert [one.subject for one in fleet.seen(decisions.WaitTimedOut)] == [change]


def test_what_was_asked_while_nobody_led_waits_from_when_somebody_leads():
    fleet = given.Fleet()
    fleet.now_us += 5 * HOUR * 1_000_000
    body = {"gate": given.GATE, "sm": "10.7", "mode": "enforce"}
    asked = rulings.ChangeAsked(command="gate_mode", body=body, by="alice", reason="r")
    change = f"c{fleet.record(asked, 'operator:alice').position}"
    fleet.record(
        decisions.LeadershipTaken(
            epoch=2, holder="c1", away_us=5 * HOUR * 1_000_000, rules_version=rules.RULES_VERSION
        ),
        "controller",
    )
    fleet.later(policy.Policy().change_timeout_s - 1)
    assert fleet.state.changes[change].open
    fleet.later(2)
    assert fleet.state.changes[change].ended == "lapsed"


def ask(fleet, command, by="alice"):
    """A person's change waits."""
    recorded = fleet.record(
        rulings.ChangeAsked(
            command=bodies.name_of(command),
            body=bodies.of_command(command),
            by=by,
            reason=command.reason,
        ),
        f"operator:{by}",
    )
    fleet.settle()
    return f"c{recorded.position}"


ENFORCE = commands.SetGateMode(gate=given.GATE, sm="10.7", mode="enforce", reason="go")


def test_what_was_asked_is_decided_anew_when_another_person_accepts(fleet):
    change = ask(fleet, ENFORCE)
    assert fleet.state.mode_of(given.GATE, "10.7") == "observe"
    accept = commands.AcceptChange(change=change, reason="yes")
    assert fleet.refuses(accept, by="alice") == "same_person"
    accepted, done = fleet.orders(accept, by="bob")
    assert accepted == rulings.ChangeAccepted(
        change=change, author="alice", accepted_by="bob", reason="yes"
    )
    assert done == rulings.GateModeSet(
        gate=given.GATE, sm="10.7", mode="enforce", reason=ENFORCE.reason
    )
    assert fleet.state.mode_of(given.GATE, "10.7") == "enforce"


def test_what_is_so_already_when_it_is_accepted_only_ends_the_wait(fleet):
    change = ask(fleet, commands.LiftFreeze(id="f", reason="over"))
    accept = commands.AcceptChange(change=change, reason="yes")
    assert fleet.refuses(accept, by="bob") == "unknown_freeze"
    assert fleet.state.changes[change].open
    other = ask(fleet, commands.ResetBreaker(reason="over"))
    accepted = fleet.orders(commands.AcceptChange(change=other, reason="yes"), by="bob")
    assert [type(one) for one in accepted] == [rulings.ChangeAccepted]


def test_an_asked_change_lapses_when_its_time_is_over(fleet):
    change = ask(fleet, ENFORCE)
    fleet.later(policy.Policy().change_timeout_s + 1)
    assert fleet.state.changes[change].ended == "lapsed"
    assert fleet.refuses(commands.AcceptChange(change=change, reason="r"), by="bob") == (
        "change_lapsed"
    )


def test_which_changes_wait_and_in_what_order_they_are_said_does_not_hang_on_the_maps(fleet):
    first, second = ask(fleet, ENFORCE), hold(fleet)
    fleet.alone(commands.PinUnit(unit=unit_on(fleet), direction="on", reason="r"), break_glass_s=9)
    fleet.orders(commands.WithdrawChange(change=second, reason="no"))
    third = list(fleet.state.changes)[-1]
    assert fleet.state.open_changes == {first, third}
    said = [wait.subject for wait in waits.of_changes(fleet.state, fleet.now_us)]
    assert said == [first, third]
    fleet.state.changes = dict(reversed(fleet.state.changes.items()))
    assert [w.subject for w in waits.of_changes(fleet.state, fleet.now_us)] == said
    assert changes.held(fleet.state, HELD.code, HELD.subject).id == second


def unit_on(fleet):
    fleet.node("a")
    fleet.launch("a")
    return fleet.id("a")


def test_what_was_asked_and_cannot_be_done_any_more_says_how_to_drop_it():
    fleet = given.Fleet()
    until = "2023-11-14T23:13:20Z"  # an hour after a fleet of the tests begins
    fleet.orders(commands.DeclareFreeze(id="f", until=until, reason="holidays"))
    lift = commands.LiftFreeze(id="f", reason="back")
    fleet.alone(lift)
    change = fleet.newest_change()
    fleet.later(3600)
    with pytest.raises(errors.RejectedError) as refusal:
        fleet.alone(commands.AcceptChange(change=change, reason="so we are"), by="bob")
    assert refusal.value.code == "unknown_freeze"
    assert refusal.value.next_step.endswith(f"smgate change withdraw {change}")
