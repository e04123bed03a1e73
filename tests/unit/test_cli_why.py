"""How reasons read to a person. The JSON is the API's own; here is only the layout."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests import cli_fakes
from tests.cli_fakes import Cli, FakeApi

WHY: dict[str, Any] = {
    "apiVersion": "v1",
    "unit": "k3-prod-07",
    "as_of_position": 812,
    "now": "2027-01-15T03:12:44.5Z",
    "rules_version": 1,
    "mode": "enforce",
    "override": {
        "form": "append",
        "value": "marlin",
        "code": "build_suspect",
        "sentence": "One failing check made the kernel key suspect.",
        "no_safe_value": False,
    },
    "would": None,
    "rule": "build_suspect",
    "recorded": {"position": 790, "form": "append", "value": "marlin", "code": "build_suspect"},
    "launch_pending": False,
    "facts": [
        {"position": 77, "type": "LaunchPlanned", "at": "2027-01-15T03:00:00Z", "says": "launch l"},
        {"position": 789},
    ],
    "rules": [
        {
            "part": "A",
            "number": 3,
            "codes": ["model_unknown", "not_applicable"],
            "state": "does_not_apply",
            "sentence": "A gate covers the model.",
            "next_step": None,
        },
        {
            "part": "D",
            "number": 16,
            "codes": ["build_suspect"],
            "state": "applies",
            "sentence": "The key waits for confirmation.",
            "next_step": "smgate build why 3fa9",
        },
        *(
            {
                "part": "D",
                "number": 16,
                "codes": [code],
                "state": "would_be_next",
                "sentence": f"{code} holds too.",
                "next_step": f"Mend {code}.",
            }
            for code in ("freeze", "log_gap", "silent", "exposure_limit", "no_a", "no_b")
        ),
    ],
    "members": [{"node": "gpu-1", "rank": 0, "answer": "build_suspect"}],
    "if_left_alone": {
        "runner": "auto",
        "a2a": "none",
        "memory_fallback": True,
        "raises": None,
        "code": "sm_not_selected",
        "sentence": "auto stays.",
    },
    "memory_fallback": None,
    "exposed": False,
    "uncontrolled": False,
    "note": "No check has run on silicon.",
}


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with cli_fakes.serving() as served:
        served.routes["GET /v1/units/k3-prod-07/why"] = (200, WHY)
        yield served


def told(api: FakeApi, *options: str, **changed: Any) -> str:
    api.routes["GET /v1/units/k3-prod-07/why"] = (200, WHY | changed)
    return Cli(api.url)("unit", "why", "k3-prod-07", *options).out


def test_the_answer_comes_first_then_what_to_do_then_what_is_next_and_the_facts(
    api: FakeApi,
) -> None:
    lines = told(api).splitlines()
    assert lines[0] == "unit k3-prod-07 | mode enforce"
    assert lines[1] == "as of position 812, 2027-01-15 03:12:44Z"
    assert lines[3] == "appends --moe-runner-backend marlin  [build_suspect]"
    text = "\n".join(lines)
    order = [
        "One failing check",
        "-> smgate build why 3fa9",
        "Next, if",
        "It rests on",
        "1 rules do",
    ]
    places = [text.index(one) for one in order]
    assert places == sorted(places)
    at = lines.index("Next, if that did not apply")
    assert lines[at + 1 : at + 4] == ["  - freeze", "    freeze holds too.", "    -> Mend freeze."]
    assert "  - no_a" in lines
    assert "  - no_b" not in lines
    assert "  and 1 more: --rules" in lines
    assert "Members" not in lines, "one rank says nothing more"


def test_all_rules_and_what_sglang_would_do_are_there_for_who_asks(api: FakeApi) -> None:
    text = told(api, "--rules")
    assert told(api, "-o", "wide") == text
    lines = text.splitlines()
    assert "  A 3   model_unknown   does not apply  A gate covers the model." in lines
    assert "        not_applicable" in lines
    assert "  D 16  build_suspect   APPLIES         The key waits for confirmation." in lines
    assert "  D 16  no_b            would be next   no_b holds too." in lines
    order = ["Every rule, in order", "It rests on", "Members", "Left alone"]
    assert [line for line in lines if line in order] == order
    assert "SGLang would leave the runner at auto with a2a none." in text
    assert "BF16: 3.76 times" in text


def test_ranks_are_shown_where_there_are_several(api: FakeApi) -> None:
    ranks = [{"node": f"gpu-{n}", "rank": n, "answer": "freeze"} for n in (0, 1)]
    assert "gpu-1  1     freeze" in told(api, members=ranks)


def test_what_arrived_later_is_apart_from_what_was_known(api: FakeApi) -> None:
    late = {
        "position": 900,
        "happened": "2027-01-15T03:10:00Z",
        "at": "2027-01-15T04:00:00Z",
        "type": "gpu_fault_seen",
        "actor": "node:gpu-1",
        "says": "Xid 79",
    }
    lines = told(api, arrived_later=[late], arrived_later_looked_through=950).splitlines()
    at = lines.index("Had happened by then and arrived later")
    assert "900       2027-01-15 03:10:00Z  gpu_fault_seen" in lines[at + 2]
    assert "node's own clock" in lines[at + 3]


def test_a_program_gets_it_unchanged(api: FakeApi) -> None:
    cli = Cli(api.url)
    assert json.loads(cli("unit", "why", "k3-prod-07", "-o", "json").out) == WHY


def test_what_hurts_is_loud_and_absent_otherwise(api: FakeApi) -> None:
    assert "!" not in told(api)
    loud = told(api, memory_fallback=["active"], exposed=True, uncontrolled=True)
    assert [line.split(":")[0] for line in loud.splitlines() if line.startswith("!")] == [
        "! BF16",
        "! exposed",
        "! uncontrolled",
    ]


def test_what_was_told_is_said_where_it_differs(api: FakeApi) -> None:
    assert "What it was told" not in told(api)
    recorded = {"position": 700, "form": "keep", "value": None, "code": "observe"}
    differs = told(api, recorded=recorded)
    assert "at position 700: hands off: appends nothing, as before (observe)" in differs
    assert "Nothing was told to it so far." in told(api, recorded=None)
    assert "still reporting" in told(api, launch_pending=True)


def test_observe_mode_says_what_it_keeps_from_happening(api: FakeApi) -> None:
    override = {"form": "keep", "value": "marlin", "code": "observe", "sentence": "Observed."}
    would = {"form": "untouched", "value": None, "code": "explicit_choice"}
    text = told(api, override=override, would=would, mode="observe")
    assert "hands off: keeps --moe-runner-backend marlin  [observe]" in text
    assert "Enforced, it would be: hands off: appends nothing  [explicit_choice]" in text


def test_parts_that_are_missing_or_new_do_not_break_it(api: FakeApi) -> None:
    api.routes["GET /v1/units/k3-prod-07/why"] = (200, {"unit": "k3-prod-07", "new": {"a": 1}})
    result = Cli(api.url)("unit", "why", "k3-prod-07")
    assert result.code == 0
    assert "a: 1" in result.out


def test_an_earlier_moment_is_asked_for_as_it_was_given(api: FakeApi) -> None:
    Cli(api.url)("unit", "why", "k3-prod-07", "--at", "2027-03-01T03:12:00+01:00")
    assert api.requests[0].query == {"at": "2027-03-01T03:12:00+01:00"}


def test_a_unit_that_was_not_there_yet_is_not_suggested_to_itself(api: FakeApi) -> None:
    unknown = cli_fakes.refusal(404, "unknown_unit", "There is no unit.")
    api.routes["GET /v1/units/k3-prod-07/why"] = unknown
    api.routes["GET /v1/units"] = cli_fakes.listed({"id": "k3-prod-07"})
    result = Cli(api.url)("unit", "why", "k3-prod-07", "--at", "3")
    assert "known now, but was not yet" in result.err


def test_a_position_that_the_log_has_not_reached_says_so_and_not_that_the_unit_is_new(
    api: FakeApi,
) -> None:
    unknown = cli_fakes.refusal(
        404, "unknown_position", "The log has no position 9.", "See the log."
    )
    api.routes["GET /v1/units/k3-prod-07/why"] = unknown
    api.routes["GET /v1/units"] = cli_fakes.listed({"id": "k3-prod-07"})
    result = Cli(api.url)("unit", "why", "k3-prod-07", "--at", "9")
    assert "See the log." in result.err
    assert "known now" not in result.err


def test_a_moment_that_is_none_is_wrong_usage(api: FakeApi) -> None:
    bad = cli_fakes.refusal(422, "bad_moment", "'soon' is no moment.")
    api.routes["GET /v1/units/k3-prod-07/why"] = bad
    assert Cli(api.url)("unit", "why", "k3-prod-07", "--at", "soon").code == 2


def test_a_rollout_says_what_blocks_it_and_whose_move_it_is(api: FakeApi) -> None:
    api.routes["GET /v1/rollouts/r-1/why"] = (
        200,
        {
            "rollout": "r-1",
            "phase": "running",
            "halted_code": None,
            "author": "alice",
            "approver": "bob",
            "approvers": ["bob"],
            "as_of_position": 812,
            "now": "2027-01-15T03:12:44Z",
            "eligible_now": 6,
            "waves": [{"wave": 0, "verdict": "passed", "sentence": "1 of 1 baked.", "good": ["u"]}],
            "waits": [
                {
                    "sentence": "It runs.",
                    "owner": "controller",
                    "until": None,
                    "next_step": "Nothing.",
                },
                {
                    "sentence": "Freeze x",
                    "owner": "approver",
                    "since": "2027-01-15T03:00:00Z",
                    "until": "2027-01-16T03:00:00Z",
                    "overdue": True,
                    "next_step": "smgate freeze lift x",
                },
            ],
            "not_eligible": {"silent": 3},
        },
    )
    text = Cli(api.url)("rollout", "why", "r-1").out
    assert text.splitlines()[0] == "rollout r-1 | running"
    assert "author alice, approved by bob" in text
    lines = text.splitlines()
    at = lines.index("  - Freeze x")
    assert lines[at + 1 : at + 3] == [
        "    approver's move, since 2027-01-15 03:00:00Z, until 2027-01-16 03:00:00Z, OVERDUE",
        "    -> smgate freeze lift x",
    ]
    assert "    controller's move, until somebody acts" in lines
    assert "not eligible, by code: silent=3" in lines
    assert "Wave 0: passed. 1 of 1 baked." in text


def test_a_rollout_shows_its_waves_and_the_members_of_the_open_one(api: FakeApi) -> None:
    member = {"unit": "u", "granted": True, "launched": True, "bake_s": 30, "good": False}
    waves = [
        {"wave": 0, "verdict": "passed", "eligible": 10, "members": [member | {"good": True}]},
        {"wave": 1, "verdict": "running", "eligible": 10, "members": [member, member]},
    ]
    row = {
        "id": "r-1",
        "phase": "halted",
        "halted_code": "memory_fallback",
        "plan": {
            "waves": [{"count": 1}, {"percent": 50.0}],
            "spread_by": "rack",
            "supersedes": "r-0",
            "on_new_build": "trust_pool",
            "max_in_flight": 2,
        },
        "waves": waves,
        "in_flight": 2,
    }
    api.routes["GET /v1/rollouts/r-1"] = (200, row)
    lines = Cli(api.url)("rollout", "get", "r-1").out.splitlines()
    assert lines[0] == "rollout r-1 | halted | by memory_fallback"
    assert "waves planned: 1, 50 %, spread by rack" in lines
    assert "supersedes: r-0" in lines
    assert "a new build after completion: trust_pool" in lines
    assert "in flight: 2, at most 2" in lines
    assert [line.split() for line in lines if line.startswith(("0 ", "1 "))] == [
        ["0", "passed", "1", "10", "1", "1", "0"],
        ["1", "running", "2", "10", "2", "0", "0"],
    ]
    assert sum("30 s" in line for line in lines) == 2


def test_a_history_is_a_table_and_says_what_it_leaves_out(api: FakeApi) -> None:
    row = {
        "position": 77,
        "at": "2027-01-15T03:00:00.000000Z",
        "type": "launch_planned",
        "actor": "node:gpu-1",
        "says": "launch l rank 0 of 1",
    }
    body = {"apiVersion": "v1", "unit": "k3", "items": [row], "left_out": 4, "position": 812}
    api.routes["GET /v1/units/k3/history"] = (200, body)
    told = Cli(api.url)("unit", "history", "k3", "--limit", "1", "--since", "70")
    assert told.code == 0
    assert told.out.splitlines() == [
        "POSITION  AT                    WHAT            SAYS",
        "77        2027-01-15 03:00:00Z  launch_planned  launch l rank 0 of 1",
    ]
    assert "4 earlier ones are not shown" in told.err
    assert api.requests[-1].query == {"limit": "1", "since": "70"}


def test_what_people_ordered_is_a_table_with_the_reason_beside_it(api: FakeApi) -> None:
    row = {
        "position": 77,
        "at": "2027-01-15T03:00:00.000000Z",
        "by": "alice",
        "author": None,
        "type": "pin_set",
        "reason": "wrong answers",
        "data": {"unit": "k3", "direction": "off", "reason": "wrong answers"},
    }
    api.routes["GET /v1/log/rulings"] = (200, {"items": [row], "left_out": 2, "position": 812})
    told = Cli(api.url)("log", "rulings", "--by", "alice", "--type", "pin_set", "--since", "70")
    assert told.code == 0
    heading, line = told.out.splitlines()
    assert heading.split() == ["POSITION", "AT", "BY", "RULING", "WHAT", "REASON"]
    assert line.split("  ")[-1] == "wrong answers"
    assert "unit=k3, direction=off" in line
    assert line.count("wrong answers") == 1
    assert "2 earlier ones" in told.err
    asked = {"by": "alice", "type": "pin_set", "since": "70", "limit": "100"}
    assert api.requests[-1].query == asked


def test_what_a_unit_waits_for_stands_before_what_would_be_next(api: FakeApi) -> None:
    waits = [
        {
            "code": "drain_waits",
            "owner": "operator",
            "until": "2027-01-29T03:12:44Z",
            "sentence": "Runs the target and is not restarted yet.",
            "next_step": "smgate drain ls",
        },
        {
            "code": "drain",
            "owner": "node",
            "until": None,
            "sentence": "Ordered.",
            "next_step": None,
        },
    ]
    text = told(api, waits=waits)
    assert "  - drain_waits: operator, until 2027-01-29" in text
    assert "    -> smgate drain ls\n  - drain: node\n    Ordered.\n" in text
    assert text.index("It waits for") < text.index("Next, if that did not apply")
