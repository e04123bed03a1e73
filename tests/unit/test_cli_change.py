"""How a person hears that another must agree, looks at a change in numbers, and answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests import cli_fakes
from tests.cli_fakes import Cli, FakeApi

from smgate.cli import exit_codes

ASKED = {"type": "change_asked", "command": "gate_enable", "body": {"gate": "k3"}, "by": "alice"}
WAITS = {"change": "c813", "kind": "asked", "until": "2027-03-08T03:12:00Z"}
CHANGE: dict[str, Any] = {
    "id": "c813",
    "kind": "asked",
    "state": "open",
    "sentence": "alice asks for: gate enable k3.",
    "reason": "it is over",
    "by": "alice",
    "since": "2027-03-01T03:12:00Z",
    "until": "2027-03-08T03:12:00Z",
    "units": [],
    "would": "",
    "numbers": {},
    "next_step": "smgate change accept c813",
}


def answer(*events: dict[str, Any], **more: Any) -> cli_fakes.Answer:
    body = {"position": 813, "events": list(events), "changed": bool(events), "repeated": False}
    return 200, {**body, "waits": WAITS, **more}


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with cli_fakes.serving() as served:
        served.routes["POST /v1/commands"] = answer(ASKED)
        served.routes["GET /v1/changes"] = cli_fakes.listed(CHANGE)
        yield served


@pytest.fixture
def cli(api: FakeApi) -> Cli:
    return Cli(api.url)


ENABLE = ("gate", "enable", "k3", "--reason", "it is over", "--yes")


def test_what_is_asked_says_who_must_answer_and_ends_with_a_code_of_its_own(cli: Cli) -> None:
    result = cli(*ENABLE)
    assert result.code == exit_codes.WAITING == 8
    assert "  8    asked: nothing is changed until another person accepts it" in exit_codes.HELP
    assert (
        "Asked as c813, and not done yet; another person: smgate change accept c813" in result.err
    )
    assert json.loads(cli(*ENABLE, "-o", "json").out)["waits"] == WAITS


def test_what_was_asked_before_is_the_same_change(api: FakeApi, cli: Cli) -> None:
    api.routes["POST /v1/commands"] = answer()
    result = cli(*ENABLE)
    assert result.code == exit_codes.WAITING
    assert "another person: smgate change accept c813" in result.err
    looked = cli(*ENABLE, "--dry-run")
    assert looked.code == 0
    assert "It was asked for already, as c813." in looked.err


def test_a_question_says_that_another_must_agree_and_what_follows_then(
    api: FakeApi, cli: Cli
) -> None:
    api.routes["GET /v1/units"] = cli_fakes.listed()
    api.routes["GET /v1/gates"] = cli_fakes.listed({"id": "k3", "candidate_sms": ["10.7"]})
    preview = {"units": 20, "changed_units": 8, "changes": []}
    api.routes["POST /v1/commands"] = answer(ASKED, dry_run=True, preview=preview, waits=None)
    asked = cli(*ENABLE[:-1], asked="n\n", terminal=True)
    assert "It waits until another person accepts it. When that is done:" in asked.err
    assert "Units that would be decided anew: 8 of 20." in asked.err


def test_broken_glass_says_until_when_and_how_to_keep_it(api: FakeApi, cli: Cli) -> None:
    used = {"type": "break_glass_used", "expires_s": 5400}
    enabled = {"type": "gate_enabled", "gate": "k3"}
    api.routes["POST /v1/commands"] = answer(used, enabled, waits={**WAITS, "kind": "break_glass"})
    result = cli(*ENABLE, "--break-glass-for", "1h30m")
    assert result.code == 0
    assert api.commands[0]["break_glass_s"] == 5400
    assert "In force until 2027-03-08 03:12:00Z by one person alone, as c813" in result.err
    assert "another person: smgate change accept c813" in result.err


@pytest.mark.parametrize("text", ["", "soon", "1", "h", "-1h", "1h x", "1w", "0h"])
def test_a_time_that_is_none_sends_nothing(api: FakeApi, cli: Cli, text: str) -> None:
    result = cli(*ENABLE, "--break-glass-for", text)
    assert result.code == 2
    assert "--break-glass-for" in result.err
    assert api.requests == []


def test_the_list_and_the_names_are_those_that_wait(cli: Cli) -> None:
    result = cli("change", "ls")
    assert result.out.splitlines()[1].startswith("c813")
    assert "alice asks for: gate enable k3." in result.out
    assert cli("change", "ls", "-o", "name").out == "c813\n"


def test_a_change_is_shown_in_numbers(api: FakeApi, cli: Cli) -> None:
    preview = {"units": 20, "changed_units": 8, "changes": []}
    api.routes["GET /v1/changes/c813"] = (200, {**CHANGE, "preview": preview})
    shown = cli("change", "show", "c813").out
    assert "c813: open (asked)" in shown
    assert "When it is accepted:\n  Units that would be decided anew: 8 of 20." in shown
    assert "-> smgate change accept c813" in shown
    alone = {**CHANGE, "kind": "break_glass", "preview": preview}
    api.routes["GET /v1/changes/c813"] = (200, alone)
    assert "When its time is over:\n" in cli("change", "show", "c813").out
    held = {"kind": "held", "by": None, "units": ["u", "v"], "would": "2 servers restart."}
    held["numbers"] = {"restarts": 2}
    api.routes["GET /v1/changes/c813"] = (200, {**CHANGE, **held})
    shown = cli("change", "show", "c813").out
    assert "by controller" in shown
    assert "Accepting it: 2 servers restart.\n  restarts: 2\nUnits: u, v" in shown
    refused = {**CHANGE, "would_refuse": "No freeze. See `smgate freeze ls`."}
    api.routes["GET /v1/changes/c813"] = (200, refused)
    assert "It could not be done now: No freeze." in cli("change", "show", "c813").out
    impossible = {**refused, "state": "impossible_now"}
    api.routes["GET /v1/changes/c813"] = (200, impossible)
    assert "c813: impossible now (asked)" in cli("change", "show", "c813").out
    api.routes["GET /v1/changes"] = cli_fakes.listed(CHANGE, {**impossible, "id": "c814"})
    listed = cli("change", "ls")
    assert [line.split()[:2] for line in listed.out.splitlines()[1:]] == [
        ["c813", "open"],
        ["c814", "impossible"],
    ]
    assert "c814 cannot be done as things stand: No freeze. See `smgate freeze ls`." in listed.err
    past = {**CHANGE, "state": "accepted", "accepted_by": "bob", "next_step": None}
    api.routes["GET /v1/changes/c813"] = (200, past)
    assert "accepted by bob" in cli("change", "show", "c813").out


def test_an_unknown_change_is_answered_with_near_ones(api: FakeApi, cli: Cli) -> None:
    refused = cli_fakes.refusal(404, "unknown_change", "No change 'c812'.")
    api.routes["POST /v1/commands"] = refused
    result = cli("change", "accept", "c812", "--reason", "r", "--yes")
    assert result.code == 3
    assert "Did you mean c813?" in result.err


def test_accepting_is_asked_about_and_withdrawing_is_not(api: FakeApi, cli: Cli) -> None:
    accepted = {"type": "change_accepted", "change": "c813"}
    preview = {"units": 20, "changed_units": 3, "changes": []}
    api.routes["POST /v1/commands"] = answer(accepted, dry_run=True, preview=preview, waits=None)
    asked = cli("change", "accept", "c813", "--reason", "r", asked="n\n", terminal=True)
    assert asked.code == 1
    assert "Units that would be decided anew: 3 of 20." in asked.err
    assert cli("change", "accept", "c813", "--reason", "r").code == 2
    assert cli("change", "withdraw", "c813", "--reason", "r").code == 0


def test_the_same_person_is_a_conflict(api: FakeApi, cli: Cli) -> None:
    api.routes["POST /v1/commands"] = cli_fakes.refusal(409, "same_person", "alice asked.")
    assert cli("change", "accept", "c813", "--reason", "r", "--yes").code == 5
