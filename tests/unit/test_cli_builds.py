"""`smgate build`: what a ruling and an acceptance send, and how waiting for a key ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests import cli_fakes
from tests.cli_fakes import Cli, FakeApi

KEY = "3fa91c0d2b7e4a55"
OTHER = "81d2c0aa93be6f17"
DONE = (200, {"position": 812, "events": [], "changed": True})


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with cli_fakes.serving() as served:
        served.routes["POST /v1/commands"] = DONE
        yield served


@pytest.fixture
def cli(api: FakeApi) -> Cli:
    return Cli(api.url)


def builds(*rows: dict[str, Any], announced: tuple[dict[str, Any], ...] = ()) -> cli_fakes.Answer:
    return 200, {"items": list(rows), "announced": list(announced), "position": 7}


def standing(name: str) -> cli_fakes.Answer:
    return builds({"key": OTHER, "standing": "qualified"}, {"key": KEY, "standing": name})


@pytest.mark.parametrize(("last", "code"), [("qualified", 0), ("failed", 6)])
def test_a_kernel_key_is_waited_for_until_it_is_settled(
    api: FakeApi, cli: Cli, last: str, code: int
) -> None:
    api.routes["GET /v1/builds"] = [standing("unknown"), standing("suspect"), standing(last)]
    result = cli("build", "wait", KEY, "--interval", "5")
    assert result.code == code
    _, *lines = result.out.splitlines()
    assert [line.split()[3] for line in lines] == ["unknown", "suspect", last]


@pytest.mark.parametrize("forever", ["unknown", "suspect"])
def test_waiting_for_a_kernel_key_ends_by_the_clock(api: FakeApi, cli: Cli, forever: str) -> None:
    api.routes["GET /v1/builds"] = standing(forever)
    before_us = cli.clock.now_us()
    result = cli("build", "wait", KEY, "--timeout", "60")
    assert result.code == 7
    assert cli.clock.now_us() - before_us <= 60_000_000


def test_a_key_that_an_announced_image_will_make_is_waited_for(api: FakeApi, cli: Cli) -> None:
    image = {"name": "k3:42", "kernel_keys": [{"key": KEY, "standing": "unknown"}]}
    api.routes["GET /v1/builds"] = [builds(announced=(image,)), standing("qualified")]
    assert cli("build", "wait", KEY).code == 0
    assert len(api.sent("GET /v1/builds")) == 2


def test_a_key_that_nobody_knows_is_not_waited_for(api: FakeApi, cli: Cli) -> None:
    api.routes["GET /v1/builds"] = standing("unknown")
    result = cli("build", "wait", KEY[:-1] + "6")
    assert result.code == 3
    assert f"Did you mean {KEY}" in result.err


def test_a_ruling_names_the_node_or_its_gpus(api: FakeApi, cli: Cli) -> None:
    rule = ("build", "rule", KEY, "--reason", "looked")
    assert cli(*rule, "--node", "p4", "--as", "node-fault", "--yes").code == 0
    assert cli(*rule, "--gpus", "GPU-1,GPU-2", "--as", "confirmed", "--yes").code == 0
    one, two = api.commands
    assert one.items() >= {"type": "build_rule", "kernel_key": KEY, "node": "p4"}.items()
    assert (one["ruling"], two["ruling"]) == ("node_fault", "confirmed")
    assert two["gpu_uuids"] == ["GPU-1", "GPU-2"]
    assert "gpu_uuids" not in one
    assert "node" not in two
    assert cli(*rule, "--as", "cleared").code == 2
    assert cli(*rule, "--as", "cleared", "--node", "p4", "--gpus", "GPU-1").code == 2
    assert cli(*rule, "--as", "whatever", "--node", "p4").code == 2


def test_an_acceptance_names_what_the_key_is_like(api: FakeApi, cli: Cli) -> None:
    assert cli("build", "accept", KEY, "--like", OTHER, "--reason", "r", "--yes").code == 0
    (sent,) = api.commands
    assert (sent["type"], sent["kernel_key"], sent["like"]) == ("build_accept", KEY, OTHER)
    assert cli("build", "accept", KEY, "--reason", "r").code == 2
