"""`make run`: what it prints is true, what it tells to type works, and it leaves nothing behind."""

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
import tomllib
from pathlib import Path

BIN = Path(sys.executable).parent
DEMO = [sys.executable, "-m", "smgate.sim.demo"]


def run_line(line, folder, environ, **options):
    """Run one printed line from the folder where it was printed."""
    return subprocess.run(
        line,
        check=False,
        shell=True,
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        **options,
    )


def children(pid):
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(holds, *, timeout_s):
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if holds():
            return True
        time.sleep(0.05)
    return False


def test_the_demonstration_ends_with_its_summary_and_each_command_it_names_works(tmp_path):
    done = subprocess.run(
        [*DEMO, "--once"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    database = sqlite3.connect(f"file:{summary['database']}?mode=ro", uri=True)
    assert (
        summary["log_events"]
        == database.execute("SELECT max(position) FROM log_event").fetchone()[0]
    )
    database.close()
    assert summary["chain_ok"] is True
    assert min(summary[k] for k in ("units_on_target", "units_on_safe", "units_hands_off")) > 0
    settings = tomllib.loads((tmp_path / ".demo/agent.toml").read_text())
    assert settings["socket"] == str(tmp_path / ".demo/agent.sock"), "it would take the machine's"

    _, _, typed = done.stdout.partition("7. What to type next\n")
    serve, export, *commands = [
        line.strip() for line in typed.partition("\n\n")[0].splitlines() if line.strip()
    ]
    environ = dict(os.environ)
    environ.update(pair.split("=", 1) for pair in export.removeprefix("export ").split())
    assert re.search(r" serve --database sqlite:////\S+ --listen 127.0.0.1:\d+ &$", serve)
    with (tmp_path / "serve.log").open("wb") as log:
        controller = subprocess.Popen(
            serve.removesuffix("&").split(), cwd=tmp_path, stdout=log, stderr=log
        )
    try:
        ready = f"{BIN}/smgate version"
        assert wait_until(
            lambda: run_line(ready, tmp_path, environ).returncode == 0, timeout_s=30
        ), (tmp_path / "serve.log").read_text()
        assert len(commands) >= 5
        for command in commands:
            answer = run_line(command, tmp_path, environ, timeout=30)
            assert answer.returncode == 0, (command, answer.stderr)
    finally:
        controller.terminate()
        controller.wait(15)


def test_a_terminated_demonstration_leaves_no_process(tmp_path):
    with (tmp_path / "output").open("wb") as output:
        demo = subprocess.Popen(DEMO, cwd=tmp_path, stdout=output, stderr=output)
    started = []
    try:
        assert wait_until(lambda: len(children(demo.pid)) >= 2, timeout_s=120)
        started = children(demo.pid)
        demo.send_signal(signal.SIGTERM)
        demo.wait(20)
        assert [pid for pid in started if is_running(pid)] == []
    finally:
        for pid in [demo.pid, *started]:
            if is_running(pid):
                os.kill(pid, signal.SIGKILL)
        demo.wait(5)


def test_the_demonstration_deletes_no_folder_that_is_not_its_own(tmp_path):
    (tmp_path / "mine").write_text("precious")
    done = subprocess.run(
        [*DEMO, "--once", "--state", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1
    assert "empty it first" in done.stdout
    assert (tmp_path / "mine").read_text() == "precious"
