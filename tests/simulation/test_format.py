"""The format: what the schema accepts the reader accepts, and what is wrong has its line."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import HealthCheck, given, settings, strategies as st
from tests.simulation import generated

from smgate.domain import commands
from smgate.scenario import document, runner, schema, yaml_lines

HERE = Path(__file__).parent
SCENARIOS = sorted((HERE / "scenarios").glob("*.yaml"))
VALIDATOR = jsonschema.Draft202012Validator(generated.ROOT)
CANARY = (HERE / "scenarios" / "first_canary.yaml").read_text(encoding="utf-8")


class _Quoting(yaml.SafeDumper):
    """Quotes every text: what PyYAML leaves bare, such as 0E0, is a number in YAML 1.2."""


_Quoting.add_representer(
    str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"')
)


def _yaml(value: object) -> str:
    return yaml.dump(value, Dumper=_Quoting, allow_unicode=True, width=1_000)


def _value(text: str) -> Any:
    value, _ = yaml_lines.load(text)
    return value


def _error(text: str) -> document.ScenarioError:
    with pytest.raises(document.ScenarioError) as caught:
        document.parse(text)
    return caught.value


def _line_of(text: str, needle: str) -> int:
    [line] = [n for n, found in enumerate(text.splitlines(), start=1) if needle in found]
    return line


def test_the_schema_file_is_the_schema(request: pytest.FixtureRequest) -> None:
    file = HERE / "scenario.schema.json"
    made = json.dumps(schema.scenario_schema(), indent=2, ensure_ascii=False) + "\n"
    if request.config.getoption("--update-transcripts"):
        file.write_text(made, encoding="utf-8")
    assert file.read_text(encoding="utf-8") == made, "pytest --update-transcripts writes it anew"
    jsonschema.Draft202012Validator.check_schema(json.loads(made))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda path: path.stem)
def test_every_scenario_is_of_the_schema(scenario: Path) -> None:
    VALIDATOR.validate(_value(scenario.read_text(encoding="utf-8")))


@pytest.mark.parametrize("scenario", SCENARIOS[:6], ids=lambda path: path.stem)
@pytest.mark.parametrize("indent", [None, 1, "\t"], ids=["flat", "one", "tabs"])
def test_json_says_the_same_as_yaml(scenario: Path, indent: int | str | None) -> None:
    text = scenario.read_text(encoding="utf-8")
    as_json = json.dumps(_value(text), indent=indent)
    shown = [runner.run_text(one) for one in (text, as_json)]
    for result in shown:
        for moment in result["times"]:
            del moment["lines"]
            for refused in moment["refused"]:
                del refused["line"]
    assert shown[0] == shown[1]


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_what_the_schema_accepts_the_reader_accepts(data: st.DataObject) -> None:
    version = data.draw(st.sampled_from([1, 2]))
    step = data.draw(generated.matching({"$ref": f"#/$defs/Step{version}"}))
    value = {"scenario": version, "steps": [step]}
    VALIDATOR.validate(value)
    read = document.parse(json.dumps(value))
    as_yaml = document.parse(_yaml(value))
    [planned] = read.steps
    assert as_yaml.steps == (dataclasses.replace(planned, line=as_yaml.steps[0].line),)
    if isinstance(planned.step, document.CommandStep):
        assert isinstance(planned.command, commands.NAMES[step["command"]["type"]])


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_whatever_the_schema_accepts_runs_to_its_end(data: st.DataObject) -> None:
    version = data.draw(st.sampled_from([1, 2]))
    one = generated.matching({"$ref": f"#/$defs/Step{version}"})
    drawn = data.draw(st.lists(one, max_size=6))
    steps = sorted(drawn, key=lambda step: document.duration_us(step["at"]))
    result = runner.run_text(json.dumps({"scenario": version, "steps": steps}))
    assert result["chain_ok"]
    json.dumps(result, allow_nan=False)


SPOILED: tuple[object, ...] = (None, True, 7, -1, 1.5, "", "blackwell", "\x07", [], {}, [[]])


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_what_the_schema_refuses_the_reader_refuses(data: st.DataObject) -> None:
    version = data.draw(st.sampled_from([1, 2]))
    step = data.draw(generated.matching({"$ref": f"#/$defs/Step{version}"}))
    path = data.draw(st.sampled_from(sorted(generated.places(step), key=str)))
    spoiled = generated.replaced(step, path, data.draw(st.sampled_from(SPOILED)))
    value = {"scenario": version, "steps": [spoiled]}
    text = json.dumps(value)
    if VALIDATOR.is_valid(value):
        document.parse(text)
    else:
        assert _error(text).line == 1


def _unknown_places() -> list[tuple[str | int, ...]]:
    """Every mapping in the canary's scenario that the format names the fields of."""
    value = _value(CANARY)
    return [path for path in generated.places(value) if isinstance(generated.at(value, path), dict)]


