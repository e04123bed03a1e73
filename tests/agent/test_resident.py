"""The whole agent as a process: a fake server and a fake controller on both sides of it."""

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pynvml
import pytest
from tests import ports
from tests.agent import fake_controller, samples
from tests.agent.test_gate_socket import Connection
from tests.agent.test_watch import serve

from smgate.wire import directive, facts

RESIDENT_BYTES_MAX = 60 << 20


class Agent:
    """`smgate-agent run` with its own state directory."""

    def __init__(self, folder, controller):
        self.folder = folder
        self.controller = controller
        self.state_dir = folder / "state"
        self.settings = folder / "agent.toml"
        self.port = ports.free_port()
        self.process = None

    def configure(self, *instances):
        lines = [
            f'state_dir = "{self.state_dir}"',
            f'socket = "{self.folder / "agent.sock"}"',
            f"metrics_port = {self.port}",
            'rack = "r1"',
            "poll_interval_s = 0.1",
            *instances,
        ]
        self.settings.write_text("\n".join(lines) + "\n")

    def command(self, *arguments, **options):
        return subprocess.run(
            [sys.executable, "-m", "smgate_agent.cli", *arguments, "--config", str(self.settings)],
            check=False,
            capture_output=True,
            timeout=60,
            **options,
        )

    def enroll(self):
        arguments = ("--controller", self.controller.url, "--node", "node-1")
        done = self.command(
            "enroll",
            *arguments,
            "--join-token-file",
            "-",
            input=fake_controller.TOKEN.encode(),
        )
        assert done.returncode == 0, done.stderr

    def start(self):
        command = [sys.executable, "-m", "smgate_agent.cli", "run", "--config", str(self.settings)]
        with (self.folder / "stderr").open("ab") as stderr:
            self.process = subprocess.Popen(command, stderr=stderr)

    def stop(self, number=signal.SIGTERM):
        if self.process is None:
            return 0.0
        started = time.monotonic()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, number)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)
        self.process = None
        return time.monotonic() - started

    def status(self):
        return json.loads(self.command("status", "-o", "json").stdout)

    def stderr(self):
        return (self.folder / "stderr").read_text()

    def metrics(self, host="127.0.0.1"):
        connection = http.client.HTTPConnection(host, self.port, timeout=5)
        connection.request("GET", "/metrics")
        page = connection.getresponse().read().decode()
        connection.close()
        return page

    def resident_bytes(self):
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def agent(tmp_path, controller):
    agent = Agent(tmp_path, controller)
    yield agent
    agent.stop(signal.SIGKILL)


@pytest.fixture
def watched(agent, sglang_server):
    serve(sglang_server)
    model = agent.folder / "config.json"
    model.write_text(json.dumps(samples.K3_CONFIG))
    agent.configure(
        "[[instance]]",
        'id = "k3"',
        f'url = "{sglang_server.url}"',
        f'log = "{agent.folder / "server.log"}"',
        f'model_config = "{model}"',
    )
    agent.enroll()
    return agent


def test_a_bf16_server_reaches_the_controller_and_every_surface_says_so(watched, controller):
    watched.start()
    assert controller.wait_for(lambda: controller.payloads(facts.MemoryFallbackSeen)), (
        watched.stderr()
    )
    (node,) = controller.payloads(facts.NodeReported)
    assert node.rack == "r1"
    assert [f.state for f in controller.payloads(facts.InstanceChanged)] == ["serving"]
    time.sleep(1.2)
    page = watched.metrics()
    line = 'smgate_agent_memory_fallback_active{instance="k3",phase="active"} 1.0'
    assert line in page
    assert "smgate_agent_controller_reachable 1.0" in page
    assert "smgate_agent_outbox_depth 0.0" in page
    assert "_created" not in page
    status = watched.status()
    assert status["running"]
    assert status["instances"]["k3"]["verdict"]["phase"] == "active"
    assert status["links"]["facts"]["reachable"]
    assert samples.SECRET not in page + json.dumps(status) + watched.stderr()
    text = watched.command("status").stdout.decode()
    assert "memory fallback: active" in text
    watched.stop()
    assert watched.status()["instances"]["k3"]["verdict"]["phase"] == "active"
    assert not watched.status()["running"]


def test_the_agent_is_small_and_idle_when_nothing_happens(watched, controller):
    watched.start()
    assert controller.wait_for(lambda: controller.payloads(facts.MemoryFallbackSeen))
    time.sleep(2)
    assert watched.resident_bytes() < RESIDENT_BYTES_MAX
    count = len(controller.stored)
    ticks = Path(f"/proc/{watched.process.pid}/stat").read_text().rpartition(")")[2].split()
    time.sleep(3)
    later = Path(f"/proc/{watched.process.pid}/stat").read_text().rpartition(")")[2].split()
    used_s = sum(int(later[n]) - int(ticks[n]) for n in (11, 12)) / os.sysconf("SC_CLK_TCK")
    # It polls a hundred times as often here as by default.
    assert used_s / 3 < 0.5
    assert len(controller.stored) == count


