"""`smgate simulate run`: the printed form of a run, and how a bad scenario is told."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli_fakes import Cli

SCENARIO = """\
scenario: 1
name: A freeze is declared
steps:
  - at: 0
    by: alice
    command: {type: freeze_declare, id: year-end, reason: quiet days}
  - at: 1h
    look: true
"""


@pytest.fixture
def cli() -> Cli:
    return Cli("http://127.0.0.1:9")


def test_a_run_is_one_json_object(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(SCENARIO)
    result = cli("simulate", "run", str(file), "--json")
    assert result.code == 0
    [line] = result.out.splitlines()
    answer = json.loads(line)
    assert [one["at_s"] for one in answer["times"]] == [0, 3600]
    assert json.loads(cli("simulate", "run", str(file), "-o", "json").out) == answer


def test_a_run_reads_moment_by_moment(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(SCENARIO)
    out = cli("simulate", "run", str(file)).out
    assert out.splitlines()[0] == "A freeze is declared"
    assert 'operator:alice: freeze declared year-end: "quiet days"' in out
    assert "3600 s  2026-01-01 01:00:00Z" in out
    assert "freezes    year-end" in out
    assert "the chain is whole" in out


def test_a_bad_scenario_is_told_with_its_line(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(SCENARIO.replace("look:", "lok:"))
    result = cli("simulate", "run", str(file))
    assert result.code == 1
    assert result.out == ""
    assert "line 7" in result.err or "line 8" in result.err
    error = cli("simulate", "run", str(file), "--json").error
    assert error["code"] == "bad_scenario"
    assert cli("simulate", "run", str(tmp_path / "none")).code == 2


def test_the_alarms_of_a_simulated_fleet_are_nobodys() -> None:
    asked = ("simulate", "fleet", "--seed", "3", "--nodes", "6", "--days", "1", "--json")
    code = f"import sys; from smgate.cli import app; sys.argv[1:] = {list(asked)!r}; app.main()"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert "ALARM" in done.stdout
    assert len(done.stderr.splitlines()) == 1, done.stderr


def test_a_fleet_is_played_from_its_seed(cli: Cli) -> None:
    asked = ("simulate", "fleet", "--seed", "4", "--nodes", "6", "--days", "1", "--faults", "away")
    result = cli(*asked)
    assert result.code == 0
    assert "A fleet of 6 machines for 1 days, seed 4" in result.out
    assert "the chain is whole" in result.out
    assert "never split" in result.out
    assert "times real speed" in result.err
    answer = json.loads(cli(*asked, "--json").out)
    assert (answer["seed"], answer["faults"], answer["violations"]) == (4, ["away"], [])
    assert answer["report"]
    assert cli(*asked).out == result.out


def test_a_fault_that_there_is_not_is_refused(cli: Cli) -> None:
    result = cli("simulate", "fleet", "--faults", "away,meteor")
    assert result.code == 2
    assert "meteor" in result.err
    assert "silence" in result.err
