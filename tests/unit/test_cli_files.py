"""Files that people publish: strict, with the line, and nothing reinterpreted."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from smgate.cli import failures, files
from smgate.domain import policy

PLAN = """\
id: k3-107-a
gate: kimi-k3-mxfp4
sm: 10.0
waves:
  - count: 1
  - percent: 50
select:
  racks: [r1, 12]
bake_s: 600
success_percent: 99.5
"""


def load(text: str, kind: type, tmp_path: Path, name: str = "plan.yaml") -> dict[str, Any]:
    file = tmp_path / name
    file.write_text(text)
    return files.load(str(file), kind, asked=io.StringIO())


def refusal(text: str, kind: type, tmp_path: Path) -> str:
    with pytest.raises(failures.CliError) as caught:
        load(text, kind, tmp_path)
    assert caught.value.exit_code == 2
    return caught.value.what.replace(f"{tmp_path}/", "")


def test_text_stays_as_it_was_written(tmp_path: Path) -> None:
    plan = load(PLAN, policy.RolloutPlan, tmp_path)
    assert plan["sm"] == "10.0"
    assert plan["waves"] == [{"count": 1}, {"percent": 50.0}]
    assert plan["select"] == {"racks": ["r1", "12"]}
    assert plan["success_percent"] == 99.5
    issue = "{id: a, title: t, match: {flashinfer: [0.6.10, 1.10], sm: [10.70]}}"
    read = load(issue, policy.KnownIssue, tmp_path)
    assert read["match"] == {"flashinfer": ["0.6.10", "1.10"], "sm": ["10.70"]}


@pytest.mark.parametrize(
    ("line", "wrong", "said"),
    [
        ("  - percent: 50", "  - precent: 50", "plan.yaml:6: waves[1].precent: unknown key; did"),
        ("bake_s: 600", "bake_s: ten", "plan.yaml:9: bake_s: must be a whole number, not 'ten'"),
        ("bake_s: 600", "bake_s: 1.5", "plan.yaml:9: bake_s: must be a whole number"),
        ("bake_s: 600", "bake_s: true", "plan.yaml:9: bake_s: must be a whole number"),
        ("bake_s: 600", "bake_s:", "plan.yaml:9: bake_s: must be a whole number, not 'nothing'"),
        ("bake_s: 600", "id: again", "plan.yaml:9: id: stands twice"),
        ("sm: 10.0", "sm: yes", "plan.yaml:3: sm: must be text"),
        ("sm: 10.0", "sm: [10.0]", "plan.yaml:3: sm: must be text"),
        ("sm: 10.0", "# no sm", "plan.yaml:1: sm: is missing"),
        ("  racks: [r1, 12]", "  racks: r1", "plan.yaml:8: select.racks: must be a list"),
        (
            "  racks: [r1, 12]",
            "  racks: [r1, {a: 1}]",
            "plan.yaml:8: select.racks[1]: must be text",
        ),
        ("  racks: [r1, 12]", "  racks: [r1, 12", "plan.yaml:9: "),
    ],
)
def test_what_does_not_fit_is_refused_with_its_line(
    tmp_path: Path, line: str, wrong: str, said: str
) -> None:
    assert said in refusal(PLAN.replace(line, wrong), policy.RolloutPlan, tmp_path)


def test_other_roots_than_one_table_are_refused(tmp_path: Path) -> None:
    assert "must be a table" in refusal("- a", policy.Policy, tmp_path)
    assert "is empty" in refusal("", policy.Policy, tmp_path)
    assert refusal("a: 1\n---\nb: 2", policy.Policy, tmp_path)
    assert refusal("&a [*a]", policy.Policy, tmp_path)
    assert refusal("!!python/object/apply:os.system ['true']", policy.Policy, tmp_path)


def test_json_with_tabs_is_read_and_its_lines_are_named(tmp_path: Path) -> None:
    assert load('{\n\t"min_gpu_sets": 5\n}', policy.Policy, tmp_path) == {"min_gpu_sets": 5}
    said = refusal('{\n\t"min_gpu_sets": 5,\n\t"min": 1\n}', policy.Policy, tmp_path)
    assert said.startswith("plan.yaml:3: min: unknown key")


def test_none_is_a_value_where_the_field_has_it(tmp_path: Path) -> None:
    read = load("exposure_limit_units: null", policy.Policy, tmp_path)
    assert read == {"exposure_limit_units": None}
    assert "must be" in refusal("min_gpu_sets: null", policy.Policy, tmp_path)


def test_the_standard_input_is_a_file_too() -> None:
    read = files.load("-", policy.Policy, asked=io.StringIO("min_gpu_sets: 4"))
    assert read == {"min_gpu_sets": 4}


def test_a_file_that_is_not_there_is_usage(tmp_path: Path) -> None:
    with pytest.raises(failures.CliError) as caught:
        files.load(str(tmp_path / "none"), policy.Policy, asked=io.StringIO())
    assert caught.value.exit_code == 2


def test_the_shipped_gate_reads_back_as_itself(tmp_path: Path) -> None:
    import dataclasses

    import yaml

    plain = {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in dataclasses.asdict(policy.KIMI_K3).items()
    }
    assert load(yaml.safe_dump(plain), policy.Gate, tmp_path) == plain
