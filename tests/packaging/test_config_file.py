"""The example whose init container makes the file of --config: run, and it never fails a pod."""

from __future__ import annotations

import pathlib
import re
import subprocess
from typing import Any

import pytest
import yaml
from tests.packaging import conftest, objects, starts
from tests.packaging.test_examples import BREAK

from smgate_agent.launch import handover, local_rule

FOLDER = "examples/config-file"
Json = dict[str, Any]


def parts(render: conftest.Render) -> tuple[Json, str]:
    """The pod, and the operator's own file."""
    things = {thing["kind"]: thing for thing in render(FOLDER)}
    [(_, pod)] = objects.pods(things["Deployment"])
    return pod, things["ConfigMap"]["data"]["sglang.yaml"]


def made(render: conftest.Render, machine: starts.Machine) -> str:
    """What the init container leaves for the server; it ended well."""
    pod, own = parts(render)
    [init] = pod["initContainers"]
    for name in ("config", "run"):
        (machine.folder / name).mkdir(exist_ok=True)
    (machine.folder / "config/sglang.yaml").write_text(own)
    script = init["command"][2].replace("/config/sglang", f"{machine.folder}/config/sglang")
    script = script.replace("/run/smgate-pod", f"{machine.folder}/run")
    script = starts.GATE.sub(str(machine.gate), script)
    done = subprocess.run(
        [*init["command"][:2], script],
        env=machine.environ,
        cwd=machine.folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return (machine.folder / "run/sglang.yaml").read_text()


@pytest.mark.kubectl
def test_the_file_is_the_operators_own_with_the_decided_value(
    render: conftest.Render, machine: starts.Machine
) -> None:
    _, own = parts(render)
    with machine.agent() as agent:
        text = made(render, machine)
    assert yaml.safe_load(text) == {
        **yaml.safe_load(own),
        handover.FLAG.removeprefix("--"): starts.APPENDED[1],
    }
    [launch] = agent.launches()
    assert launch["restarter"] == "external"


@pytest.mark.kubectl
def test_without_an_agent_it_is_the_operators_own(
    render: conftest.Render, machine: starts.Machine
) -> None:
    assert made(render, machine) == parts(render)[1]


@pytest.mark.kubectl
@pytest.mark.parametrize("how", BREAK)
def test_with_a_broken_gate_it_is_the_operators_own(
    render: conftest.Render, machine: starts.Machine, how: str
) -> None:
    BREAK[how](machine.gate)
    assert made(render, machine) == parts(render)[1]


@pytest.mark.kubectl
def test_the_server_reads_that_file_and_has_the_gpus_of_the_container_that_made_it(
    render: conftest.Render,
) -> None:
    pod, _ = parts(render)
    [init], [server] = pod["initContainers"], pod["containers"]
    assert server["args"] == ["--config", "/run/smgate-pod/sglang.yaml"]
    assert (init["image"], init["resources"]) == (server["image"], server["resources"])
    for container in (init, server):
        mounts = {one["mountPath"]: one["name"] for one in container["volumeMounts"]}
        assert mounts["/run/smgate-pod"] == "smgate-pod"
        assert mounts["/config"] == "config"
    volumes = {one["name"]: one for one in pod["volumes"]}
    assert volumes["smgate"]["configMap"]["optional"] is True
    assert volumes["smgate-run"]["hostPath"]["type"] == "DirectoryOrCreate"


def test_it_says_what_it_needs_and_who_restarts() -> None:
    page = (pathlib.Path(conftest.SHIPPED) / FOLDER / "smgate.yaml").read_text()
    versions = local_rule.SGLANG_VERSIONS_RUN
    assert f"# Needs: SGLang {versions[0]} to {versions[-1]} (" in page
    assert re.search(r"^# Restarter: external\. ", page, re.MULTILINE)