@pytest.mark.parametrize("path", _unknown_places(), ids=lambda path: ".".join(map(str, path)))
def test_an_unknown_field_is_refused_at_any_depth_with_its_line(
    path: tuple[str | int, ...],
) -> None:
    spoiled = generated.replaced(_value(CANARY), (*path, "spoiled"), 1)
    assert not VALIDATOR.is_valid(spoiled)
    for text in (json.dumps(spoiled, indent=1), _yaml(spoiled)):
        error = _error(text)
        assert error.line == _line_of(text, "spoiled")
        assert "spoiled" in str(error)


def _spoil(before: str, after: str) -> str:
    assert CANARY.count(before) >= 1
    return CANARY.replace(before, after, 1)


BROKEN = {
    "a family": ('sm: "10.7", mode', "sm: blackwell, mode", None),
    "an SM that is a number": (
        'gpus: [{uuid: GPU-pool-1, sm: "10.7"}]}',
        "gpus: [{uuid: GPU-pool-1, sm: 10.7}]}",
        "in quotes",
    ),
    "a family in a fact": (
        'gpus: [{uuid: GPU-pool-1, sm: "10.7"}]}',
        "gpus: [{uuid: GPU-pool-1, sm: blackwell}]}",
        "regex",
    ),
    "NaN": ("launch_id: pool-1-first\n        platform", "numbers: .nan\n        platform", None),
    "text for a truth": ("argv_read: true", "argv_read: yes", "bool"),
    "a name for a number": ("interval_s: 900", "interval_s: many", "int"),
    "an outcome nobody knows": ("outcome: passed", "outcome: fine", "fine"),
    "a fact nobody knows": ("type: launch_planned", "type: launch_planed", "launch_planned"),
    "a command nobody knows": ("type: gate_mode", "type: gate_mod", "gate_mode"),
    "no type": ("type: launch_planned\n        ", "", "type"),
    "a time that goes back": ("at: 10m\n    note", "at: 1m\n    note", "earlier"),
    "a negative time": ("at: 1m\n", "at: -1\n", None),
    "no time": ("at: 1m20s", "at: soon", None),
    "a role": ("role: operator", "role: root", "root"),
}