def test_sigterm_ends_it_at_once_though_a_long_poll_and_a_server_hang(
    watched, controller, sglang_server
):
    watched.start()
    assert controller.wait_for(lambda: any("directive" in r[1] for r in controller.requests))
    sglang_server.route("/health", behaviour="hang")
    time.sleep(0.5)
    assert watched.stop() < 5
    assert not (watched.folder / "agent.sock").exists()


def test_facts_wait_for_enrolment_and_for_the_controller(agent, controller):
    agent.configure()
    agent.start()
    deadline = time.monotonic() + 10
    while not (agent.state_dir / "status.json").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert agent.status()["outbox"]["depth"] == 1
    assert "smgate_agent_enrolled 0.0" in agent.metrics()
    agent.enroll()
    assert controller.wait_for(lambda: controller.payloads(facts.NodeReported))


def test_a_machine_shows_its_gpus_or_says_why_it_has_none(agent):
    agent.configure()
    status, text = agent.status(), agent.command("status").stdout.decode()
    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        assert status["gpus"] == []
        assert "no NVIDIA driver answers" in status["gpus_reason"]
        assert "gpus        none: no NVIDIA driver answers" in text
    else:
        assert len(status["gpus"]) == count


def test_a_directive_is_held_and_a_gate_gets_it_from_the_socket(watched, controller):
    watched.start()
    new = directive.Directive(incarnation="log-1", generation=7, node="node-1", issued_at_us=1)
    controller.publish(new)
    assert controller.wait_for(lambda: any("generation=7" in r[1] for r in controller.requests))
    assert watched.status()["directive"]["generation"] == 7
    connection = Connection(watched.folder / "agent.sock")
    connection.request("GET", "/v1/agent/identity")
    said = json.loads(connection.getresponse().read())
    connection.close()
    assert json.loads(said["directive"]["signed"])["generation"] == 7


def test_a_node_that_is_enrolled_again_goes_on_with_its_new_credential(watched, controller):
    watched.start()
    assert controller.wait_for(lambda: controller.payloads(facts.MemoryFallbackSeen))
    path = watched.state_dir / "credential.json"
    good = path.read_bytes()
    path.write_bytes(good.replace(fake_controller.CREDENTIAL.encode(), b"revoked"))
    assert controller.wait_for(
        lambda: any(r[2].get("authorization") == "Bearer revoked" for r in controller.requests)
    )
    watched.enroll()
    count = len(controller.requests)
    assert controller.wait_for(
        lambda: any(
            r[1].startswith("/v1/agent/directive")
            and r[2]["authorization"] == f"Bearer {fake_controller.CREDENTIAL}"
            for r in controller.requests[count:]
        )
    ), watched.stderr()
    connection = Connection(watched.folder / "agent.sock")
    connection.request("GET", "/v1/agent/launch/l-1")
    assert connection.getresponse().status == 200
    connection.close()


def test_only_one_agent_runs_with_a_state_directory(watched, controller):
    watched.start()
    assert controller.wait_for(lambda: controller.stored)
    second = watched.command("run")
    assert second.returncode == 1
    assert b"another agent runs" in second.stderr


def test_a_damaged_outbox_is_replaced_said_and_the_gap_closed_by_a_full_report(watched, controller):
    watched.start()
    assert controller.wait_for(lambda: controller.payloads(facts.MemoryFallbackSeen))
    watched.stop()
    for suffix in ("-wal", "-shm"):
        (watched.state_dir / f"outbox.db{suffix}").unlink(missing_ok=True)
    (watched.state_dir / "outbox.db").write_bytes(b"no database" * 500)
    watched.start()
    assert controller.wait_for(
        lambda: any(gap.closed for gap in controller.payloads(facts.GapNoticed))
    ), watched.stderr()
    first, second = controller.streams
    told = [controller.streams[second][n].payload for n in sorted(controller.streams[second])]
    assert told[0] == facts.GapNoticed(lost_outbox_id=first)
    closed = told.index(facts.GapNoticed(lost_outbox_id=first, closed=True))
    kinds = {type(fact) for fact in told[:closed]}
    assert {facts.NodeReported, facts.InstanceChanged, facts.EffectiveSeen} <= kinds


def test_kill_9_and_a_new_start_repeat_nothing_and_lose_nothing(watched, controller):
    for round_ in range(3):
        watched.start()
        assert controller.wait_for(lambda: controller.payloads(facts.MemoryFallbackSeen)), (
            watched.stderr()
        )
        time.sleep(0.1 * round_)
        watched.stop(signal.SIGKILL)
    (stream,) = controller.streams.values()
    assert sorted(stream) == list(range(1, len(stream) + 1))
    payloads = [stream[n].payload for n in sorted(stream)]
    assert len(payloads) == len({str(payload) for payload in payloads})
