"""The example whose ranks wait at SGLang's own launch gate: leader and worker run, as they stand."""

from __future__ import annotations

import concurrent.futures
import pathlib
from typing import Any

import pytest
from tests.launch import several
from tests.packaging import conftest, objects, starts

from smgate_agent.launch import barrier_rule

FOLDER = "examples/lws-barrier"
MODEL = "/models/kimi-k3"
K3 = conftest.ROOT / "tests/fixtures/sglang/k3_config.json"
SERVES = "20000"
Json = dict[str, Any]


class Ranks:
    """The leader's pod and the worker's, each on a machine of its own."""

    def __init__(self, folder: pathlib.Path, gate: pathlib.Path, things: list[Json]) -> None:
        self.machines, self.port = [], str(several.free_port())
        for rank in (0, 1):
            (folder / str(rank)).mkdir()
            machine = starts.Machine(folder / str(rank), gate)
            srt = machine.folder / "site/sglang/srt"
            srt.mkdir()
            (srt / "plugins.py").write_text("def load_plugins(): pass\n")
            (srt / "server_args.py").write_text(several.RESOLVES)
            self.machines.append(machine)
        self.model = folder / "k3"
        self.model.mkdir()
        (self.model / "config.json").write_text(K3.read_text())
        [thing] = things
        self.containers = [pod["containers"][0] for _, pod in objects.pods(thing)]

    def start(self, rank: int) -> list[str]:
        """What this rank's server was given."""
        injected = {**starts.INJECTED["lws"], "LWS_LEADER_ADDRESS": "127.0.0.1"}
        injected["LWS_WORKER_INDEX"] = str(rank)
        found = starts.of_container(self.containers[rank], injected)
        argv = [
            word.replace(MODEL, str(self.model)).replace(SERVES, self.port) for word in found.argv
        ]
        return self.machines[rank].run(starts.Start(argv=argv, environ=found.environ))

    def both(self) -> list[list[str]]:
        """Both at once."""
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            return list(pool.map(self.start, (0, 1)))


@pytest.fixture
def ranks(render: conftest.Render, tmp_path: pathlib.Path, gate: pathlib.Path) -> Ranks:
    return Ranks(tmp_path, gate, render(FOLDER))


@pytest.mark.kubectl
def test_leader_and_worker_wait_for_each_other(ranks: Ranks) -> None:
    said = [seen[-2] for seen in ranks.both()]
    assert said == [barrier_rule.FLAG] * 2, [one.stderr for one in ranks.machines]


@pytest.mark.kubectl
def test_without_the_gate_in_one_pod_both_start_as_before(ranks: Ranks) -> None:
    ranks.machines[1].gate.unlink()
    for container in ranks.containers:
        container["env"].append({"name": "SMGATE_DEADLINE_S", "value": "8"})
    for seen in ranks.both():
        assert barrier_rule.FLAG not in seen


@pytest.mark.kubectl
def test_the_probe_waits_as_long_as_the_barrier_does(render: conftest.Render) -> None:
    def patience_s(folder: str) -> int:
        [thing] = render(folder)
        [leader, _] = [pod["containers"][0] for _, pod in objects.pods(thing)]
        probe = leader["startupProbe"]
        return int(probe["periodSeconds"]) * int(probe["failureThreshold"])

    [thing] = render(FOLDER)
    environs = [
        {one["name"]: one["value"] for one in pod["containers"][0]["env"]}
        for _, pod in objects.pods(thing)
    ]
    assert environs[0] == environs[1]
    timeout_s = int(environs[0]["SMGATE_GATE_TIMEOUT_S"])
    assert patience_s(FOLDER) - patience_s("examples/lws") >= timeout_s
