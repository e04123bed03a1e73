"""--watch: one line per change for a program, a picture for a person, and how it ends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests import cli_fakes
from tests.cli_fakes import Cli, FakeApi


def rollout(phase: str, **more: Any) -> cli_fakes.Answer:
    return 200, {"id": "r-1", "phase": phase, "gate": "k3", "sm": "10.7", "waves": [], **more}


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with cli_fakes.serving() as served:
        yield served


@pytest.fixture
def cli(api: FakeApi) -> Cli:
    return Cli(api.url)


@pytest.mark.parametrize(("phase", "exit_code"), [("completed", 0), ("halted", 6), ("aborted", 6)])
def test_a_rollout_is_watched_to_its_end(
    api: FakeApi, cli: Cli, phase: str, exit_code: int
) -> None:
    api.routes["GET /v1/rollouts/r-1"] = [
        rollout("running"),
        rollout("running"),
        rollout("running", in_flight=2),
        rollout(phase),
    ]
    before_us = cli.clock.now_us()
    result = cli("rollout", "get", "r-1", "--watch", "--interval", "5")
    assert result.code == exit_code
    header, *lines = result.out.splitlines()
    assert header.split()[:3] == ["TIME", "ROLLOUT", "PHASE"]
    assert [line.split()[2] for line in lines] == ["running", "running", phase]
    assert cli.clock.now_us() - before_us == 15_000_000


def test_without_watch_a_halted_rollout_is_only_shown(api: FakeApi, cli: Cli) -> None:
    api.routes["GET /v1/rollouts/r-1"] = rollout("halted")
    assert cli("rollout", "get", "r-1").code == 0


def test_a_watch_has_an_end_by_the_clock(api: FakeApi, cli: Cli) -> None:
    api.routes["GET /v1/rollouts/r-1"] = rollout("running")
    before_us = cli.clock.now_us()
    result = cli("rollout", "get", "r-1", "-w", "--timeout", "11")
    assert result.code == 7
    assert cli.clock.now_us() - before_us <= 11_000_000
    assert "--timeout" in result.err


def test_only_rows_that_differ_are_told_again(api: FakeApi, cli: Cli) -> None:
    one, two = {"id": "a", "severity": "block"}, {"id": "b", "severity": "block"}
    api.routes["GET /v1/issues"] = [
        cli_fakes.listed(one, two),
        cli_fakes.listed(one, {**two, "severity": "info"}),
        cli_fakes.listed(one),
    ]
    watch = ("issue", "ls", "-w", "--timeout", "5", "--no-headers")
    lines = [line.split(maxsplit=1)[1] for line in cli(*watch).out.splitlines()]
    assert [" ".join(line.split()[:2]) for line in lines] == [
        "a block",
        "b block",
        "b info",
        "b gone",
    ]
    api.routes["GET /v1/issues"] = [cli_fakes.listed(one), cli_fakes.listed(one, two)]
    out = cli(*watch, "-o", "jsonl").out
    assert [json.loads(line) for line in out.splitlines()] == [one, two]


def test_a_terminal_gets_a_new_picture_each_time(api: FakeApi, cli: Cli) -> None:
    cli.environ["TERM"] = "xterm"
    api.routes["GET /v1/issues"] = cli_fakes.listed({"id": "a"})
    drawn = cli("issue", "ls", "-w", "--timeout", "5", terminal=True)
    assert drawn.out.count("\x1b[H\x1b[2J") == 3
    cli.environ["TERM"] = "dumb"
    assert "\x1b" not in cli("issue", "ls", "-w", "--timeout", "5", terminal=True).out


def test_a_controller_that_goes_away_is_waited_for(api: FakeApi, cli: Cli) -> None:
    gone = (0, cli_fakes.HANG_UP)
    api.routes["GET /v1/rollouts/r-1"] = [
        rollout("running"),
        *[gone] * 8,
        rollout("completed"),
    ]
    result = cli("rollout", "get", "r-1", "-w")
    assert result.code == 0
    assert result.err.count("Still trying") == 1


def test_a_document_cannot_be_watched(api: FakeApi, cli: Cli) -> None:
    for shape in ("json", "yaml"):
        result = cli("unit", "ls", "-w", "-o", shape)
        assert result.code == 2
        assert "jsonl" in result.err
    assert api.requests == []
