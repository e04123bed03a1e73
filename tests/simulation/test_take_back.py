"""The three numbers of taking back, in the output of a scenario: decided, told, safe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from smgate.scenario import runner

SCENARIOS = Path(__file__).parent / "scenarios"


def numbers(result: dict[str, Any]) -> list[tuple[int, ...]]:
    """What SM 10.7 comes to over time, each once."""
    found: list[tuple[int, ...]] = []
    for moment in result["times"]:
        shown = moment["take_back"].get("10.7")
        if shown is not None and (not found or found[-1] != tuple(shown.values())):
            assert list(shown) == ["decided", "told", "safe"]
            found.append(tuple(shown.values()))
    return found


def test_servers_of_a_failed_build_become_safe_one_by_one() -> None:
    result = runner.run_file(SCENARIOS / "failed_build_drained_after_a_person_agrees.yaml")
    assert numbers(result) == [(3, 3, 0), (3, 3, 1), (3, 3, 2), (3, 3, 3)]


def test_a_node_that_is_not_connected_is_told_once_it_is_back() -> None:
    scenario = yaml.safe_load((SCENARIOS / "kill_switch.yaml").read_text(encoding="utf-8"))
    steps = scenario["steps"]
    kills = [s.get("command", {}).get("type") == "gate_disable" for s in steps].index(True)
    restarts = next(s for s in steps[kills:] if "node" in s)
    steps.insert(kills, {"at": steps[kills]["at"], "disconnect": restarts["node"]})
    assert numbers(runner.run_text(json.dumps(scenario, default=str))) == [(1, 0, 0), (1, 1, 1)]
