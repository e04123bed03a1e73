"""What ships for hosts (systemd, compose, Slurm): run as it stands, and read by the real tools."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
from collections.abc import Callable

import pytest
import yaml
from tests.packaging import conftest, starts

from smgate_agent import config as agent_config, doctor, gate_folder
from smgate_agent.launch import local_rule

OPS = conftest.ROOT / "ops"
K3_SERVICE = (
    "[Service]\nExecStart=/opt/sglang/bin/sglang serve --model-path /models/kimi-k3 --tp-size 8\n"
)
FILES = ["systemd/smgate-gate.conf", "compose/smgate.yaml", "slurm/kimi-k3.sbatch"]


def read(name: str) -> str:
    return (OPS / name).read_text()


def systemd(machine: starts.Machine) -> tuple[starts.Start, list[str]]:
    start = starts.of_unit(K3_SERVICE, read(FILES[0]))
    words = [word.replace("/opt/sglang", str(machine.folder)) for word in start.argv]
    before = starts.of_unit(K3_SERVICE).argv[1:]
    return starts.Start(argv=words, environ={}), before


def compose(_: starts.Machine) -> tuple[starts.Start, list[str]]:
    base, ours = read("compose/compose.yaml"), read(FILES[1])
    return starts.of_compose(base, ours), starts.of_compose(base).argv[3:]


def slurm(machine: starts.Machine) -> tuple[starts.Start, list[str]]:
    """The batch script, with an srun that runs the task of this node alone."""
    programs = {
        "srun": 'while case "$1" in --*) true;; *) false;; esac; do shift; done; exec "$@"',
        "scontrol": '[ "$*" = "show hostnames rubin-[1-2]" ] && printf "rubin-1\\nrubin-2\\n"',
    }
    for name, text in programs.items():
        path = machine.folder / "bin" / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    environ = {
        "SLURM_JOB_NAME": "kimi-k3-a",
        "SLURM_JOB_NODELIST": "rubin-[1-2]",
        "SLURM_NODEID": "1",
        "SLURM_JOB_ID": "77",
        "SLURM_STEP_ID": "0",
    }
    script = machine.folder / "kimi-k3.sbatch"
    script.write_text(starts.GATE.sub(str(machine.gate), read(FILES[2])))
    given = re.search(r"sglang\.launch_server (.*)\Z", read(FILES[2]), re.DOTALL)
    assert given is not None
    words = given[1].replace("\\\n", " ").replace('"$head:20000"', "rubin-1:20000").split()
    start = starts.Start(argv=["bash", str(script)], environ=environ)
    return start, [*words, "--node-rank", "1"]


Stack = Callable[[starts.Machine], tuple[starts.Start, list[str]]]
STACKS = pytest.mark.parametrize("stack", [systemd, compose, slurm])


@STACKS
def test_the_gate_hands_over_to_the_server_with_the_decided_value(
    machine: starts.Machine, stack: Stack
) -> None:
    start, before = stack(machine)
    seen, launch = machine.run_with_agent(start)
    assert seen == [*before, *starts.APPENDED], machine.stderr
    assert launch["argv_read"]
    assert launch["restarter"] == ("external" if stack is slurm else "hook")
    if stack is slurm:
        assert (launch["unit_name"], launch["node_rank"]) == ("kimi-k3-a", 1)


@pytest.mark.parametrize("stack", [systemd, compose])
def test_the_doctor_finds_the_gate_in_front(machine: starts.Machine, stack: Stack) -> None:
    start, _ = stack(machine)
    assert doctor.examine(start.argv) == []


@STACKS
def test_without_agent_or_gate_the_server_starts_as_before(
    machine: starts.Machine, stack: Stack
) -> None:
    start, before = stack(machine)
    assert machine.run(start) == before
    machine.gate.unlink()
    assert machine.run(start) == before
    assert "smgate: no usable launch gate, started without it\n" in machine.stderr


def test_the_drop_in_is_read_by_systemd_without_a_word(tmp_path: pathlib.Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        # A machine without systemd has nobody to ask; what runs is tested above on every machine.
        return
    (tmp_path / "k3.service.d").mkdir()
    unit = K3_SERVICE.replace("/opt/sglang/bin/sglang", "/bin/true")
    (tmp_path / "k3.service").write_text(unit)
    shutil.copy(OPS / FILES[0], tmp_path / "k3.service.d/smgate-gate.conf")
    command = [analyze, "verify", "k3.service"]
    environ = {**os.environ, "SYSTEMD_UNIT_PATH": f"{tmp_path}:"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_agents_unit_opens_the_state_folder_to_its_group_as_the_agent_does() -> None:
    unit = read("systemd/smgate-agent.service")
    (mode,) = re.findall(r"^StateDirectoryMode=(\d+)$", unit, re.MULTILINE)
    assert int(mode, 8) == gate_folder.FOLDER_MODE
    # The folders below have no set-id bit, which the unit forbids to set.
    assert "RestrictSUIDSGID=yes" in unit
    assert not any(mode & 0o6007 for mode in gate_folder.PARTS.values())


@pytest.mark.parametrize("name", FILES)
def test_an_example_says_what_it_needs_and_who_restarts(name: str) -> None:
    page = read(name)
    versions = local_rule.SGLANG_VERSIONS_RUN
    assert f"# Needs: SGLang {versions[0]} to {versions[-1]} (" in page
    declared = re.search(r"^# Restarter: (\w+)", page, re.MULTILINE)
    assert declared is not None
    assert f"--restarter {declared[1]} --" in page


@pytest.mark.parametrize("name", FILES)
def test_the_agents_settings_that_an_example_names_are_ones_it_takes(
    name: str, tmp_path: pathlib.Path
) -> None:
    lines = re.findall(r"^#   (\w+ = .*)$", read(name), re.MULTILINE)
    page = "\n".join(["[[instance]]", 'id = "k3"', *lines, ""])
    if "log" not in page:
        page += 'url = "http://127.0.0.1:30000"\n'
    (tmp_path / "agent.toml").write_text(page)
    agent_config.load(tmp_path / "agent.toml", {})


def test_compose_mounts_the_folders_that_the_gate_uses() -> None:
    mounts = yaml.safe_load(read(FILES[1]))["services"]["sglang"]["volumes"]
    assert mounts == ["/opt/smgate:/opt/smgate:ro", "/run/smgate-agent:/run/smgate-agent"]
