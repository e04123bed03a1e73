"""How the CLI shows what is held, which machines are missed, and how a restore is ended."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest
from tests import cli_fakes
from tests.cli_fakes import Cli, FakeApi

CHANGE = {
    "id": "c36",
    "kind": "held",
    "code": "no_cause",
    "state": "open",
    "sentence": "Rules 2 would tell 2 units something else than rules 1 did.",
    "would": "At the next start 1 unit would get the target, 1 unit would be left to SGLang.",
    "by": None,
    "reason": "",
    "since": "2026-05-04T08:00:00Z",
    "until": "2026-05-11T08:00:00Z",
    "differences": [
        {
            "unit": "gpu-1:0a",
            "before": "marlin",
            "before_code": "no_rollout",
            "after": "flashinfer_mxfp4",
            "after_code": "granted",
        },
        {
            "unit": "gpu-2:0b",
            "before": "marlin",
            "before_code": "no_rollout",
            "after": None,
            "after_code": "explicit_choice",
        },
    ],
    "accepted_by": None,
    "next_step": "smgate change accept c36, or smgate change withdraw c36",
}


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with cli_fakes.serving() as served:
        served.routes["POST /v1/commands"] = (200, {"position": 9, "events": [], "changed": True})
        yield served


@pytest.fixture
def cli(api: FakeApi) -> Cli:
    return Cli(api.url)


def test_a_held_change_shows_what_each_unit_is_told_and_would_be_and_why(
    api: FakeApi, cli: Cli
) -> None:
    api.routes["GET /v1/changes/c36"] = (200, CHANGE | {"position": 40})
    lines = cli("change", "show", "c36").out.splitlines()
    assert lines[0] == "c36: open (held)"
    assert f"Accepting it: {CHANGE['would']}" in lines
    rows = [line.split() for line in lines]
    assert ["gpu-1:0a", "marlin", "no_rollout", "flashinfer_mxfp4", "granted"] in rows
    assert ["gpu-2:0b", "marlin", "no_rollout", "nothing", "explicit_choice"] in rows
    assert "No command and no fact is the cause: the rules themselves changed." in lines
    assert lines[-1] == "-> smgate change accept c36, or smgate change withdraw c36"


def test_machines_that_should_exist_are_sent_from_a_file(
    api: FakeApi, cli: Cli, tmp_path: pathlib.Path
) -> None:
    file = tmp_path / "inventory.yaml"
    file.write_text('nodes:\n  - {name: gpu-1, sm: 10.7}\n  - {name: gpu-2, sm: "10.3"}\n')
    assert cli("fleet", "expect", str(file), "--reason", "inventory").code == 0
    [body] = api.commands
    assert body["type"] == "fleet_expect"
    assert body["nodes"] == [{"name": "gpu-1", "sm": "10.7"}, {"name": "gpu-2", "sm": "10.3"}]


def test_a_machine_without_its_sm_is_refused_with_its_line(
    api: FakeApi, cli: Cli, tmp_path: pathlib.Path
) -> None:
    file = tmp_path / "inventory.yaml"
    file.write_text("nodes:\n  - {name: gpu-1}\n")
    refused = cli("fleet", "expect", str(file), "--reason", "inventory")
    assert refused.code == 2
    assert "inventory.yaml:2" in refused.err
    assert api.requests == []


def test_the_machines_without_an_agent_can_be_listed_alone(api: FakeApi, cli: Cli) -> None:
    api.routes["GET /v1/expected"] = cli_fakes.listed(
        {"node": "gpu-1", "sm": "10.7", "agent": True},
        {"node": "gpu-2", "sm": "10.7", "agent": False},
    )
    assert cli("fleet", "ls", "-o", "name").out.split() == ["gpu-1", "gpu-2"]
    assert cli("fleet", "ls", "--missing", "-o", "name").out.split() == ["gpu-2"]


def test_ending_a_restore_lists_who_is_missing_and_which_units_stand_on_what_is_careful(
    api: FakeApi, cli: Cli
) -> None:
    api.routes["GET /v1/waits"] = cli_fakes.listed(
        {"code": "restore", "sentence": "3 of 60 nodes have not said what they held."},
        {"code": "freeze", "sentence": "A freeze."},
    )
    api.routes["GET /v1/units"] = cli_fakes.listed(
        {"id": "gpu-1:0a", "override": {"code": "held_before_restore"}},
        {"id": "gpu-2:0b", "override": {"code": "granted"}},
    )
    done = cli("db", "restore-finish", "--reason", "back", asked="y\n", terminal=True)
    assert done.code == 0
    assert "3 of 60 nodes" in done.err
    assert "A freeze." not in done.err
    assert "gpu-1:0a" in done.err
    assert "gpu-2:0b" not in done.err
    assert api.commands[0]["type"] == "db_restore_finish"
