"""The real agent finds real processes of servers that nobody declared, and tells their ends."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.agent import samples
from tests.agent.test_resident import Agent
from tests.agent.test_watch import serve

from smgate.wire import facts

KEY = "sk-PLANTED-in-argv-0006"


@pytest.fixture
def agent(tmp_path, controller):
    agent = Agent(tmp_path, controller)
    agent.configure("scan_interval_s = 0.2")
    agent.enroll()
    yield agent
    agent.stop()


@pytest.fixture
def start(tmp_path):
    """Starts what looks like SGLang to everybody: `python .../sglang serve ...`, with its log."""
    program = tmp_path / "bin" / "sglang"
    program.parent.mkdir()
    program.write_text("import time\nprint('up', flush=True)\ntime.sleep(600)\n")
    running = []

    def start(name, port, state_dir, **record):
        log = tmp_path / f"{name}.log"
        command = [sys.executable, str(program), "serve", "--port", str(port), "--api-key", KEY]
        with log.open("ab") as out:
            process = subprocess.Popen(command, stdout=out, stderr=out)
        running.append(process)
        while b"up" not in log.read_bytes():
            time.sleep(0.02)
        folder = state_dir / "launches"
        folder.mkdir(exist_ok=True)
        namespace = str(Path(f"/proc/{process.pid}/ns/pid").readlink())
        values = {"launch_id": name, "pid": process.pid, "pid_namespace": namespace, **record}
        (folder / f"{name}.json").write_text(json.dumps(values))
        return process, log

    yield start
    for process in running:
        process.kill()
        process.wait(10)


def changes(controller):
    return [
        (one.launch_id, one.state, one.restarts)
        for one in controller.payloads(facts.InstanceChanged)
    ]


def test_servers_that_nobody_declared_are_watched_from_start_to_end(
    agent, controller, start, sglang_server
):
    serve(sglang_server)
    gpus = {"gpu_uuids": ["GPU-1111"]}
    first, _ = start("l-1", sglang_server.port, agent.state_dir, **gpus)
    other, other_log = start("l-2", 1, agent.state_dir, gpu_uuids=["GPU-2222"])
    agent.start()

    # Port and log were found: both speak.
    said = lambda: [one.source for one in controller.payloads(facts.EffectiveSeen)]  # noqa: E731
    assert controller.wait_for(lambda: "server_info" in said()), agent.stderr()
    other_log.write_text("\n".join([samples.ARGS_DICT % "marlin", samples.INIT, ""]))
    assert controller.wait_for(lambda: "log" in said()), agent.stderr()
    assert set(changes(controller)) == {("l-1", "serving", 0), ("l-2", "starting", 0)}
    time.sleep(1.2)
    assert agent.status()["scan"]["servers"] == 2
    assert "2 servers found" in agent.command("status").stdout.decode()

    # One ends, and starts again: the same server, and the other is not concerned.
    sglang_server.route("/health", behaviour="reset")
    first.kill()
    first.wait(10)
    assert controller.wait_for(lambda: ("l-1", "exited", 0) in changes(controller))
    serve(sglang_server)
    start("l-3", sglang_server.port, agent.state_dir, **gpus)
    assert controller.wait_for(lambda: ("l-3", "serving", 1) in changes(controller)), changes(
        controller
    )
    names = {one.instance_id for one in controller.payloads(facts.InstanceChanged)}
    assert len(names) == 2

    # One ends while the agent is away.
    agent.stop()
    other.kill()
    other.wait(10)
    agent.start()
    assert controller.wait_for(lambda: ("l-2", "exited", 0) in changes(controller)), agent.stderr()
    kept = (
        b"".join(path.read_bytes() for path in agent.state_dir.rglob("*") if path.is_file())
        + str(controller.requests).encode()
    )
    assert KEY.encode() not in kept
    assert samples.SECRET.encode() not in kept


def test_a_server_that_nobody_declared_reports_its_bake_while_the_controller_counts_it(
    agent, controller, start, sglang_server
):
    agent.configure("scan_interval_s = 0.2", "bake_interval_s = 1", "directive_wait_s = 1")
    serve(sglang_server)
    page = b"sglang:num_requests_total 100\nsglang:generation_tokens_total 1000\n"
    sglang_server.route("/metrics", page)
    controller.baking = ""
    agent.start()
    asked = lambda: [path for _, path, _, _ in controller.requests if "directive" in path]  # noqa: E731
    assert controller.wait_for(lambda: len(asked()) > 1), agent.stderr()
    start("l-1", sglang_server.port, agent.state_dir, gpu_uuids=["GPU-1111"])
    assert controller.wait_for(lambda: controller.payloads(facts.EffectiveSeen)), agent.stderr()
    time.sleep(2.5)
    assert "/metrics" not in sglang_server.requests
    controller.baking = controller.payloads(facts.InstanceChanged)[0].instance_id
    assert controller.wait_for(lambda: controller.payloads(facts.BakeInterval)), agent.stderr()
