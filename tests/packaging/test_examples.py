"""Every example's command line, run: the gate hands over, and without it the server starts too."""

from __future__ import annotations

import pathlib
import re
import shlex
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from tests.packaging import conftest, objects, starts

from smgate_agent import doctor
from smgate_agent.launch import local_rule, options

OTHERS = ("examples/config-file", "examples/lws-barrier")
EXAMPLES = sorted(
    folder.removeprefix("examples/")
    for folder in conftest.KUSTOMIZATIONS
    if folder.startswith("examples/") and folder not in OTHERS
)
"""Those with the gate in front of the command; the others have their own tests."""
FORMS = ["deployment", "dynamo", "llm-d"]
"""One for each way to write the prefix: a shell, Python, a function in a script."""
UNITS = {
    "lws": f"lws:{starts.INJECTED['lws']['LWS_LEADER_ADDRESS']}",
    "rbg": f"rbg:{starts.INJECTED['rbg']['RBG_LWP_LEADER_ADDRESS']}",
    "llm-d": "kimi-k3-0.kimi-k3:20000",
}
WORKER_SET = "/spec/leaderWorkerTemplate"
SHAPES = {
    "deployment": ("apps/v1", "Deployment", ["/spec/template/spec"]),
    "dynamo": (
        "nvidia.com/v1beta1",
        "DynamoGraphDeployment",
        ["/spec/components/0/podTemplate/spec"],
    ),
    "llm-d": ("apps/v1", "StatefulSet", ["/spec/template/spec"]),
    "lws": (
        "leaderworkerset.x-k8s.io/v1",
        "LeaderWorkerSet",
        [f"{WORKER_SET}/leaderTemplate/spec", f"{WORKER_SET}/workerTemplate/spec"],
    ),
    "ome": ("ome.io/v1beta1", "ClusterServingRuntime", ["/spec/engineConfig"]),
    "rbg": (
        "workloads.x-k8s.io/v1alpha2",
        "RoleBasedGroup",
        ["/spec/roles/0/leaderWorkerPattern/template/spec"],
    ),
}
"""Version and kind, and where the stack's own controller looks for pods."""
BREAK: dict[str, Callable[[pathlib.Path], object]] = {
    "missing": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "half of it": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "a damaged byte": lambda path: path.write_bytes(_damaged(path.read_bytes())),
    "another text": lambda path: path.write_text("not found\n"),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


def _damaged(archive: bytes) -> bytes:
    middle = archive.index(b"smgate_agent/launch/gate.py") + 200
    return archive[:middle] + bytes([archive[middle] ^ 0xFF]) + archive[middle + 1 :]


Container = dict[str, Any]


def containers(things: list[Any]) -> list[Container]:
    """The containers that run SGLang."""
    return [
        container
        for thing in things
        for _, pod in objects.pods(thing)
        for container in pod["containers"]
        if "sglang" in str(container)
    ]


def as_it_was(folder: str) -> list[starts.Start]:
    """How the stack started its servers before."""
    things = yaml.safe_load_all((conftest.SHIPPED / "examples" / folder / "stack.yaml").read_text())
    return [starts.of_container(one, starts.INJECTED[folder]) for one in containers(list(things))]


def as_it_is(render: conftest.Render, folder: str) -> list[starts.Start]:
    """How it starts them behind the gate."""
    return [
        starts.of_container(one, starts.INJECTED[folder])
        for one in containers(render(f"examples/{folder}"))
    ]


@pytest.mark.kubectl
@pytest.mark.parametrize("folder", EXAMPLES)
def test_the_gate_hands_over_to_the_server_with_the_decided_value(
    render: conftest.Render, machine: starts.Machine, folder: str
) -> None:
    assert as_it_was(folder)
    for before, now in zip(as_it_was(folder), as_it_is(render, folder), strict=True):
        seen, launch = machine.run_with_agent(now)
        assert seen == [*machine.run(before), *starts.APPENDED], machine.stderr
        assert (launch["restarter"], launch["argv_read"]) == ("external", True)
        if folder in UNITS:
            assert (launch["nnodes"], launch["node_rank"]) == (2, 1)
            assert UNITS[folder] == (launch["workload"] or launch["rendezvous"])


@pytest.mark.kubectl
@pytest.mark.parametrize("folder", EXAMPLES)
def test_the_doctor_finds_the_gate_in_front_and_misses_it_where_there_is_none(
    render: conftest.Render, folder: str
) -> None:
    for before, now in zip(as_it_was(folder), as_it_is(render, folder), strict=True):
        assert doctor.examine(now.argv) == []
        assert "gate_missing" in [finding.code for finding in doctor.examine(before.argv)]


@pytest.mark.kubectl
@pytest.mark.parametrize("folder", EXAMPLES)
def test_without_an_agent_the_server_starts_as_before(
    render: conftest.Render, machine: starts.Machine, folder: str
) -> None:
    for before, now in zip(as_it_was(folder), as_it_is(render, folder), strict=True):
        assert machine.run(now) == machine.run(before)


@pytest.mark.kubectl
@pytest.mark.parametrize("folder", EXAMPLES)
def test_without_the_gate_the_server_starts_as_before(
    render: conftest.Render, machine: starts.Machine, folder: str
) -> None:
    machine.gate.unlink()
    for before, now in zip(as_it_was(folder), as_it_is(render, folder), strict=True):
        assert machine.run(now) == machine.run(before)


@pytest.mark.kubectl
@pytest.mark.parametrize("how", BREAK)
@pytest.mark.parametrize("folder", FORMS)
def test_a_broken_gate_never_keeps_a_server_from_starting(
    render: conftest.Render, machine: starts.Machine, folder: str, how: str
) -> None:
    BREAK[how](machine.gate)
    [before], [now] = as_it_was(folder), as_it_is(render, folder)
    assert machine.run(now) == machine.run(before)


def in_double_quotes(word: str) -> str:
    return '"' + re.sub(r'([\\"$`])', r"\\\1", word) + '"'


@pytest.mark.kubectl
@pytest.mark.parametrize("quote", [shlex.quote, in_double_quotes])
def test_dynamos_operator_can_put_the_command_into_a_shell(
    render: conftest.Render, machine: starts.Machine, quote: Callable[[str], str]
) -> None:
    """It does so where a node's rank is to be counted: every word quoted, its own flags behind."""
    [now] = as_it_is(render, "dynamo")
    flags = "--dist-init-addr kimi-k3-0.kimi-k3:29500 --nnodes 2 --node-rank $((RANK + 1))"
    line = f"exec {' '.join(quote(word) for word in now.argv)} {flags}"
    inside = starts.Start(argv=["sh", "-c", line], environ={"RANK": "0"})
    seen, launch = machine.run_with_agent(inside)
    assert seen[-4:] == ["--node-rank", "1", *starts.APPENDED]
    assert (launch["nnodes"], launch["node_rank"]) == (2, 1)
    assert launch["rendezvous"] == "kimi-k3-0.kimi-k3:29500"


@pytest.mark.kubectl
@pytest.mark.parametrize("folder", EXAMPLES)
def test_nothing_of_ours_can_keep_a_pod_from_starting_or_runs_beside_the_server(
    render: conftest.Render, folder: str
) -> None:
    [before] = yaml.safe_load_all(
        (conftest.SHIPPED / "examples" / folder / "stack.yaml").read_text()
    )
    [now] = render(f"examples/{folder}")
    for (_, was), (_, pod) in zip(objects.pods(before), objects.pods(now), strict=True):
        assert "initContainers" not in pod
        assert len(pod["containers"]) == len(was["containers"])
        for volume in pod["volumes"][len(was["volumes"]) :]:
            # A folder of the host is made if there is none; a ConfigMap may be missing.
            source = volume.get("configMap", {}).get("optional") or volume["hostPath"]["type"]
            assert source in (True, "DirectoryOrCreate"), volume
        mounted = {one["mountPath"]: one["name"] for one in pod["containers"][0]["volumeMounts"]}
        hosts = {one["name"]: one.get("hostPath", {}).get("path") for one in pod["volumes"]}
        assert hosts[mounted["/smgate"]] is None
        for path in (
            pathlib.PurePath(options.AGENT_SOCKET).parent,
            f"{options.STATE_DIR}/launches",
        ):
            assert hosts[mounted[str(path)]] == str(path)


@pytest.mark.kubectl
@pytest.mark.parametrize("folder", EXAMPLES)
def test_a_stack_finds_its_pods_where_it_looks_for_them(
    render: conftest.Render, folder: str
) -> None:
    [thing] = render(f"examples/{folder}")
    found = (thing["apiVersion"], thing["kind"], [path for path, _ in objects.pods(thing)])
    assert found == SHAPES[folder]
    for model in thing["spec"].get("supportedModelFormats", ()):
        assert {"modelFramework", "modelFormat"} <= set(model), "OME takes none without"


@pytest.mark.parametrize("folder", EXAMPLES)
def test_an_example_says_what_it_needs_and_who_restarts(folder: str) -> None:
    page = (conftest.SHIPPED / "examples" / folder / "smgate.yaml").read_text()
    versions = local_rule.SGLANG_VERSIONS_RUN
    assert f"# Needs: SGLang {versions[0]} to {versions[-1]} (" in page
    assert re.search(r"^# Restarter: external\. ", page, re.MULTILINE)
