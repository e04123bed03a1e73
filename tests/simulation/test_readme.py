"""The README of the format: every example runs, and every list in it is whole."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from smgate.domain import alarms, commands, facts, keys, next_steps, policy, shipped_issues
from smgate.scenario import document, runner, yaml_lines

README = (Path(__file__).parent / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```yaml\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def _section(title: str) -> str:
    return README.split(f"\n## {title}\n")[1].split("\n## ")[0]


def _rows(section: str) -> dict[str, str]:
    """First and second column of every table row of a section."""
    found = re.findall(r"^\| (.+?) \| (.*?) \|", section, re.MULTILINE)
    return {name: value for names, value in found for name in re.findall(r"`([a-z_0-9]+)`", names)}


def _types(step: dict[str, Any]) -> list[str]:
    given = [step["fact"]] if "fact" in step else step.get("facts") or [step.get("command")]
    return [one["type"] for one in given if one is not None]


def _mentioned() -> set[str]:
    steps: list[dict[str, Any]] = []
    for block in BLOCKS:
        value, _ = yaml_lines.load(block)
        assert isinstance(value, dict)
        steps += value["steps"]
    return {name for step in steps for name in _types(step)}


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: re.sub(r"\W+", "-", block)[:30])
def test_an_example_runs_and_nothing_in_it_is_refused(block: str) -> None:
    result = runner.run_text(block)
    assert result["chain_ok"]
    assert [one for moment in result["times"] for one in moment["refused"]] == []


def test_there_is_an_example_of_every_command_and_fact() -> None:
    assert len(BLOCKS) == 4
    assert _mentioned() == {*commands.NAMES, *document.FACTS}
    described = set(re.findall(r"^- `([a-z_]+)`:", _section("Facts"), re.MULTILINE))
    assert described == set(document.FACTS)
    assert _rows(_section("Commands")).keys() >= set(commands.NAMES)


def test_every_field_of_a_fact_is_named() -> None:
    text = _section("Facts")
    for kind in facts.Fact.__args__:
        for field in dataclasses.fields(kind):
            assert re.search(rf"\b{field.name}\b", text), f"{kind.__name__}.{field.name}"


def test_the_shortest_one_comes_out_as_told() -> None:
    [override] = runner.run_text(BLOCKS[0])["times"][-1]["overrides"].values()
    told = re.findall(r"`(form|value|code): (\w+)`", README.split("## The file")[0])
    assert {name: override[name] for name, _ in told} == dict(told)
    assert override["also"] == ["build_not_qualified"]


def test_the_tables_of_defaults_are_the_defaults() -> None:
    rows = _rows(_section("What holds at the start"))
    for field in dataclasses.fields(policy.Policy):
        assert rows[field.name] == str("none" if field.default is None else field.default)
    gate = policy.KIMI_K3
    for field in dataclasses.fields(gate):
        value = getattr(gate, field.name)
        values = value if isinstance(value, tuple) else (value,)
        assert re.findall(r"`([^`]+)`", rows[field.name]) == list(values)
    plan = _rows(_section("Commands"))
    for field in dataclasses.fields(policy.RolloutPlan):
        assert field.name in plan
        if isinstance(field.default, int | float):
            assert str(int(field.default)) in plan[field.name]


def test_every_blocking_issue_that_ships_is_listed() -> None:
    listed = set(re.findall(r"^\| `([a-z0-9.-]+)` \| SM", README, re.MULTILINE))
    assert listed == {one.id for one in shipped_issues.ALL if one.severity == "block"}


def test_every_code_is_listed() -> None:
    codes = _section("Codes")
    for code in (*next_steps.NEXT_STEPS, *alarms.SENTENCES):
        assert re.search(rf"`{code}(:ID)?`", codes), code


def test_every_key_of_the_output_is_described() -> None:
    result = runner.run_text(BLOCKS[-1])
    text = _section("Output")
    tables = re.split(r"^\| key \| \|$", text, flags=re.MULTILINE)
    assert _rows(tables[1]).keys() == result.keys()
    for moment in result["times"]:
        assert _rows(tables[2]).keys() == moment.keys()
        for override in moment["overrides"].values():
            assert _rows(tables[3]).keys() == override.keys()
    last = result["times"][-1]
    inner = [last["rollouts"]["k3-may"], *last["rollouts"]["k3-may"]["waves"]]
    inner += [one for moment in result["times"] for one in moment["waits"] + moment["events"]]
    for shown in inner:
        for key in shown:
            assert f"`{key}`" in text, key


def test_a_refusal_and_an_alarm_have_the_keys_described() -> None:
    incidents = Path(__file__).parent / "scenarios"
    refusal = runner.run_file(incidents / "own_approval.yaml")["times"]
    alarm = runner.run_file(incidents / "bf16.yaml")["times"]
    shown = [one for moment in refusal for one in moment["refused"]]
    shown += [one for moment in alarm for one in moment["alarms"]]
    assert {frozenset(one) for one in shown} == {
        frozenset({"line", "code", "message", "next_step"}),
        frozenset({"cause", "gate", "sm", "units", "since", "absent"}),
    }
    for key in {key for one in shown for key in one}:
        assert f"`{key}`" in _section("Output")


def test_the_unit_id_is_computed_as_told() -> None:
    told = re.findall(r"`(\S+)` with `(\S+)` is `(\S+)`", README)
    planned = facts.LaunchPlanned(launch_id="one", platform="cuda", argv_read=True)
    assert [keys.unit_id(node, planned, (uuid,)) for node, uuid, _ in told] == [
        unit for _, _, unit in told
    ]
