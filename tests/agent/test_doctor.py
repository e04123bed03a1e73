"""Command lines that would keep an override from SGLang, and ones that would not."""

import json
import os
import tempfile
from pathlib import Path

import pytest
from tests.agent.fake_proc import Proc

from smgate_agent import cli, doctor, doctor_report, gate_folder, scan

GATE = ("smgate-agent", "launch", "--")
SERVE = ("sglang", "serve", "--model-path", "/m")
SECRET = "sk-PLANTED-in-argv"


def codes(argv, **how):
    return [finding.code for finding in doctor.examine(argv, **how)]


@pytest.mark.parametrize(
    "argv",
    [
        (*GATE, *SERVE),
        (
            "/usr/bin/env",
            "python3",
            "/smgate/smgate-gate.pyz",
            "launch",
            "--unit",
            "u",
            "--",
            *SERVE,
        ),
        (
            "python3",
            "-m",
            "smgate_agent.cli",
            "launch",
            "--",
            "python3",
            "-m",
            "sglang.launch_server",
        ),
        (*GATE, "numactl", "-N", "0", *SERVE),
        ("bash", "-lc", "cd /x && exec smgate-agent launch -- sglang serve --model-path /m"),
        (*GATE, *SERVE, "--moe-runner-backend", "auto"),
        (*GATE, *SERVE, "--config", "/k3.yaml"),
        (*GATE, *SERVE, "--nnodes", "2", "--dist-init-addr", "k3-0.k3:20000"),
        (
            *("smgate-agent", "launch", "--unit", "k3", "--"),
            *(*SERVE, "--nnodes", "2", "--dist-init-addr", "10.0.0.1:20000"),
        ),
    ],
)
def test_a_command_that_an_override_reaches_has_no_finding(argv):
    assert codes(argv) == []


DEFEATED = {
    "gate_missing": SERVE,
    "gate_without_command": ("smgate-agent", "launch"),
    "shell_string": (*GATE, "bash", "-c", "exec sglang serve --model-path /m"),
    "shell_unreadable": ("bash", "-c", "smgate-agent launch -- sglang serve 'x"),
    "sglang_not_found": (*GATE, "/opt/serve.sh", "--model", "k3"),
    "double_dash": (*GATE, *SERVE, "--", "--tp-size", "8"),
    "empty_argument": (*GATE, *SERVE, ""),
    "variable_not_expanded": (*GATE, *SERVE, "--moe-runner-backend", "$(SMGATE_MOE_RUNNER)"),
    "flag_and_value_in_one": (*GATE, *SERVE, "--moe-runner-backend marlin"),
    "config_twice": (*GATE, *SERVE, "--config", "a.yaml", "--config", "b.yaml"),
    "config_without_file": (*GATE, *SERVE, "--config"),
    "runner_explicit": (*GATE, *SERVE, "--moe-runner-backend=flashinfer_mxfp4"),
}


@pytest.mark.parametrize("code", DEFEATED)
def test_what_defeats_an_override_is_named(code):
    found = {one.code: one for one in doctor.examine(DEFEATED[code])}
    assert found[code].defeats
    assert found[code].sentence.endswith(".")
    assert found[code].next_step


@pytest.mark.parametrize(
    ("code", "argv"),
    [
        (
            "shell_without_exec",
            ("bash", "-c", "smgate-agent launch -- sglang serve --model-path m"),
        ),
        ("entrypoint_in_front", (*GATE, "/opt/nvidia/nvidia_entrypoint.sh", *SERVE)),
        ("config_ignored", (*GATE, *SERVE, "--config=/k3.yaml")),
        ("a2a_explicit", (*GATE, *SERVE, "--moe-a2a-backend", "deepep")),
        ("ray", (*GATE, *SERVE, "--use-ray")),
        ("rendezvous_missing", (*GATE, *SERVE, "--nnodes", "2")),
        ("rendezvous_is_ip", (*GATE, *SERVE, "--nnodes=2", "--dist-init-addr", "10.0.0.1:20000")),
        ("rendezvous_is_ip", (*GATE, *SERVE, "--nnodes=2", "--dist-init-addr", "[fd00::1]:20000")),
    ],
)
def test_what_somebody_should_look_at_does_not_defeat(code, argv):
    (found,) = doctor.examine(argv)
    assert (found.code, found.defeats) == (code, False)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (("--config", "/run/k3.yaml"), []),
        ((), ["config_missing"]),
        (("--config=/run/k3.yaml",), ["config_ignored"]),
        (("--config", "/k3.yaml", "--moe-runner-backend", "auto"), ["runner_beats_file"]),
        (("--config", "/k3.yaml", "--moe-runner-backend", "marlin"), ["runner_explicit"]),
    ],
)
def test_a_file_as_the_sink_needs_other_things(more, expected):
    found = doctor.examine((*SERVE, *more), sink="config")
    assert [one.code for one in found] == expected
    assert all(one.defeats for one in found)


def test_a_command_inside_a_string_is_looked_at_too():
    script = f"export X=1; exec smgate-agent launch -- sglang serve --api-key {SECRET} --config=a"
    found = doctor.examine(("/bin/sh", "-ec", script))
    assert [one.code for one in found] == ["config_ignored"]
    assert SECRET not in repr(found)


def test_a_script_of_several_lines_is_read_to_its_last_command():
    script = "export X=1\nexec smgate-agent launch -- \\\n  sglang serve \\\n  --config=a\n"
    assert codes(("bash", "-c", script)) == ["config_ignored"]


