"""What a test of the whole loop runs: launch gate, resident agent, controller, CLI, one SM107 node.

The GPU is a driver library that answers for an SM107; SGLang's command is a stand-in that writes
down how it was started; its `/server_info` and logs are recordings of SGLang's own. All else is
what ships. Secrets are planted in argv, config file, `/server_info` and logs.
"""

import contextlib
import dataclasses
import json
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import pytest
from tests import cli_fakes, controller_process, ports
from tests.fixtures import fake_sglang
from tests.launch import nvml_library, stand_ins

from smgate.cli import exit_codes

ROOT = pathlib.Path(__file__).resolve().parents[2]
RECORDED = ROOT / "tests/fixtures/sglang"
AGENT = pathlib.Path(sys.executable).parent / "smgate-agent"
GATE = "kimi-k3-mxfp4"
GPUS = [{"uuid": f"GPU-{index:04d}-aaaa", "sm": "10.7"} for index in range(2)]
PLANTED = (
    "sk-PLANTED-api-key-0001",
    "sk-PLANTED-admin-key-0002",
    "PLANTED-tls-password-0003",
    "sk-planted-in-argv-0004",
    "sk-planted-in-config-0005",
)
YES = ("--yes", "--reason", "whole loop")


@dataclasses.dataclass
class Loop:
    """Everything that runs, and what was seen of it."""

    controller: controller_process.Controller
    database: pathlib.Path
    cli: cli_fakes.Cli
    other: cli_fakes.Cli
    node: stand_ins.Node
    server: fake_sglang.FakeSglang
    log: pathlib.Path
    model: pathlib.Path
    agent_log: pathlib.Path
    metrics_port: int
    restarts: pathlib.Path
    """What the drain hook writes down."""
    printed: list[str] = dataclasses.field(default_factory=list)

    def smgate(self, *words):
        done = self.cli(*words)
        self.printed += [done.out, done.err]
        assert done.code == 0, done.err
        return done.out

    def both(self, *words):
        """One person asks, another accepts."""
        asked = self.cli(*words, "-o", "json")
        assert asked.code == exit_codes.WAITING, asked.err
        change = json.loads(asked.out)["waits"]["change"]
        done = self.other("change", "accept", change, *YES)
        self.printed += [asked.out, asked.err, done.out, done.err]
        assert done.code == 0, done.err

    def why(self, *words):
        return json.loads(self.smgate("unit", "why", "node-a", *words, "-o", "json"))

    def drains(self):
        return json.loads(self.smgate("drain", "ls", "-o", "json"))["items"]

    def until(self, what, holds, wait_s=30.0):
        deadline = time.monotonic() + wait_s
        while time.monotonic() < deadline:
            if found := holds():
                return found
            time.sleep(0.2)
        pytest.fail(f"never: {what}\n{self.agent_log.read_text()[-2000:]}")

    def launch(self, *extra, options=()):
        """A person starts the server through the gate; how SGLang was started."""
        config = self.node.folder / "server.yaml"
        config.write_text(f"api-key: {PLANTED[4]}\n")
        argv = ["sglang", "serve", "--model-path", str(self.model), "--tp-size", "8"]
        argv += ["--admin-api-key", PLANTED[3], "--config", str(config), *extra]
        return self.node.launch(*argv, options=("--deadline-s", "20", *options))["argv"]

    def serves(self, name):
        """The server comes up as one that SGLang was seen to be."""
        self.server.replay("/server_info", RECORDED / f"server_info/{name}.json")
        self.server.route("/health", b"")
        shutil.copy(RECORDED / f"logs/{name}.log", self.log)