@pytest.mark.parametrize(("before", "after", "says"), BROKEN.values(), ids=BROKEN)
def test_what_is_wrong_is_said_with_its_line(before: str, after: str, says: str | None) -> None:
    text = _spoil(before, after)
    if after.startswith("sm: blackwell, mode"):  # what a command means is decided, not read
        [refused] = runner.run_text(text)["times"][0]["refused"]
        first_step = CANARY.count("\n", 0, CANARY.index("- at: 0")) + 1
        assert (refused["code"], refused["line"]) == ("bad_sm", first_step)
        return
    error = _error(text)
    place = CANARY.index(before)
    first = CANARY.count("\n", 0, place) + 1
    assert first - 1 <= error.line <= first + 1
    assert says is None or says in str(error)


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("", 1, "object"),
        ("- 1", 1, "object"),
        ("scenario: 3\nsteps: []", 1, "3"),
        ("scenario: 1\nsteps:\n  - at: 0\n    command: {}\n    accepted_by: b", 5, "scenario: 2"),
        ("scenario: 1\nsteps:\n  - at: 0\n    command: {}\n    break_glass_s: 1", 5, "scenario: 2"),
        ("scenario: true\nsteps: []", 1, ""),
        ("scenario: 1\nsteps: []\nstep: []", 3, "step"),
        ("scenario: 1\nname: a\nname: b\nsteps: []", 3, "twice"),
        ("scenario: 1\nstart: yesterday\nsteps: []", 2, ""),
        ("scenario: 1\nstart: 2026-02-30T00:00:00Z\nsteps: []", 2, "ISO"),
        ("scenario: 1\nstart: 2026-02-20T00:00:00\nsteps: []", 2, "time zone"),
        ("scenario: 1\nsteps:\n  - 7", 3, "mapping"),
        ("scenario: 1\nsteps:\n  - at: 0", 3, "exactly one"),
        ("scenario: 1\nsteps:\n  - at: 0\n    look: true\n    connect: a", 3, "exactly one"),
        ("scenario: 1\nsteps:\n  - at: 0\n    look: false", 4, "look: true"),
        ("scenario: 1\nsteps:\n  - at: 0\n    lok: true", 4, "lok"),
        ("scenario: 1\nsteps:\n  - at: 0\n    look: true\n    node: a", 5, "node"),
        ("scenario: 1\nsteps:\n  - look: true", 3, "at"),
        ("scenario: 1\nsteps:\n  - at: 0\n    node: n\n    facts: []", 5, "no fact"),
        ("scenario: 1\nsteps:\n  - at: 1e999\n    look: true", 3, "number"),
        ("scenario: 1\nsteps:\n  - at: 0\n   look: true", 4, ""),
        ("scenario: 1\nsteps: &a\n  - *a", 2, "deep"),
        ("scenario: 1\nname: !!binary aGk=\nsteps: []", 2, "tag"),
        ("scenario: 1\nname: \x07\nsteps: []", 2, "character"),
        ('{"scenario": 1,\n "name": "\\ud83d",\n "steps": []}', 2, ""),
        ('{"scenario": 1,\n "steps": [],\n "steps": []}', 3, "twice"),
        ("scenario: 1\n1: 2\nsteps: []", 2, "quotes"),
        ("scenario: 1\n---\nscenario: 1", 2, ""),
    ],
)
def test_a_file_that_is_not_of_the_format_is_refused(text: str, line: int, says: str) -> None:
    error = _error(text)
    assert error.line == line
    assert says in str(error)
    assert str(error).startswith(f"line {line}: ")


def test_a_character_outside_the_basic_plane_may_be_escaped_in_json() -> None:
    text = json.dumps({"scenario": 1, "name": "😀 \\ud83d", "steps": []})
    assert document.parse(text).name == "😀 \\ud83d"


def test_an_error_in_an_alias_is_told_where_it_is_written() -> None:
    text = """\
scenario: 1
steps:
  - at: 0
    node: a
    facts:
      - &gone
        type: instance_changed
        instance_id: k3
        state: gone
  - at: 1
    node: b
    fact: {<<: *gone, instance_id: k4}
"""
    assert _error(text).line == _line_of(text, "state: gone")
    later = text.replace("state: gone", "state: serving").replace("k4}", "k4, state: gone}")
    assert _error(later).line == _line_of(later, "state: gone}")


def test_a_file_that_cannot_be_read_is_no_scenario(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"scenario: 1\nname: \xe4\nsteps: []")
    for name in ("latin", "nothing"):
        with pytest.raises(document.ScenarioError):
            runner.run_file(tmp_path / name)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [(0, 0), (1.5, 1.5), ("90s", 90), ("1h30m", 5_400), ("2d", 172_800), ("1d1h1m1.5s", 90_061.5)],
)
def test_a_time_is_seconds_or_text(text: float | str, seconds: float) -> None:
    assert document.duration_us(text) == seconds * 1_000_000


@pytest.mark.parametrize("text", ["", "90", "s", "1m1h", "-1s", "1 h", "1w", -1, float("nan"), 3e9])
def test_what_is_no_time_is_refused(text: float | str) -> None:
    with pytest.raises(ValueError, match=r"duration|bounds"):
        document.duration_us(text)