def test_a_script_that_gets_the_command_is_the_gate_only_if_it_names_it():
    server = ("sglang", "serve", "--model-path", "m")
    script = '$gate --help | grep -q usage && exec $gate -- "$@"; exec "$@"'
    assert "gate_missing" in codes(("sh", "-c", script, "x", *server))
    ours = f'gate="python3 -I /x/smgate-gate.pyz launch"; {script}'
    assert codes(("numactl", "-N0", "sh", "-c", ours, "x", *server)) == []
    assert codes(("sh", "-c", ours, "x", *server, "--config=a")) == ["config_ignored"]


def test_any_depth_of_shells_ends():
    script = "sglang serve"
    for _ in range(12):
        script = f"bash -c {json.dumps(script)}"
    assert "gate_missing" in codes(("bash", "-c", script))


def test_a_running_server_of_the_gate_is_not_blamed_for_the_gates_own_flag(tmp_path):
    argv = ("python3", "/usr/bin/sglang", "serve", "--moe-runner-backend", "marlin")
    assert codes(argv, gated=True) == []
    assert codes(argv) == ["gate_missing", "runner_explicit"]


def test_servers_that_run_are_looked_at(tmp_path):
    (tmp_path / "proc").mkdir()
    proc = Proc(tmp_path / "proc")
    proc.process(40, "python3", "-m", "sglang.launch_server", "--api-key", SECRET)
    report = doctor_report.running(
        tmp_path, socket=tmp_path / "agent.sock", sink="gate", proc=proc.root
    )
    assert [(one["what"], one["findings"][0]["code"]) for one in report["items"]] == [
        ("pid 40", "gate_missing")
    ]
    assert doctor_report.defeated(report)
    assert SECRET not in json.dumps(report)


STRANGER = 61003


@pytest.fixture
def node(tmp_path):
    """A state folder and a socket of our group, below folders that everybody passes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "state").mkdir(mode=0o710)
        gate_folder.prepare(folder / "state")
        (folder / "agent.sock").touch()
        (folder / "agent.sock").chmod(0o660)
        (tmp_path / "proc").mkdir()
        yield folder, Proc(tmp_path / "proc")


def access_codes(folder, proc):
    report = doctor_report.running(
        folder / "state", socket=folder / "agent.sock", sink="gate", proc=proc.root
    )
    (item,) = report["items"]
    return {one["code"]: one for one in item["findings"] if one["code"] != "gate_missing"}


def test_a_server_whose_user_reaches_neither_agent_nor_folder_is_named_with_what_helps(node):
    folder, proc = node
    proc.process(40, *("python3", "-m", "sglang.launch_server"), user=STRANGER)
    found = access_codes(folder, proc)
    assert {code: one["defeats"] for code, one in found.items()} == {
        "gate_cannot_ask": True,
        "state_folder_closed": False,
    }
    assert f"uid {STRANGER}" in found["gate_cannot_ask"]["sentence"]
    group = (folder / "agent.sock").group()
    assert f"usermod -aG {group} " in found["gate_cannot_ask"]["next_step"]


def test_a_server_whose_user_is_in_the_agents_group_has_no_finding_until_something_is_closed(node):
    folder, proc = node
    argv = ("python3", "-m", "sglang.launch_server")
    proc.process(40, *argv, user=STRANGER, groups=f"5 {os.getegid()}")
    assert access_codes(folder, proc) == {}
    (folder / "state/launches").chmod(0o700)
    found = access_codes(folder, proc)
    assert list(found) == ["state_folder_closed"]
    assert str(folder / "state/launches") in found["state_folder_closed"]["sentence"]
    (folder / "state").chmod(0o700)
    assert "and 6 more" not in str(access_codes(folder, proc))
    assert "and 5 more" in str(access_codes(folder, proc))


def test_of_a_server_in_a_container_or_of_an_unknown_user_nothing_is_said(node):
    folder, proc = node
    proc.process(40, *("python3", "-m", "sglang.launch_server"), user=STRANGER, mnt="mnt:[2]")
    assert access_codes(folder, proc) == {}
    proc.process(40, *("python3", "-m", "sglang.launch_server"))
    assert access_codes(folder, proc) == {}


def test_a_machine_that_hides_its_processes_is_never_said_to_run_none(tmp_path):
    report = doctor_report.running(
        tmp_path, socket=tmp_path / "agent.sock", sink="gate", proc=tmp_path / "nowhere"
    )
    assert "more may run (proc_unreadable)" in "\n".join(doctor_report.lines(report))


def test_the_command_line_has_its_exit_codes_and_json(tmp_path, capsys):
    own = ("doctor", "--state-dir", str(tmp_path))
    assert cli.main([*own, "--", *GATE, *SERVE]) == 0
    assert "an override reaches SGLang" in capsys.readouterr().out
    assert cli.main([*own, "-o", "json", "--", *SERVE, "--api-key", SECRET]) == 3
    out = capsys.readouterr().out
    assert json.loads(out)["items"][0]["findings"][0]["code"] == "gate_missing"
    assert SECRET not in out
    assert cli.main([*own, "--sink", "config", "--", *SERVE]) == 3
    assert "defeats config_missing" in capsys.readouterr().out
    assert cli.main(own) in {0, 3}
    assert scan.look().servers or "no server seen" in capsys.readouterr().out
