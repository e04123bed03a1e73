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
    assert lines[7].split() == ["0", "1", "8", "1", "1", "30", "min", "freeze=1"]
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
