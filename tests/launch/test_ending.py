"""Signals and endings: as if the gate had not been there, before the `exec` and after it."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
from tests.launch import apart, asking, nvml_library, stand_ins

SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")
NAPPER = "trap 'echo got {name}; exit 41' {name}; echo ready; while :; do sleep 0.05; done"


def start(node, *command, options=()):
    """The gate as a child of this process, its state folder the node's."""
    return subprocess.Popen(
        [sys.executable, "-I", node.archive, "launch", "--state-dir", node.state, *options, "--",
         *command],
        env=node.environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


@contextlib.contextmanager
def waiting(node):
    """A gate that waits for a controller that says nothing."""
    with stand_ins.Controller(lambda _: None) as controller:
        node.enroll(controller.url)
        process = start(node, "sglang", "serve")
        try:
            until = time.monotonic() + 20
            while not controller.requests and time.monotonic() < until:
                time.sleep(0.02)
            yield process
        finally:
            process.kill()
            process.wait()


def children_of(pid):
    """Of all its threads: a child is listed under the one that started it."""
    threads = pathlib.Path(f"/proc/{pid}/task").iterdir()
    return [child for one in threads for child in (one / "children").read_text().split()]


@pytest.mark.parametrize("name", SIGNALS)
def test_before_the_exec_a_signal_kills_as_it_would_kill_the_command(node, name):
    with waiting(node) as process:
        process.send_signal(getattr(signal, name))
        stdout, stderr = process.communicate(timeout=10)
    assert process.returncode == -getattr(signal, name)
    assert (stdout, stderr) == (b"", b"")
    assert not node.dump.exists()


@pytest.mark.parametrize("name", SIGNALS)
def test_after_the_exec_a_signal_reaches_the_command(node, name):
    process = start(node, "/bin/sh", "-c", NAPPER.format(name=name.removeprefix("SIG")))
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(getattr(signal, name))
    stdout, _ = process.communicate(timeout=10)
    assert (process.returncode, stdout) == (41, f"got {name.removeprefix('SIG')}\n".encode())


@pytest.mark.parametrize("name", SIGNALS)
def test_a_signal_at_any_moment_kills_without_a_traceback_of_the_gate(node, name):
    """Before the archive is read, while it is, in the middle of the work, and around the exec."""
    for pause_s in [index * 0.06 for index in range(6)]:
        process = start(node, "/bin/sleep", "5")
        time.sleep(pause_s)
        process.send_signal(getattr(signal, name))
        _, stderr = process.communicate(timeout=10)
        if name == "SIGINT" and b"KeyboardInterrupt" in stderr:
            # The interpreter was interrupted before it had come to the gate's first line.
            assert b"__main__" not in stderr, (pause_s, stderr)
            assert b"smgate" not in stderr, (pause_s, stderr)
            continue
        assert process.returncode == -getattr(signal, name), (pause_s, stderr)
        assert b"Traceback" not in stderr, (pause_s, stderr)


def test_a_signal_takes_the_children_along(node):
    """A driver that hangs is asked by a child: it must not outlive a gate that was told to end."""
    library = nvml_library.write(node.folder / "nvml", [], start=nvml_library.HANG)
    node.environ["LD_LIBRARY_PATH"] = str(library)
    process = start(node, "sglang", "serve")
    until = time.monotonic() + 20
    while not (children := children_of(process.pid)) and time.monotonic() < until:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=10)
    assert children
    for child in children:
        assert not pathlib.Path(f"/proc/{child}").exists()


def test_what_was_ignored_stays_ignored_and_does_not_end_the_gate(node):
    with stand_ins.Controller(stand_ins.honest(asking.hands_off, 0.5)) as controller:
        node.enroll(controller.url)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            process = start(node, "/bin/sh", "-c", "kill -HUP $$; echo alive", options=["--quiet"])
        finally:
            signal.signal(signal.SIGHUP, signal.SIG_DFL)
        for _ in range(10):
            process.send_signal(signal.SIGHUP)
            time.sleep(0.05)
        stdout, stderr = process.communicate(timeout=20)
    assert (process.returncode, stdout, stderr) == (0, b"alive\n", b"")


