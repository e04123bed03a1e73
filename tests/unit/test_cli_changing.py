"""How changing commands look first, ask in numbers, and are sent once."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from tests import cli_fakes
from tests.cli_fakes import Cli, FakeApi

DONE = (200, {"position": 813, "events": [{"type": "unit_excluded", "unit": "u"}], "changed": True})
UNIT = {
    "id": "u",
    "live": True,
    "sm": "10.7",
    "gate": "k3",
    "override": {"form": "append", "value": "marlin", "code": "no_rollout", "would": None},
    "effective": [{"runner": "marlin", "a2a": "none"}],
    "on_target": False,
    "grant": None,
}


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with cli_fakes.serving() as served:
        served.routes["POST /v1/commands"] = DONE
        served.routes["GET /v1/units"] = cli_fakes.listed(
            UNIT,
            {**UNIT, "id": "v", "on_target": True},
            {**UNIT, "id": "baseline", "sm": "10.0"},
            {**UNIT, "id": "gone", "live": False},
        )
        served.routes["GET /v1/gates"] = cli_fakes.listed({"id": "k3", "candidate_sms": ["10.7"]})
        yield served


@pytest.fixture
def cli(api: FakeApi) -> Cli:
    return Cli(api.url)


def test_a_command_is_sent_with_its_reason_and_a_key(api: FakeApi, cli: Cli) -> None:
    result = cli("unit", "exclude", "u", "--reason", "vendor debugs")
    assert result.code == 0
    [body] = api.commands
    key = body.pop("idempotency_key")
    assert len(key) >= 16
    assert body == {"type": "unit_exclude", "unit": "u", "reason": "vendor debugs"}
    assert result.out.splitlines()[1].split() == ["unit_excluded", "unit=u"]
    assert "Written at position 813." in result.err
    cli("unit", "exclude", "u", "--reason", "vendor debugs")
    assert api.commands[1]["idempotency_key"] != key


def test_every_change_needs_a_reason(api: FakeApi, cli: Cli) -> None:
    missing = cli("unit", "exclude", "u")
    assert missing.code == 2
    assert "--reason" in missing.err
    assert cli("unit", "exclude", "u", "--reason", "  ").code == 2
    assert api.requests == []


def test_what_is_already_so_is_said_and_succeeds(api: FakeApi, cli: Cli) -> None:
    api.routes["POST /v1/commands"] = (200, {"position": 812, "events": [], "changed": False})
    result = cli("unit", "exclude", "u", "--reason", "r")
    assert (result.code, result.out) == (0, "")
    assert "Already so at position 812; nothing was written." in result.err
    answer = json.loads(cli("unit", "exclude", "u", "--reason", "r", "-o", "json").out)
    assert answer == {"position": 812, "events": [], "changed": False}


def test_without_a_terminal_and_without_yes_it_refuses_and_sends_nothing(
    api: FakeApi, cli: Cli
) -> None:
    result = cli("gate", "disable", "k3", "--reason", "r")
    assert result.code == 2
    assert "--yes" in result.err
    assert api.requests == []


def test_yes_is_enough_without_a_terminal(api: FakeApi, cli: Cli) -> None:
    assert cli("gate", "disable", "k3", "--reason", "r", "--yes").code == 0
    [body] = api.commands
    assert "dry_run" not in body
    assert body["sms"] == []


def test_a_person_is_asked_in_numbers_and_a_no_writes_nothing(api: FakeApi, cli: Cli) -> None:
    for answer in ("n\n", "\n", ""):
        api.requests.clear()
        result = cli("gate", "disable", "k3", "--reason", "r", asked=answer, terminal=True)
        assert result.code == 1
        assert [body.get("dry_run") for body in api.commands] == [True]
        assert "Units of gate k3 on SM 10.7: 2." in result.err
        assert "decided now: 2 marlin" in result.err
        assert "on the target now: 1" in result.err
        assert f"At {api.url}, position 813." in result.err
        assert "Not done" in result.err


def test_a_yes_is_sent_after_the_look(api: FakeApi, cli: Cli) -> None:
    result = cli("gate", "disable", "k3", "--reason", "r", asked="y\n", terminal=True)
    assert result.code == 0
    look, sent = api.commands
    assert look["dry_run"] is True
    assert "idempotency_key" not in look
    assert "dry_run" not in sent
    assert sent["idempotency_key"]


def test_a_refusal_comes_before_the_question(api: FakeApi, cli: Cli) -> None:
    api.routes["POST /v1/commands"] = cli_fakes.refusal(403, "forbidden", "Needs approver.")
    result = cli("gate", "enable", "k3", "--reason", "r", asked="y\n", terminal=True)
    assert result.code == 4
    assert "[y/N]" not in result.err


def test_narrowing_one_unit_is_not_asked_about(api: FakeApi, cli: Cli) -> None:
    for command in (
        ("unit", "pin", "u", "off"),
        ("unit", "take-back", "u"),
        ("rollout", "halt", "r"),
        ("rollout", "pause", "r"),
        ("freeze", "declare", "f"),
    ):
        assert cli(*command, "--reason", "r").code == 0
    assert cli("unit", "pin", "u", "on", "--reason", "r").code == 2


def test_an_abort_wants_the_name_typed(api: FakeApi, cli: Cli) -> None:
    plan = {"waves": [{"count": 1}, {"percent": 50.0}], "max_in_flight": 2}
    row = {"id": "r-1", "gate": "k3", "sm": "10.7", "plan": plan, "waves": [], "waves_planned": 2}
    api.routes["GET /v1/rollouts/r-1"] = (200, row)
    abort = ("rollout", "abort", "r-1", "--reason", "r")
    assert cli(*abort, asked="y\n", terminal=True).code == 1
    agreed = cli(*abort, asked="r-1\n", terminal=True)
    assert agreed.code == 0
    assert "Plan: waves of 1, 50 %, at most 2 in flight." in agreed.err


def test_release_says_first_what_sglang_would_choose(api: FakeApi, cli: Cli) -> None:
    alone = {
        "runner": "flashinfer_mxfp4",
        "a2a": "none",
        "memory_fallback": False,
        "raises": None,
        "code": "selected",
        "sentence": "SGLang resolves auto to flashinfer_mxfp4.",
    }
    api.routes["GET /v1/units/u/why"] = (200, {"unit": "u", "if_left_alone": alone})
    result = cli("unit", "release", "u", "--reason", "r", asked="n\n", terminal=True)
    assert result.code == 1
    assert "SGLang would choose flashinfer_mxfp4 with a2a none." in result.err
    assert [body.get("dry_run") for body in api.commands] == [True]


def test_a_dry_run_writes_nothing_and_names_the_position(api: FakeApi, cli: Cli) -> None:
    result = cli("rollout", "start", "r", "--reason", "r", "--dry-run")
    assert result.code == 0
    [body] = api.commands
    assert body["dry_run"] is True
    assert "--at-position 813" in result.err


def test_a_position_that_passed_is_a_conflict(api: FakeApi, cli: Cli) -> None:
    api.routes["POST /v1/commands"] = cli_fakes.refusal(409, "world_moved", "The log moved.")
    result = cli("rollout", "start", "r", "--reason", "r", "--yes", "--at-position", "812")
    assert result.code == 5
    assert api.commands[0]["expected_position"] == 812


def test_a_lost_answer_is_asked_for_again_with_the_same_key(api: FakeApi, cli: Cli) -> None:
    lost = (0, cli_fakes.HANG_UP)
    busy = cli_fakes.refusal(503, "busy", "Later.")
    api.routes["POST /v1/commands"] = [lost, busy, DONE]  # type: ignore[list-item]
    assert cli("unit", "exclude", "u", "--reason", "r").code == 0
    keys = {body["idempotency_key"] for body in api.commands}
    assert (len(api.commands), len(keys)) == (3, 1)


def test_when_nobody_knows_the_key_is_told(api: FakeApi, cli: Cli) -> None:
    api.routes["POST /v1/commands"] = (0, cli_fakes.HANG_UP)
    result = cli("unit", "exclude", "u", "--reason", "r")
    assert result.code == 7
    key = api.commands[0]["idempotency_key"]
    assert f"--idempotency-key {key}" in result.err
    api.routes["POST /v1/commands"] = DONE
    cli("unit", "exclude", "u", "--reason", "r", "--idempotency-key", key)
    assert api.commands[-1]["idempotency_key"] == key


def test_an_unknown_name_in_a_command_is_answered_with_near_ones(api: FakeApi, cli: Cli) -> None:
    api.routes["POST /v1/commands"] = cli_fakes.refusal(404, "unknown_unit", "No unit 'baselime'.")
    result = cli("unit", "exclude", "baselime", "--reason", "r")
    assert result.code == 3
    assert "Did you mean baseline?" in result.err


def test_a_new_token_alone_is_on_stdout(api: FakeApi, cli: Cli) -> None:
    made = {"id": "5d1c", "kind": "operator", "token": "smgo_secret"}
    api.routes["POST /v1/tokens"] = (200, made)
    result = cli("token", "issue", "--role", "approver", "--name", "alice")
    assert result.out == "smgo_secret\n"
    assert cli("token", "issue", "--name", "alice").code == 2
    assert cli("token", "issue", "--join", "--role", "admin").code == 2
    assert cli("token", "issue", "--join", "--ttl", "soon").code == 2


def test_a_token_is_issued_once_even_when_the_answer_is_lost(api: FakeApi, cli: Cli) -> None:
    api.routes["POST /v1/tokens"] = (0, cli_fakes.HANG_UP)
    assert cli("token", "issue", "--role", "viewer", "--name", "bob").code == 7
    assert len(api.sent("POST /v1/tokens")) == 1


def test_a_token_is_never_taken_as_an_argument(api: FakeApi, cli: Cli) -> None:
    result = cli("token", "revoke", "smgo_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA")
    assert result.code == 2
    assert api.requests == []
    assert cli("unit", "ls", "--token", "x").code == 2


def test_the_preview_of_a_dry_run_is_told_in_numbers(api: FakeApi, cli: Cli) -> None:
    safe = {"form": "append", "value": "marlin", "code": "gate_disabled"}
    target = {"form": "append", "value": "flashinfer_mxfp4", "code": "granted"}
    waiting = {"form": "append", "value": "marlin", "code": "wave_not_open"}
    changes = [{"unit": f"u-{n}", "before": target, "after": safe} for n in range(7)]
    changes.append({"unit": "w", "before": waiting, "after": safe})
    api.routes["POST /v1/commands"] = (
        200,
        {
            "position": 812,
            "events": [{"type": "gate_disabled", "gate": "k3", "sms": ["10.7"]}],
            "changed": False,
            "dry_run": True,
            "preview": {"units": 20, "changed_units": 8, "changes": changes},
        },
    )
    asked = cli("gate", "disable", "k3", "--reason", "r", asked="n\n", terminal=True)
    looked = cli("gate", "disable", "k3", "--reason", "r", "--dry-run")
    for err in (asked.err, looked.err):
        assert "Units that would be decided anew: 8 of 20." in err
        assert "Units whose override would change at their next start: 7." in err
        assert "7: flashinfer_mxfp4 (granted) -> marlin (gate_disabled): u-0, u-1, u-2, u-3" in err
        assert "u-6" not in err
    whole = cli("gate", "disable", "k3", "--reason", "r", "--dry-run", "-o", "json")
    assert json.loads(whole.out)["preview"]["changes"] == changes


REVOKED = {"type": "grant_revoked", "units": ["u", "v", "gone"], "rollout": "r-1", "wave": 1}


@pytest.mark.parametrize("phase", ["running", "paused"])
def test_a_revocation_says_who_is_off_the_target_now_and_who_at_the_next_start(
    api: FakeApi, cli: Cli, phase: str
) -> None:
    api.routes["POST /v1/commands"] = (200, {"position": 9, "events": [REVOKED], "changed": True})
    api.routes["GET /v1/rollouts/r-1"] = (200, {"id": "r-1", "phase": phase})
    revoke = ("rollout", "revoke", "r-1", "--wave", "1", "--reason", "r")
    for how in ("--yes", "--dry-run"):
        result = cli(*revoke, how)
        assert result.code == 0
        assert (
            "Units whose grant ends: 3. Off the target now: 2. At their next start: 1."
            in result.err
        )
        assert "smgate unit pin UNIT off restarts one." in result.err
        assert ("smgate rollout pause r-1" in result.err) is (phase == "running")
    sent, looked = api.commands
    assert (sent["rollout"], sent["unit"], sent["wave"]) == ("r-1", None, 1)
    assert looked["dry_run"] is True


def test_a_revocation_that_finds_no_grant_says_so(api: FakeApi, cli: Cli) -> None:
    api.routes["POST /v1/commands"] = (200, {"position": 9, "events": [], "changed": False})
    result = cli("rollout", "revoke", "r-1", "--unit", "u", "--reason", "r")
    assert result.code == 0, "of one unit it is not asked about"
    assert "No grant of rollout r-1 is left there: nothing to take back." in result.err
    assert cli("rollout", "revoke", "r-1", "--reason", "r").code == 2