@contextlib.contextmanager
def running(tmp_path, **settings):
    """Everything running; `settings` are more of the declared instance's, as TOML."""
    folder = tmp_path / "controller"
    folder.mkdir()
    database = folder / "smgate.db"
    url = f"sqlite:///{database}"
    archive = stand_ins.build_archive(tmp_path / "gate")
    (tmp_path / "node").mkdir()
    node = stand_ins.Node(tmp_path / "node", archive)
    node.environ["LD_LIBRARY_PATH"] = str(nvml_library.write(tmp_path / "nvml", GPUS))
    with (
        controller_process.serving(url, folder) as controller,
        fake_sglang.FakeSglang() as server,
    ):
        offline = cli_fakes.Cli(None)
        join = offline("token", "issue", "--join", "--database", url)
        people = {}
        for name in ("alice", "bob"):
            issued = offline(
                *("token", "issue", "--role", "approver", "--name", name, "--database", url)
            )
            token = tmp_path / f"{name}.token"
            token.touch(mode=0o600)
            token.write_text(issued.out)
            people[name] = cli_fakes.Cli(controller.url)
            people[name].environ["SMGATE_TOKEN_FILE"] = str(token)
        made = Loop(
            controller=controller,
            database=database,
            cli=people["alice"],
            other=people["bob"],
            node=node,
            server=server,
            log=tmp_path / "node" / "sglang.log",
            model=_model(tmp_path),
            agent_log=tmp_path / "agent.log",
            metrics_port=ports.free_port(),
            restarts=tmp_path / "restarts",
        )
        with Agent(made, join.out, tmp_path, settings):
            yield made
        assert controller.stop() == 0


def _model(folder):
    model = folder / "models" / "k3"
    model.mkdir(parents=True)
    shutil.copy(RECORDED / "k3_config.json", model / "config.json")
    return model


class Agent:
    """The real resident agent, enrolled, ended by its id."""

    def __init__(self, loop, join_token, folder, more):
        settings = folder / "agent.toml"
        settings.write_text(
            # Not the gate's own folder: a serving container has nothing but the agent's socket.
            f"state_dir = {str(folder / 'agent-state')!r}\n"
            f"socket = {loop.node.environ['SMGATE_AGENT_SOCKET']!r}\n"
            f"metrics_port = {loop.metrics_port}\n"
            "rack = 'rack-1'\nchassis = 'chassis-1'\npoll_interval_s = 0.3\ninfo_interval_s = 1\n"
            "directive_wait_s = 2\n"
            f"[[instance]]\nid = 'k3'\nurl = {loop.server.url!r}\nlog = {str(loop.log)!r}\n"
            f"gpu_uuids = {[gpu['uuid'] for gpu in GPUS]}\n"
            f"model_config = {str(loop.model / 'config.json')!r}\n"
            "restarter = 'hook'\n"
            f"drain_hook = ['/bin/sh', '-c', 'echo ran >> {loop.restarts}']\n"
            + "".join(f"{key} = {value}\n" for key, value in more.items())
        )
        self._command = [str(AGENT), "run", "--config", str(settings)]
        self._loop = loop
        token = folder / "join.token"
        token.write_text(join_token)
        enrolled = subprocess.run(
            [
                *(str(AGENT), "enroll", "--config", str(settings), "--node", "node-a"),
                *("--controller", loop.controller.url, "--join-token-file", str(token)),
            ],
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert enrolled.returncode == 0, enrolled.stderr

    def __enter__(self):
        environ = {**self._loop.node.environ, "PATH": "/usr/bin:/bin"}
        environ.pop("PYTHONPATH")
        with self._loop.agent_log.open("ab") as out:
            self._process = subprocess.Popen(self._command, stdout=out, stderr=out, env=environ)
        listening = pathlib.Path(environ["SMGATE_AGENT_SOCKET"])
        self._loop.until("the agent's socket", listening.is_socket)

    def __exit__(self, *_):
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(20) == 0, self._loop.agent_log.read_text()[-2000:]


def no_secret_travelled(loop, *more):
    """Nothing that is kept or was printed anywhere has a planted secret."""
    for view in ("unit ls", "unit show node-a", "node show node-a", "log tail --lines 1000"):
        loop.smgate(*view.split())
        loop.smgate(*view.split(), "-o", "json")
    kept = [path.read_bytes() for path in loop.database.parent.iterdir() if path.is_file()]
    for folder in (loop.node.state, loop.agent_log.parent / "agent-state"):
        kept += [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    kept += [loop.agent_log.read_bytes(), loop.node.stderr.encode()]
    kept += [text.encode() for text in (*loop.printed, *more)]
    assert any(b"launch_planned" in data for data in kept), "the log itself was looked at"
    for secret in PLANTED:
        for form in (secret, secret[3:], secret.replace("-", "_")):
            assert not [data[:80] for data in kept if form.encode() in data], form
