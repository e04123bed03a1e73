"""What reading commands print, where, in which shape, and how a failure is told."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import yaml
from tests import cli_fakes
from tests.cli_fakes import Cli, FakeApi

UNITS = [
    {
        "id": "k3-prod-07",
        "live": True,
        "nodes": ["gpu-1", "gpu-2"],
        "sm": "10.7",
        "gate": "kimi-k3-mxfp4",
        "override": {
            "form": "append",
            "value": "marlin",
            "code": "build_suspect",
            "sentence": "One failing check made the kernel key suspect.",
            "would": None,
        },
        "told": True,
        "effective": [
            {"rank": 0, "node": "gpu-1", "runner": "marlin", "a2a": "none"},
            {"rank": 1, "node": "gpu-2", "runner": "marlin", "a2a": "none"},
        ],
        "states": ["serving"],
        "grant": None,
        "pin": None,
        "excluded": False,
        "adoption": None,
        "fallback": None,
        "exposed": False,
        "uncontrolled": False,
    },
    {
        "id": "k3-old-01",
        "live": True,
        "nodes": ["gpu-9"],
        "sm": "10.7",
        "gate": "kimi-k3-mxfp4",
        "override": None,
        "told": False,
        "effective": [{"rank": 0, "node": "gpu-9", "runner": "flashinfer_mxfp4", "a2a": "deepep"}],
        "states": ["serving"],
        "grant": None,
        "pin": {"direction": "off"},
        "excluded": False,
        "adoption": "adopted",
        "fallback": "active",
        "exposed": True,
        "uncontrolled": True,
    },
]


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with cli_fakes.serving() as served:
        served.routes["GET /v1/units"] = cli_fakes.listed(*UNITS)
        yield served


@pytest.fixture
def cli(api: FakeApi) -> Cli:
    return Cli(api.url)


def test_a_table_says_what_is_decided_and_what_stands_out(cli: Cli) -> None:
    result = cli("unit", "ls")
    header, first, second = result.out.splitlines()
    assert header.split() == ["UNIT", "SM", "DECIDED", "CODE", "TOLD", "RUNS", "STATE", "FLAGS"]
    assert first.split() == [
        "k3-prod-07",
        "10.7",
        "marlin",
        "build_suspect",
        "yes",
        "marlin",
        "serving",
        "-",
    ]
    assert "flashinfer_mxfp4/deepep" in second
    assert second.endswith("BF16:active exposed uncontrolled adopted pinned-off")
    assert result.code == 0


def test_whose_view_it_is_stands_on_stderr_and_only_for_people(cli: Cli) -> None:
    assert "according to the controller at position 812, " in cli("unit", "ls").err
    assert cli("unit", "ls").err.rstrip().endswith("UTC")
    for shape in ("json", "yaml", "jsonl", "name"):
        assert cli("unit", "ls", "-o", shape).err == ""


def test_every_shape_carries_what_the_api_said(cli: Cli) -> None:
    whole = {"apiVersion": "v1", "items": UNITS, "position": 812}
    assert json.loads(cli("unit", "ls", "-o", "json").out) == whole
    assert yaml.safe_load(cli("unit", "ls", "-o", "yaml").out) == whole
    lines = cli("unit", "ls", "-o", "jsonl").out.splitlines()
    assert [json.loads(line) for line in lines] == UNITS
    assert cli("unit", "ls", "-o", "name").out == "k3-prod-07\nk3-old-01\n"


def test_wide_adds_columns_and_no_headers_drops_the_first_line(cli: Cli) -> None:
    wide = cli("unit", "ls", "-o", "wide")
    assert "gpu-1, gpu-2" in wide.out
    assert "One failing check" in wide.out
    assert len(cli("unit", "ls", "--no-headers").out.splitlines()) == len(UNITS)


def test_units_can_be_chosen_and_those_that_are_gone_are_left_out(api: FakeApi, cli: Cli) -> None:
    gone = {**UNITS[0], "id": "gone", "live": False}
    api.routes["GET /v1/units"] = cli_fakes.listed(*UNITS, gone)

    def names(*arguments: str) -> list[str]:
        return cli("unit", "ls", "-o", "name", *arguments).out.split()

    assert names() == ["k3-prod-07", "k3-old-01"]
    assert names("--all") == ["k3-prod-07", "k3-old-01", "gone"]
    assert names("--code", "build_suspect") == ["k3-prod-07"]
    assert names("--flag", "exposed") == ["k3-old-01"]
    assert names("--flag", "BF16") == ["k3-old-01"]
    assert names("--sm", "9.0") == []


def test_nothing_to_list_prints_nothing_and_succeeds(api: FakeApi, cli: Cli) -> None:
    api.routes["GET /v1/units"] = cli_fakes.listed()
    result = cli("unit", "ls")
    assert (result.code, result.out) == (0, "")
    assert "No units." in result.err
    assert cli("unit", "ls", "-q").err == ""
    assert json.loads(cli("unit", "ls", "-o", "json").out)["items"] == []


def test_text_from_the_fleet_cannot_steer_the_terminal(api: FakeApi, cli: Cli) -> None:
    evil = {**UNITS[0], "id": "a\x1b[2Jb\nc\u202ed\x9b"}
    api.routes["GET /v1/units"] = cli_fakes.listed(evil)
    for shape in ("table", "wide"):
        out = cli("unit", "ls", "-o", shape).out
        assert len(out.splitlines()) == 2
        assert not set("\x1b\u202e\x9b") & set(out)


@pytest.mark.parametrize(
    ("status", "code", "exit_code"),
    [
        (400, "bad_json", 1),
        (401, "token_unknown", 4),
        (403, "forbidden", 4),
        (409, "forbidden", 4),
        (404, "unknown_unit", 3),
        (409, "world_moved", 5),
        (403, "same_person", 5),
        (409, "rollout_halted", 5),
        (412, "stale", 5),
        (422, "bad_policy", 1),
        (429, "too_many", 7),
        (500, "bug", 1),
        (503, "busy", 7),
    ],
)
def test_each_refusal_has_its_exit_code(
    api: FakeApi, cli: Cli, status: int, code: str, exit_code: int
) -> None:
    api.routes["GET /v1/alarms"] = cli_fakes.refusal(status, code, "No.", "Do that.")
    result = cli("alarm", "ls")
    assert result.code == exit_code
    assert result.out == ""
    assert "error: No.\n" in result.err
    assert f"cause: HTTP {status} {code}\n" in result.err
    assert "hint: Do that.\n" in result.err


def test_errors_are_json_where_the_output_is(api: FakeApi, cli: Cli) -> None:
    api.routes["GET /v1/alarms"] = cli_fakes.refusal(403, "forbidden", "No.", "Ask.")
    error = cli("alarm", "ls", "-o", "json").error
    assert error["code"] == "forbidden"
    assert error["message"] == "No."
    assert error["next_step"] == "Ask."
    assert error["exit_code"] == 4
    assert cli("alarm", "ls", "-o", "json", "--no-such-option").error["code"] == "usage"


def test_a_controller_that_is_not_there_is_tried_again_and_then_told() -> None:
    cli = Cli("http://127.0.0.1:9")  # The discard port: nobody listens on this machine.
    result = cli("unit", "ls")
    assert result.code == 7
    assert result.err.count("trying again") == 3
    assert "error: Cannot reach the controller at http://127.0.0.1:9." in result.err
    assert "hint: " in result.err
    assert "Traceback" not in result.err


def test_something_else_at_that_address_is_named(api: FakeApi, cli: Cli) -> None:
    api.routes["GET /v1/units"] = (200, b"<html>It works!</html>")
    result = cli("unit", "ls")
    assert result.code == 1
    assert "not smgate's" in result.err


def test_a_busy_controller_is_asked_again_as_it_says(api: FakeApi, cli: Cli) -> None:
    busy = (*cli_fakes.refusal(503, "busy", "Later."), {"Retry-After": "3"})
    api.routes["GET /v1/units"] = [busy, cli_fakes.listed(*UNITS)]  # type: ignore[list-item]
    before_us = cli.clock.now_us()
    result = cli("unit", "ls")
    assert result.code == 0
    assert cli.clock.now_us() - before_us == 3_000_000
    assert "trying again in 3 s" in result.err


def test_an_unknown_unit_is_answered_with_near_ones(api: FakeApi, cli: Cli) -> None:
    result = cli("unit", "show", "k3-pord-07")
    assert result.code == 3
    assert "hint: Did you mean k3-prod-07?\n" in result.err
    assert "Did you mean" not in cli("unit", "show", "zzz").err


def test_a_name_may_hold_any_character(api: FakeApi, cli: Cli) -> None:
    api.routes["GET /v1/units/gpu-1%3AGPU%2F..%2Fx"] = (200, UNITS[0])
    assert cli("unit", "show", "gpu-1:GPU/../x", "-o", "json").code == 0


def test_one_gate_alone_can_be_shown(api: FakeApi, cli: Cli) -> None:
    api.routes["GET /v1/gates"] = cli_fakes.listed({"id": "a"}, {"id": "b"})
    shown = json.loads(cli("gate", "show", "b", "-o", "json").out)
    assert shown["items"] == [{"id": "b"}]
    missing = cli("gate", "show", "c")
    assert missing.code == 3


def test_version_and_help_need_no_controller() -> None:
    cli = Cli("http://127.0.0.1:9")
    assert cli("--version").out.startswith("smgate ")
    assert cli("version", "--client").code == 0
    topic = cli("help", "exit-codes")
    assert topic.code == 0
    for number in (0, 1, 2, 3, 4, 5, 6, 7, 130):
        assert f"\n  {number:<5}" in topic.out
    assert "XDG_CONFIG_HOME" in cli("help", "configuration").out


def test_no_verb_and_unknown_verbs_are_usage() -> None:
    cli = Cli(None)
    assert cli().code == 2
    assert "Commands:" in cli("unit").out
    assert cli("unit").code == 2
    unknown = cli("unit", "whyy")
    assert unknown.code == 2
    assert "why" in unknown.err
    assert "hint: smgate unit --help" in unknown.err


def test_log_tail_prints_the_newest_in_order(api: FakeApi, cli: Cli) -> None:
    events = [
        {
            "position": number,
            "type": "freeze_lifted",
            "actor": "operator/alice",
            "recorded_at": "2027-01-15T08:00:00.123456Z",
            "data": {"id": f"f{number}"},
        }
        for number in range(1, 701)
    ]

    def page(request: cli_fakes.Request) -> cli_fakes.Answer:
        after, limit = int(request.query["after"]), int(request.query["limit"])
        return cli_fakes.listed(*events[after : after + limit])

    api.routes["GET /v1/events"] = page
    api.routes["GET /v1/log/head"] = (200, {"position": 700, "chain": "ab"})
    short = cli("log", "tail", "-n", "2").out.splitlines()
    assert [line.split()[0] for line in short] == ["POSITION", "699", "700"]
    assert "2027-01-15 08:00:00Z" in short[1]
    assert "id=f699" in short[1]
    long = cli("log", "tail", "--after", "0", "-n", "650", "-o", "name").out.split()
    assert long == [str(number) for number in range(1, 651)]
    whole = json.loads(cli("log", "tail", "--after", "0", "-n", "650", "-o", "json").out)
    assert whole["items"] == events[:650]


def test_a_line_of_the_log_begins_with_whom_it_is_about(api: FakeApi, cli: Cli) -> None:
    event = {
        "also": ["no_rollout"],
        "as_of_position": 88,
        "code": "build_suspect",
        "facts": list(range(40)),
        "form": "append",
        "given_for": {"a2a": "none", "architecture": "KimiK3ForConditionalGeneration"},
        "unit": "rubin-1:0799bcbf",
        "value": "marlin",
        "would": None,
    }
    row = {"position": 9, "type": "override_set", "actor": "controller", "data": event}
    api.routes["GET /v1/events"] = cli_fakes.listed(row)
    api.routes["GET /v1/log/head"] = (200, {"position": 9, "chain": "ab"})
    line = cli("log", "tail").out.splitlines()[1]
    told = "unit=rubin-1:0799bcbf, form=append, value=marlin, code=build_suspect"
    assert told in line
    assert "would" not in line


def test_a_line_of_an_erased_fact_says_so(api: FakeApi, cli: Cli) -> None:
    row = {"position": 9, "type": "weights_seen", "actor": "node:n1", "data": None}
    api.routes["GET /v1/events"] = cli_fakes.listed(row)
    api.routes["GET /v1/log/head"] = (200, {"position": 9, "chain": "ab"})
    assert "erased" in cli("log", "tail").out.splitlines()[1]


def test_a_log_that_was_changed_is_an_error_with_the_row(api: FakeApi, cli: Cli) -> None:
    bad = {"kind": "changed", "position": 3, "sentence": "The record does not match."}
    api.routes["GET /v1/log/verify"] = (200, {"ok": False, "chain": "", "first_bad": bad})
    result = cli("log", "verify")
    assert result.code == 1
    assert "changed at 3" in result.err
    api.routes["GET /v1/log/verify"] = (200, {"ok": True, "chain": "ab", "first_bad": None})
    assert cli("log", "verify").code == 0


def test_an_alarm_names_the_unit_to_ask_about(api: FakeApi, cli: Cli) -> None:
    api.routes["GET /v1/alarms"] = cli_fakes.listed(
        {"id": "e1", "cause": "bf16", "unit_count": 3, "units": ["k3-a", "k3-b", "k3-c"]},
        {"id": "e2", "cause": "log_gap", "unit_count": 0, "units": []},
    )
    header, first, second = cli("alarm", "ls").out.splitlines()
    assert "WHICH" in header
    assert "k3-a +2" in first
    assert "k3-a" not in second
    assert "k3-b" in cli("alarm", "ls", "-o", "wide").out
