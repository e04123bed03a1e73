"""The gate becomes the command: same process, arguments and environment, whatever they are."""

import json
import os
import signal
import subprocess
import sys

import pytest


def test_the_command_keeps_pid_argv_environment_folder_and_files(node):
    odd = ["serve", "--model-path", "", "a b", "--x=ü", "--", "-", "$(HOME)", "line\nbreak"]
    environ = {"EMPTY": "", "ODD": "ü=\n ;", "SMGATE_UNIT": "unit-7", "LC_ALL": ""}
    seen = node.launch("sglang", *odd, environ=environ)
    assert seen["argv"] == [str(node.command), *odd]
    given = {**node.environ, **environ}
    # The stand-in is Python too and may set LC_CTYPE for itself, but not in what exec gave it.
    assert sorted(seen["environ"]) == sorted(f"{name}={value}" for name, value in given.items())
    assert seen["cwd"] == str(node.folder)
    assert len(seen["fds"]) == 3, seen["fds"]  # stdin, stdout, stderr
    assert seen["children"] == []


def test_bytes_that_are_no_text_pass_through(node):
    raw = b"\xff\xfe-not-utf8"
    process = subprocess.run(
        [sys.executable, "-I", node.archive, "launch", "--quiet", "--", "/bin/echo", "-n", raw],
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        check=True,
    )
    assert (process.stdout, process.stderr) == (raw, b"")


def test_signals_are_as_they_were_before_the_gate(node):
    direct = subprocess.run(
        ["sglang", "serve"], executable=node.command, env=node.environ, check=True,
        capture_output=True,
    )  # fmt: skip
    assert direct.returncode == 0
    before = json.loads(node.dump.read_text())
    seen = node.launch("sglang", "serve")
    assert (seen["ignored"], seen["blocked"]) == (before["ignored"], before["blocked"])


def test_an_ignored_hangup_stays_ignored(node):
    node.launch("sglang", "serve")
    plain = int(json.loads(node.dump.read_text())["ignored"], 16)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        seen = node.launch("sglang", "serve")
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    assert int(seen["ignored"], 16) == plain | 1 << (signal.SIGHUP - 1)


@pytest.mark.parametrize(
    ("argv", "status"), [(["/no/such/command"], 127), (["/etc/passwd"], 126), ([""], 127)]
)
def test_a_command_that_cannot_start_ends_as_in_a_shell(node, argv, status):
    process = subprocess.run(
        [sys.executable, "-I", node.archive, "launch", "--", *argv],
        env=node.environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert process.returncode == status
    assert "Traceback" not in process.stderr


def test_without_a_command_it_says_how_to_use_it(node):
    process = subprocess.run(
        [sys.executable, "-I", node.archive, "launch", "--quiet"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert process.returncode == 2
    assert "launch [options] -- COMMAND" in process.stderr


@pytest.mark.parametrize(
    "options",
    [
        ["--deadline-s", "soon"],
        ["--deadline-s", "nan"],
        ["--deadline-s", "-1"],
        ["--no-such-option", "hunter2"],
        ["--on-doubt", "panic"],
        ["--deadline-s", "0"],
        ["--unit", "not a name"],
        ["--state-dir", "/proc/1/nothing"],
        ["--state-dir", "/dev/null"],
        ["--credential", "/dev/zero"],
    ],
)
def test_bad_options_never_keep_the_command_from_starting(node, options):
    seen = node.launch("sglang", "serve", "--model-path", "x", options=options)
    assert seen["argv"][1:] == ["serve", "--model-path", "x"]
    assert node.stderr.count("\n") == 1
    assert "hunter2" not in node.stderr


def test_bad_settings_in_the_environment_never_keep_the_command_from_starting(node):
    seen = node.launch(environ={"SMGATE_DEADLINE_S": "later", "SMGATE_ON_DOUBT": "panic"})
    assert seen["argv"][1] == "serve"


def test_quiet_says_nothing(node):
    node.launch(options=["--quiet"])
    assert node.stderr == ""


def test_equal_sources_build_equal_archives(archive, tmp_path, node):
    assert os.access(archive, os.X_OK)
    head = archive.read_bytes()[:23]
    assert head == b"#!/usr/bin/env python3\n"
    direct = subprocess.run(
        [archive, "launch", "--quiet", "--", "/bin/echo", "started"],
        env=node.environ | {"PATH": f"{os.path.dirname(sys.executable)}:/usr/bin:/bin"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert direct.stdout == "started\n"
