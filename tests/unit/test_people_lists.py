"""What people give: each event has one verb and each verb one command, list against list."""

from __future__ import annotations

import pytest
from tests import given
from tests.unit.domain import test_break_glass, test_commands

from smgate.cli import (
    app,  # noqa: F401  it fills the lists
    verbs,
)
from smgate.domain import break_glass, commands, rulings
from smgate.log import codec

GIVEN_BY = {
    "gate_published": {"gate publish"},
    "gate_mode_set": {"gate mode"},
    "gate_disabled": {"gate disable"},
    "gate_enabled": {"gate enable"},
    "gate_graduated": {"gate graduate"},
    "policy_published": {"policy publish"},
    "issue_published": {"issue publish"},
    "issue_withdrawn": {"issue withdraw"},
    "build_announced": {"build announce"},
    "build_accepted": {"build accept"},
    "check_ruled": {"build rule"},
    "unit_excluded": {"unit exclude"},
    "unit_included": {"unit include"},
    "node_retired": {"node retire"},
    "fleet_expected": {"fleet expect"},
    "restore_finished": {"db restore-finish"},
    "pin_set": {"unit pin"},
    "pin_removed": {"unit unpin"},
    "flag_adopted": {"unit adopt-flag"},
    "adoption_decided": {"unit accept", "unit take-back"},
    "override_released": {"unit release"},
    "memory_cleared": {"unit clear-memory"},
    "freeze_declared": {"freeze declare"},
    "freeze_lifted": {"freeze lift"},
    "breaker_reset": {"breaker reset"},
    "rollout_proposed": {"rollout propose"},
    "rollout_approved": {"rollout approve"},
    "rollout_started": {"rollout start"},
    "rollout_paused": {"rollout pause"},
    "rollout_resumed": {"rollout resume"},
    "rollout_halted": {"rollout halt"},
    "rollout_aborted": {"rollout abort"},
    "grant_revoked": {"rollout revoke"},
    "change_accepted": {"change accept"},
    "change_withdrawn": {"change withdraw"},
}
"""Stored name of each event that a person's command comes to, and the verb that gives it."""

SEVERAL_VERBS = {"adoption_decided": "one ruling, whose two answers go in opposite directions"}
NO_VERB_OF_ITS_OWN = {
    "node_enrolled": "given by the agent with a join token: `smgate-agent enroll`",
    "fact_redacted": "given on the database itself, while no controller runs: `log redact`",
    "change_asked": "what every verb that widens comes to",
    "break_glass_used": "what every verb that widens comes to with --break-glass-for",
}
"""Rulings without a verb, and why."""
NO_EVENT = {
    "unit_retired": "machines retire (`node retire`); a unit is gone with its last one",
    "credential_issued": "tokens are kept beside the log: `token issue`",
    "credential_revoked": "tokens are kept beside the log: `token revoke`",
}
"""Rulings that one may look for and that are none, and why."""


def test_every_ruling_of_a_person_has_its_one_verb() -> None:
    stored = {name for name, kind in codec.NAMES.items() if kind in rulings.Ruling.__args__}
    assert stored == GIVEN_BY.keys() | NO_VERB_OF_ITS_OWN.keys()
    assert not stored & NO_EVENT.keys()
    several = {name for name, given_by in GIVEN_BY.items() if len(given_by) != 1}
    assert several == SEVERAL_VERBS.keys()


def test_every_verb_gives_one_command_and_belongs_to_one_event() -> None:
    of_events = sorted(verb for given_by in GIVEN_BY.values() for verb in given_by)
    assert of_events == sorted(verbs.CHANGES.values())
    assert len(verbs.CHANGES) == len(commands.NAMES) == len(set(verbs.CHANGES.values()))


NEEDS = {
    "gate_enable": [commands.DisableGate(gate=given.GATE, reason="r")],
    "issue_withdraw": [commands.PublishIssue(issue=test_commands.ISSUE, reason="r")],
    "unit_include": [commands.ExcludeUnit(unit="a", reason="r")],
    "unit_unpin": [commands.PinUnit(unit="a", direction="off", reason="r")],
    "freeze_lift": [commands.DeclareFreeze(id="f", reason="r")],
}
"""What stands before a command that would change nothing else; only narrowing ones are here."""


@pytest.mark.parametrize(
    "name",
    sorted(NEEDS.keys() | {"gate_mode", "policy_publish", "unit_pin", "unit_release"}),
)
def test_a_command_comes_to_the_event_of_its_verb(name: str) -> None:
    fleet = given.Fleet()
    fleet.node("a")
    fleet.launch("a")
    for command in NEEDS.get(name, ()):
        fleet.orders(command)
    command = test_commands.every_command()[name]
    events = {codec.name_of(event) for event in fleet.orders(command)}
    assert {verbs.CHANGES[name]} == {verb for event in events for verb in GIVEN_BY[event]}


def test_what_may_be_done_alone_is_what_can_be_undone() -> None:
    """The verbs with --break-glass-for, the events with an inverse, and the tests of each."""
    undoable = {name for name, kind in codec.NAMES.items() if kind in break_glass.CAN_UNDO}
    of_events = {
        verb
        for event in undoable
        for verb in GIVEN_BY[event]
        if verb != "unit take-back"  # it narrows
    }
    assert {verbs.CHANGES[name] for name in verbs.ALONE} == of_events
    tested = {name.partition(" ")[0] for name in test_break_glass.EXACT}
    assert tested | {"rollout_start", "rollout_resume", "unit_accept"} == verbs.ALONE
    for name in verbs.ALONE:
        directions = {test_commands.every_command()[name].DIRECTION}
        assert directions == {"widens"} or name == "issue_publish"  # that one may loosen
