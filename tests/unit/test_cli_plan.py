"""`smgate rollout plan` and `rollout lint`: what a person reads before anything is proposed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests import cli_fakes
from tests.cli_fakes import Cli

PLAN = "id: r9\ngate: kimi-k3-mxfp4\nsm: 10.7\nwaves: [{count: 1}, {percent: 100}]\n"
SHOWN: dict[str, Any] = {
    "apiVersion": "v1",
    "plan": "r9",
    "gate": "kimi-k3-mxfp4",
    "sm": "10.7",
    "as_of_position": 812,
    "now": "2027-01-15T03:00:00Z",
    "eligible_units": 3,
    "eligible_gpus": 24,
    "waves": [
        {
            "wave": 0,
            "units": ["u1"],
            "gpus": 8,
            "restarts": 1,
            "opens_at": "2026-05-04T08:00:00Z",
            "least_duration_s": 1800,
            "exposed_units": 1,
            "waits_for": {"freeze": 1},
        }
    ],
    "restarts": 1,
    "worst_exposed_units": 1,
    "exposure_limit_units": 5,
    "least_duration_s": 5430,
    "duration_without": "restarts",
    "blocked_units": 1,
    "blocked_by_code": {"pinned_off": 1},
    "blocked": [{"unit": "u7", "code": "pinned_off", "sentence": "Pinned to the safe value."}],
    "warnings": [{"code": "no_bake", "sentence": "bake_s is 0.", "next_step": "Give seconds."}],
}


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    path = tmp_path / "plan.yaml"
    path.write_text(PLAN)
    return path


def test_a_plan_is_sent_to_be_looked_at_and_told_in_numbers(plan_file: Path) -> None:
    with cli_fakes.serving() as api:
        api.routes["POST /v1/rollouts/plan"] = (200, SHOWN)
        told = Cli(api.url)("rollout", "plan", str(plan_file))
        [sent] = api.requests
    assert told.code == 0
    assert sent.body["plan"]["waves"] == [{"count": 1}, {"percent": 100.0}]
    lines = told.out.splitlines()
    assert lines[3] == "worst exposure: 1 units, the limit is 5"
    assert lines[4] == "at least 1 h 30 min 30 s, without restarts"
    assert lines[7].split() == [
        "0",
        "1",
        "8",
        "1",
        "1",
        "2026-05-04",
        "08:00:00Z",
        "30",
        "min",
        "freeze=1",
    ]
    assert "  u7: Pinned to the safe value." in lines
    assert lines[-2:] == ["no_bake: bake_s is 0.", "  -> Give seconds."]
    assert "position 812" in told.err


def test_lint_needs_no_controller_and_says_what_is_odd(plan_file: Path) -> None:
    cli = Cli("http://127.0.0.1:9")
    assert cli("rollout", "lint", str(plan_file)).out == "Nothing is odd about this plan.\n"
    plan_file.write_text(PLAN + "bake_s: 0\n")
    told = cli("rollout", "lint", str(plan_file), "-o", "json")
    assert told.code == 0
    assert [one["code"] for one in json.loads(told.out)["warnings"]] == ["no_bake"]


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ("sm: 10.7", "sm: 10.0"),
        ("percent: 100", "percent: 101"),
        ("count: 1", "counts: 1"),
    ],
)
def test_lint_refuses_what_a_controller_would_refuse(
    plan_file: Path, changed: str, code: str
) -> None:
    plan_file.write_text(PLAN.replace(changed, code))
    told = Cli("http://127.0.0.1:9")("rollout", "lint", str(plan_file))
    assert told.code == 2
    assert told.out == ""
    assert "hint" in told.err or "did you mean" in told.err


def test_lint_takes_the_plans_word_for_a_gate_that_does_not_ship(plan_file: Path) -> None:
    plan_file.write_text(PLAN.replace("kimi-k3-mxfp4", "gpt-oss").replace("10.7", "12.0"))
    assert Cli("http://127.0.0.1:9")("rollout", "lint", str(plan_file)).code == 0


DIFFERS: dict[str, object] = {
    "apiVersion": "v1",
    "before": "r8",
    "after": "r9",
    "as_of_position": 812,
    "now": "2027-01-15T03:00:00Z",
    "same_cohorts": False,
    "changed": [{"field": "bake_s", "before": 600, "after": 1200}],
    "waves": [
        {
            "wave": 0,
            "before_units": 2,
            "after_units": 3,
            "gained": ["u1", "u2"],
            "lost": ["u3"],
            "moved": [{"unit": "u4", "from_wave": 1}],
        }
    ],
    "numbers": {
        "eligible_units": {"before": 6, "after": 6},
        "eligible_gpus": {"before": 48, "after": 48},
        "restarts": {"before": 6, "after": 6},
        "worst_exposed_units": {"before": 6, "after": 7},
        "least_duration_s": {"before": 3600, "after": 5400},
    },
}


def test_a_rollout_stands_beside_another_or_beside_a_file(plan_file: Path) -> None:
    with cli_fakes.serving() as api:
        api.routes["POST /v1/rollouts/diff"] = (200, DIFFERS)
        told = Cli(api.url)("rollout", "diff", "r8", "r9")
        Cli(api.url)("rollout", "diff", "r8", str(plan_file))
        by_name, by_file = (one.body for one in api.requests)
    assert told.code == 0
    assert by_name == {"before": "r8", "after": "r9"}
    assert by_file["plan"]["id"] == "r9"
    lines = [line.split() for line in told.out.splitlines()]
    assert lines[0] == ["r8", "->", "r9"]
    assert ["worst", "exposure,", "units", "6", "7"] in lines
    assert ["at", "least", "1", "h", "1", "h", "30", "min"] in lines
    assert ["bake_s", "600", "1200"] in lines
    assert ["wave", "0:", "2", "->", "3", "units"] in lines
    assert lines[-3:] == [["+", "u1,", "u2"], ["-", "u3"], [">", "u4", "from", "wave", "1"]]


def test_a_file_that_is_not_there_is_no_name_of_a_rollout() -> None:
    told = Cli("http://127.0.0.1:9")("rollout", "diff", "r8", "not-there.yaml")
    assert told.code == 2
    assert "not-there.yaml cannot be read" in told.err
