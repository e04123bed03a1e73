"""A failed build: who runs the target is asked about once, with what a restart of all would cost."""

import pytest
from tests import given, given_drains as drains

from smgate.domain import changes, commands, decisions, rulings

CHANGE = "drain"


def confirm(fleet):
    """A person confirms the first failure: the build is wrong everywhere."""
    fleet.check("p1", outcome="failed")
    ruling = commands.RuleBuild(kernel_key=given.KEY, node="p1", ruling="confirmed", reason="seen")
    fleet.orders(ruling)


def change(fleet):
    found = changes.held(fleet.state, CHANGE, given.KEY)
    assert found is not None
    return found


def accept(fleet):
    fleet.orders(commands.AcceptChange(change=change(fleet).id, reason="go"), by="bob")


@pytest.fixture
def fleet():
    made = drains.fleet_on_target("a", "b", "c", "d")
    confirm(made)
    return made


def test_nothing_restarts_before_a_person_agrees_and_the_cost_is_said_in_numbers(fleet):
    assert fleet.told("a") == ("append", given.SAFE, "build_failed")
    assert drains.orders(fleet) == []
    (held,) = fleet.seen(decisions.ChangeHeld)
    assert (held.code, held.subject) == ("drain", given.KEY)
    assert held.units == tuple(sorted(map(fleet.id, "abcd")))
    assert held.numbers == {
        "units": 4,
        "gpus": 4,
        "restarts": 4,
        "restarts_by_owners": 0,
        "hours_at_most": 4,
        "serving_share_at_least": 0.75,
    }
    assert (
        "4 by their hooks, 1 at a time, in at most 4 h, while 3 of 4 go on serving." in held.would
    )
    assert [w.owner for w in fleet.waits if w.code == "change_held"] == ["approver"]
    fleet.later(30 * 86400)
    assert drains.orders(fleet) == []
    assert len(fleet.seen(decisions.ChangeHeld)) == 1


def test_once_a_person_agrees_they_restart_one_after_the_other(fleet):
    accept(fleet)
    assert drains.orders(fleet) == ["a"]
    for node in "abcd":
        fleet.restarts(node, restarter="hook")
    assert drains.orders(fleet) == ["a", "b", "c", "d"]
    assert {code for _, code in drains.ended(fleet)} == {"safe"}


def test_a_person_who_withdraws_it_is_not_asked_again(fleet):
    name = change(fleet).id
    fleet.orders(commands.WithdrawChange(change=name, reason="tonight they serve"))
    fleet.later(30 * 86400)
    assert drains.orders(fleet) == []
    assert len(fleet.seen(decisions.ChangeHeld)) == 1
    assert drains.waiting(fleet) == dict.fromkeys("abcd", "unit owner")
    drains.pin_off(fleet, "b")
    assert drains.orders(fleet) == ["b"]


def test_another_failure_of_the_key_is_another_question(fleet):
    fleet.orders(commands.WithdrawChange(change=change(fleet).id, reason="tonight they serve"))
    for node, ruling in (("p1", "cleared"), ("p2", "confirmed")):
        fleet.check(node, outcome="failed")
        rule = commands.RuleBuild(kernel_key=given.KEY, node=node, ruling=ruling, reason="seen")
        fleet.orders(rule)
    assert fleet.standing() == "failed"
    assert len(fleet.seen(decisions.ChangeHeld)) == 2
    assert change(fleet).open


def test_one_whose_own_gpus_failed_restarts_without_asking():
    fleet = drains.fleet_on_target("a", "b", "c", "d")
    fleet.check("b", outcome="failed")
    fleet.check("p1", outcome="failed")
    assert fleet.standing() == "failed"
    assert drains.orders(fleet) == ["b"]
    assert change(fleet).units == tuple(sorted(map(fleet.id, "acd")))


def test_with_auto_nobody_is_asked_and_the_budget_holds():
    fleet = drains.fleet_on_target("a", "b", "c", "d", drain_on_failed_build="auto")
    confirm(fleet)
    assert fleet.seen(decisions.ChangeHeld) == []
    assert drains.orders(fleet) == ["a"]


def test_what_a_person_pinned_goes_before_a_failed_build():
    fleet = drains.fleet_on_target("a", "b", "c", "d", drain_on_failed_build="auto")
    confirm(fleet)
    drains.pin_off(fleet, "d")
    fleet.restarts("a", restarter="hook")
    assert drains.orders(fleet) == ["a", "d"]


def test_an_answer_that_nobody_needs_any_more_is_withdrawn(fleet):
    for node in "abcd":
        fleet.restarts(node, restarter="hook")
    (withdrawn,) = fleet.seen(rulings.ChangeWithdrawn)
    assert withdrawn.code == "no_longer_needed"
    assert not change(fleet).open


def test_when_the_policy_says_auto_the_open_question_is_withdrawn(fleet):
    auto = given.policy.Policy(drain_on_failed_build="auto")
    fleet.orders(commands.PublishPolicy(policy=auto, reason="they agreed beforehand"))
    assert not change(fleet).open
    assert drains.orders(fleet) == ["a"]


def test_owners_who_restart_their_servers_are_counted_apart():
    fleet = given.Fleet().enforce().qualified().granted("a", "b")
    confirm(fleet)
    assert change(fleet).numbers["restarts_by_owners"] == 2
    assert change(fleet).numbers["hours_at_most"] == 0
    assert change(fleet).would == "Servers to restart: 2, with 2 GPUs. 2 by their owners."
    accept(fleet)
    assert drains.orders(fleet) == []
    assert drains.waiting(fleet) == {"a": "unit owner", "b": "unit owner"}


def test_the_last_server_of_its_sm_leaves_nobody_serving():
    made = drains.fleet_on_target("a", "b")
    made.instance("b", "exited", exit_code=0)
    confirm(made)
    (held,) = made.seen(decisions.ChangeHeld)
    assert held.numbers["serving_share_at_least"] == 0
    assert "while 0 of 2 go on serving" in held.would
