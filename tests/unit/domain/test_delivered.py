"""A decision reaches a server at its start: how far it has come is told of each unit."""

import pytest
from tests import given
from tests.given_drains import fleet_on_target, pin_off

from smgate.cli import unit_rows
from smgate.domain import commands, delivered, facts
from smgate.views import present


def state(fleet, node="a"):
    """The state and the sentence; and that `unit show` has it with its next step."""
    found = delivered.of_unit(fleet.unit(node))
    row = present.unit_row(fleet.state, fleet.unit(node))
    if found is None:
        assert row["delivery"] is None
        return None, ""
    assert row["delivery"]["state"] == found.state
    assert row["delivery"]["next_step"] == found.next_step
    loud = found.state in ("refused", "awaiting_restart")
    assert (found.state in unit_rows.words(row)) == loud
    return found.state, found.sentence


@pytest.fixture
def fleet():
    return fleet_on_target("a", "b", "c")


def test_a_value_is_applied_when_the_server_starts_and_effective_when_it_says_so(fleet):
    fleet.launch("a")
    fleet.applies("a")
    fleet.instance("a", "starting")
    assert state(fleet) == (
        "applied",
        "It was started with flashinfer_mxfp4 and has not said what it runs.",
    )
    fleet.effective("a")
    assert state(fleet) == ("effective", "It runs flashinfer_mxfp4, as decided.")


def test_a_decision_of_after_the_start_waits_for_a_restart(fleet):
    assert state(fleet)[0] == "effective"
    pin_off(fleet, "a")
    assert state(fleet) == (
        "awaiting_restart",
        "It started with flashinfer_mxfp4 before marlin was decided, which holds from its next start.",
    )
    assert state(fleet, "b")[0] == "effective"
    fleet.restarts("a")
    assert state(fleet) == ("effective", "It runs marlin, as decided.")


def test_a_grant_waits_for_its_owners_restart_too():
    fleet = given.Fleet().enforce().qualified()
    fleet.node("a", "b", "c")
    for node in ("a", "b", "c"):
        fleet.restarts(node)
    assert state(fleet)[0] == "effective"
    fleet.rollout()
    assert state(fleet) == (
        "awaiting_restart",
        "It started with marlin before flashinfer_mxfp4 was decided, which holds from its next start.",
    )
    assert "Restart it" in delivered.of_unit(fleet.unit("a")).next_step


def test_a_unit_that_was_given_back_runs_what_it_was_given_until_its_next_start(fleet):
    fleet.orders(commands.ReleaseUnit(unit="a", reason="mine"))
    assert state(fleet)[0] == "awaiting_restart"
    fleet.restarts("a")
    assert state(fleet) == (None, "")


def applied(fleet, **changes):
    """The gate of the newest launch of `a` says what it did."""
    told = {"form": "untouched", "source": "directive", "code": "explicit_choice", **changes}
    fleet.says("a", facts.OverrideApplied(launch_id=f"a-{fleet._launches['a']}", **told))


def test_a_gate_that_knew_the_decision_and_appended_nothing_refused_it(fleet):
    fleet.launch("a")
    applied(fleet, generation=fleet.unit("a").override_position)
    fleet.serves("a", given.SAFE)
    assert state(fleet) == (
        "refused",
        "Told flashinfer_mxfp4, its launch gate gave it nothing appended: explicit_choice.",
    )


def test_a_gate_that_had_only_an_older_directive_refused_nothing(fleet):
    fleet.launch("a")
    applied(fleet, generation=fleet.unit("a").override_position - 1)
    fleet.serves("a", given.SAFE)
    assert state(fleet)[0] == "awaiting_restart"


def test_sglang_may_resolve_another_value_than_the_one_appended(fleet):
    fleet.launch("a")
    fleet.applies("a")
    fleet.serves("a", "triton")
    assert state(fleet) == (
        "refused",
        "It was started with flashinfer_mxfp4, and SGLang resolved triton.",
    )


def test_of_a_server_that_is_gone_or_came_without_a_gate_nothing_is_said(fleet):
    fleet.instance("a", "exited", exit_code=0)
    assert state(fleet) == (None, "")
    fleet.launch("b")
    fleet.serves("b")
    assert state(fleet, "b") == (None, "")
