"""The runner: equal bytes, its clock, what it shows, and what it costs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import pytest
from tests.simulation import fleet

from smgate.scenario import runner

INCIDENTS = sorted((Path(__file__).parent / "scenarios").glob("*.yaml"))
MONTH_S_MAX: Final = 30.0
"""A few seconds on a free core; the suite shares its cores."""

PRINT: Final = """\
import json, pathlib, sys
from smgate.scenario import runner
for name in sys.argv[1:]:
    print(json.dumps(runner.run_file(pathlib.Path(name))))
"""


def _run(*steps: dict[str, Any] | list[dict[str, Any]]) -> dict[str, Any]:
    flat = [one for step in steps for one in (step if isinstance(step, list) else [step])]
    return runner.run_text(json.dumps({"scenario": 1, "steps": flat}))


def _at(result: dict[str, Any], at_s: float) -> dict[str, Any]:
    [moment] = [one for one in result["times"] if one["at_s"] == at_s]
    return dict(moment)


def _told(result: dict[str, Any], event_type: str) -> list[tuple[float, dict[str, Any]]]:
    return [
        (moment["at_s"], event["event"])
        for moment in result["times"]
        for event in moment["events"]
        if event["type"] == event_type
    ]


def test_a_scenario_run_twice_gives_equal_bytes() -> None:
    for incident in INCIDENTS:
        first, second = (json.dumps(runner.run_file(incident)) for _ in range(2))
        assert first == second


def test_the_seed_of_hashes_makes_no_difference() -> None:
    names = [str(path) for path in INCIDENTS]
    printed = {
        subprocess.run(
            [sys.executable, "-c", PRINT, *names],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "4242")
    }
    assert len(printed) == 1


def test_the_first_moment_is_the_start() -> None:
    assert _run()["times"][0]["at_s"] == 0
    result = _run(fleet.look(10))
    assert [moment["at_s"] for moment in result["times"]] == [0, 10]
    assert {event["type"] for event in result["times"][0]["events"]} >= {"gate_published"}
    assert result["times"][1]["events"] == []


def test_steps_of_one_moment_are_one_entry_in_their_order() -> None:
    result = _run(
        fleet.command(5, "dora", "freeze_declare", id="one"),
        fleet.command(5, "dora", "freeze_declare", id="two"),
    )
    moment = _at(result, 5)
    assert [event["event"]["id"] for event in moment["events"]] == ["one", "two"]
    assert moment["freezes"] == ["one", "two"]


@pytest.mark.parametrize("step_before_s", [0.25, 60])
def test_a_node_is_silent_exactly_when_its_time_is_over(step_before_s: float) -> None:
    result = _run(
        fleet.facts(0, "a", fleet.reported("a")),
        {"at": 10, "disconnect": "a"},
        fleet.look(310 - step_before_s),
        fleet.look(2_000),
        {"at": 2_001, "connect": "a"},
        fleet.look(9_000),
    )
    assert [at_s for at_s, _ in _told(result, "node_went_silent")] == [310]
    assert [at_s for at_s, _ in _told(result, "node_returned")] == [2_001]
    assert _at(result, 310)["silent"] == ["a"]
    assert _at(result, 9_000)["silent"] == []


def test_a_timer_that_ends_at_a_step_ends_before_it() -> None:
    pair = {"nnodes": 2, "unit_name": "pair"}
    result = _run(
        fleet.enforce(0),
        fleet.facts(10, "a", fleet.launch("a", 1, **pair)),
        fleet.facts(70, "b", fleet.launch("b", 1, node_rank=1, **pair)),
    )
    decided = [event["launch_ids"] for at_s, event in _told(result, "override_set")]
    assert decided == [["a-1"], ["a-1", "b-1"]]


def test_what_is_reported_while_the_controller_is_away_begins_when_it_is_back() -> None:
    pair = {"nnodes": 2, "unit_name": "pair"}
    result = _run(
        fleet.enforce(0),
        {"at": 10, "controller": "away"},
        fleet.facts("3d", "a", fleet.launch("a", 1, **pair)),
        fleet.command("4d", "dora", "rollout_propose", plan=fleet.plan(rollout_timeout_s=3600)),
        {"at": "7d", "controller": "back"},
        fleet.look("8d"),
    )
    week_s = 7 * 86_400
    assert [at_s for at_s, _ in _told(result, "override_set")] == [week_s + 60]
    assert [at_s for at_s, _ in _told(result, "wait_timed_out")] == [week_s + 3_600]
    away = _at(result, 4 * 86_400)
    assert away["controller"] == "away"
    assert [wait["overdue"] for wait in away["waits"]] == [False, False]


def test_waits_stand_still_while_the_controller_is_away() -> None:
    result = _run(
        fleet.enforce(0),
        fleet.command(0, "dora", "rollout_propose", plan=fleet.plan(rollout_timeout_s=3_600)),
        {"at": 600, "controller": "away"},
        fleet.look("2d"),
        {"at": "3d", "controller": "back"},
        fleet.look("4d"),
    )
    before, during = _at(result, 600)["waits"], _at(result, 2 * 86_400)["waits"]
    assert before == during
    assert [at_s for at_s, _ in _told(result, "wait_timed_out")] == [3 * 86_400 + 3_000]


def test_a_refused_command_is_shown_and_the_run_goes_on() -> None:
    result = _run(fleet.command(1, "zoe", "freeze_declare", role="viewer", id="x"), fleet.look(2))
    [refused] = _at(result, 1)["refused"]
    assert (refused["code"], refused["line"]) == ("forbidden", 1)
    assert _at(result, 2)["freezes"] == []


def test_further_reasons_are_those_of_the_moment() -> None:
    result = _run(
        fleet.enforce(0),
        fleet.facts(1, "a", fleet.launch("a", 1)),
        fleet.command(2, "dora", "freeze_declare", id="x"),
    )
    shown = [next(iter(_at(result, at_s)["overrides"].values()))["also"] for at_s in (1, 2)]
    assert shown == [["build_not_qualified"], ["freeze", "build_not_qualified"]]
    assert len(_told(result, "override_set")) == 1


def test_a_sentence_is_that_of_the_moment_though_the_code_stays() -> None:
    result = _run(
        fleet.enforce(0),
        fleet.facts(1, "a", fleet.launch("a", 1)),
        fleet.rollout(10, waves=[{"percent": 100}]),
    )
    override = next(iter(result["times"][-1]["overrides"].values()))
    assert (override["code"], result["times"][-1]["rollouts"]["k3-rubin-1"]["phase"]) == (
        "wave_not_open",
        "running",
    )
    assert "was not started" not in override["sentence"]


def test_a_rollout_neither_widens_nor_completes_while_its_key_is_in_doubt() -> None:
    doubt = fleet.facts(
        1_500, "odd", fleet.reported("odd", pool=True), *fleet.checks("odd", "failed")
    )
    steps: list[dict[str, Any] | list[dict[str, Any]]] = [
        fleet.enforce(0),
        fleet.pool(1),
        fleet.production(100, 2),
        fleet.rollout(200, waves=[{"count": 1}, {"percent": 100}]),
        fleet.served(1_000, "prod-1", 2),
    ]
    plain = _run(*steps, fleet.baked(2_000, "prod-1"))
    doubtful = _run(*steps, doubt, fleet.baked(2_000, "prod-1"))
    assert len(_told(plain, "wave_opened")) == 2
    assert len(_told(doubtful, "wave_opened")) == 1
    assert doubtful["times"][-1]["rollouts"]["k3-rubin-1"]["phase"] == "running"


def test_a_server_of_an_earlier_launch_is_gone_once_a_new_one_runs() -> None:
    result = _run(
        fleet.enforce(0),
        fleet.pool(1),
        fleet.facts(50, "prod-1", fleet.launch("prod-1", 0, argv_read=False)),
        fleet.facts(
            51, "prod-1", *fleet.server("prod-1", 0, "auto", instance_id="old", mxfp4=True)
        ),
        fleet.rollout(200),
        fleet.facts(1_000, "prod-1", fleet.launch("prod-1", 1)),
        fleet.facts(1_001, "prod-1", *fleet.server("prod-1", 1, fleet.TARGET, instance_id="new")),
        fleet.baked(3_000, "prod-1", instance_id="new"),
        fleet.look(4_000),
    )
    assert _at(result, 51)["alarms"][0]["cause"] == "memory_fallback"
    last = _at(result, 4_000)
    assert last["rollouts"]["k3-rubin-1"]["phase"] == "completed"
    assert last["alarms"] == []


@pytest.mark.parametrize(
    ("interval", "phase"),
    [
        ({}, "completed"),
        ({"failures": 100}, "running"),
        ({"requests": 0}, "running"),
        ({"xids": 1}, "halted"),
    ],
    ids=["served", "failed every request", "no traffic", "an Xid"],
)
def test_a_bake_counts_what_was_served(interval: dict[str, int], phase: str) -> None:
    result = _run(
        fleet.enforce(0),
        fleet.pool(1),
        fleet.production(100, 1),
        fleet.rollout(200),
        fleet.served(1_000, "prod-1", 2),
        fleet.baked(3_000, "prod-1", **interval),
    )
    assert result["times"][-1]["rollouts"]["k3-rubin-1"]["phase"] == phase


@pytest.mark.parametrize(("restarts", "halts"), [(2, False), (3, True)])
def test_a_crash_loop_is_seen_by_its_restarts(restarts: int, *, halts: bool) -> None:
    server = fleet.server("prod-1", 2, fleet.TARGET, restarts=restarts)
    result = _run(
        fleet.enforce(0),
        fleet.pool(1),
        fleet.production(100, 1),
        fleet.rollout(200),
        fleet.served(1_000, "prod-1", 2),
        fleet.facts(1_100, "prod-1", server[0]),
    )
    assert bool(_told(result, "rollout_halted")) is halts


def test_a_rollout_selects_a_unit_by_its_nodes_name() -> None:
    result = _run(
        fleet.enforce(0),
        fleet.pool(1),
        fleet.production(100, 3),
        fleet.rollout(200, select={"units": ["prod-2"]}),
    )
    [(_, opened)] = _told(result, "wave_opened")
    assert [unit.partition(":")[0] for unit in opened["units"]] == ["prod-2"]


def test_an_announced_build_shows_the_keys_that_need_evidence() -> None:
    packages = {name: fleet.BUILD[name] for name in fleet.BUILD if name != "driver_version"}
    result = _run(
        fleet.facts(0, "a", fleet.launch("a", 1)),
        fleet.facts(
            1, "b", fleet.launch("b", 1, build={**fleet.BUILD, "driver_version": "590.44"})
        ),
        fleet.facts(2, "c", fleet.launch("c", 1, gpus=[{"uuid": "GPU-c", "sm": "10.0"}])),
        fleet.command(3, "dora", "build_announce", name="same", packages=packages),
        fleet.command(
            4,
            "dora",
            "build_announce",
            name="next",
            packages={**packages, "flashinfer_version": "0.7.3"},
        ),
        fleet.pool(10),
    )
    last = result["times"][-1]
    seen = set(last["kernel_keys"])
    assert sorted(last["announced"]["same"].values()) == ["qualified", "unknown"]
    assert set(last["announced"]["same"]) < seen
    assert sorted(last["announced"]["next"].values()) == ["unknown", "unknown"]
    assert not set(last["announced"]["next"]) & seen


def test_a_month_of_fifty_nodes_takes_seconds() -> None:
    scenario = fleet.month(nodes=50)
    began = time.monotonic()
    result = runner.run_text(json.dumps(scenario))
    took_s = time.monotonic() - began
    last = result["times"][-1]
    assert last["at_s"] >= 30 * 86_400
    assert last["rollouts"]["k3-rubin-1"]["phase"] == "completed"
    assert sum(one["granted"] for one in last["overrides"].values()) == 50
    assert took_s < MONTH_S_MAX