@pytest.mark.parametrize("status", [0, 1, 7, 143])
def test_the_commands_exit_code_is_the_processes(node, status):
    process = start(node, "/bin/sh", "-c", f"exit {status}")
    process.communicate(timeout=20)
    assert process.returncode == status


# Process 1 of a container


PID_1 = ("--mount", "--pid", "--fork", "--mount-proc")


def test_as_process_1_it_becomes_the_command_and_keeps_its_exit_code(node):
    ended = apart.gate(
        node, ["/bin/sh", "-c", "echo pid $$; exit 9"], kinds=PID_1, python=sys.executable
    )
    assert (ended.returncode, ended.stdout) == (9, "pid 1\n")


def test_as_process_1_it_leaves_no_zombies_to_the_command(node):
    """Its children's children are given to process 1; one of them also left its group."""
    nvcc = node.folder / "cuda" / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.write_text(
        "#!/bin/sh\nsleep 300 &\nsetsid sh -c 'sleep 0.01' &\nsetsid sh -c 'exit 3' &\necho V13.0.1\n"
    )
    nvcc.chmod(0o755)
    node.environ["CUDA_HOME"] = str(node.folder / "cuda")
    ended = apart.gate(
        node, ["sglang", "serve", "--model-path", "m"], kinds=PID_1, python=sys.executable
    )
    assert ended.returncode == 0, ended.stderr
    seen = json.loads(node.dump.read_text())
    assert (seen["pid"], seen["children"]) == (1, [])


@pytest.mark.parametrize(("name", "status"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_as_process_1_a_request_to_end_ends_it_though_nothing_else_would(node, name, status):
    hanging = nvml_library.write(node.folder / "nvml", [], start=nvml_library.HANG)
    node.environ["LD_LIBRARY_PATH"] = str(hanging)
    launch = [sys.executable, "-I", node.archive, "launch", "--state-dir", node.state, "--"]
    process = subprocess.Popen(
        apart.argv("", [*launch, "sglang", "serve"], PID_1),
        env=node.environ, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        until = time.monotonic() + 20
        while time.monotonic() < until:
            inner = children_of(process.pid)
            if inner and children_of(inner[0]):
                break
            time.sleep(0.02)
        os.kill(int(inner[0]), signal.SIGHUP)  # the kernel drops it: SGLang does not handle it
        time.sleep(0.2)
        assert process.poll() is None
        os.kill(int(inner[0]), getattr(signal, name))
        _, stderr = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == status
    assert b"Traceback" not in stderr
    assert not node.dump.exists()


# Standard files


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-", "1>&- 2>&-"])
def test_closed_standard_files_stay_closed_and_catch_nothing(node, closed):
    with stand_ins.Controller(stand_ins.honest(asking.hands_off)) as controller:
        node.enroll(controller.url)
        own = f"'{sys.executable}' -I '{node.archive}' launch --state-dir '{node.state}'"
        list_files = 'exec 3>"$DUMP"; for n in 0 1 2; do [ -e /proc/$$/fd/$n ] && echo $n >&3; done'
        script = f"exec {own} -- /bin/sh -c '{list_files}; exit 5' {closed}"
        ended = subprocess.run(
            ["/bin/sh", "-c", script], env=node.environ, capture_output=True, check=False
        )
    assert ended.returncode == 5
    left = {str(n) for n in range(3)} - {part[0] for part in closed.split()}
    assert set(node.dump.read_text().split()) == left
    assert b"smgate-launch: " not in controller.received
    assert ended.stdout == b""


def test_a_command_that_cannot_start_keeps_its_status_with_no_stderr(node):
    script = f"exec '{sys.executable}' -I '{node.archive}' launch -- /no/such/command 2>&-"
    ended = subprocess.run(["/bin/sh", "-c", script], env=node.environ, check=False)
    assert ended.returncode == 127


def test_a_stderr_that_nobody_reads_does_not_hold_it(node):
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(write_end, b"x" * 65536)
    os.set_blocking(write_end, True)
    began = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-I", node.archive, "launch", "--", "/bin/echo", "started"],
        env=node.environ, stdout=subprocess.PIPE, stderr=write_end, timeout=30, check=False,
    )  # fmt: skip
    os.close(read_end)
    os.close(write_end)
    assert (ended.returncode, ended.stdout) == (0, b"started\n")
    assert time.monotonic() - began < 20
