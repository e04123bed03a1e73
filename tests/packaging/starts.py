"""How each stack starts a server, from the files that ship: a command line and its environment."""

from __future__ import annotations

import contextlib
import json
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml
from tests.launch import nvml_library, stand_ins

from smgate_agent.launch import handover

Json = dict[str, Any]
GATE = re.compile(r"(?:/opt)?/smgate/smgate-gate\.pyz")
"""Where pods mount the gate and hosts have it; a test puts its own path there."""
APPENDED = [handover.FLAG, "marlin"]
MODULES = ("sglang/launch_server.py", "dynamo/sglang/__main__.py")
INJECTED = {
    "deployment": {},
    "dynamo": {},
    "llm-d": {"POD_INDEX": "1"},
    "lws": {
        "LWS_LEADER_ADDRESS": "kimi-k3-0.kimi-k3.serving",
        "LWS_GROUP_SIZE": "2",
        "LWS_WORKER_INDEX": "1",
    },
    "ome": {"MODEL_PATH": "/models/kimi-k3"},
    "rbg": {
        "RBG_LWP_LEADER_ADDRESS": "kimi-k3-engine-0.s-kimi-k3-engine.serving",
        "RBG_LWP_GROUP_SIZE": "2",
        "RBG_LWP_WORKER_INDEX": "1",
    },
}
"""What a stack's own controller puts into a container."""


GPUS = [{"uuid": f"GPU-{index:04d}-aaaa", "sm": "10.7"} for index in range(2)]


@dataclass(frozen=True)
class Start:
    """One process that a stack starts."""

    argv: list[str]
    environ: dict[str, str]


def of_container(container: Json, injected: dict[str, str]) -> Start:
    """What the kubelet runs: `$(NAME)` of known variables is filled in, `$$` is a dollar."""
    given = {one["name"]: one.get("value", "") for one in container.get("env", ())}
    known = {**given, **injected}

    def expand(text: str) -> str:
        return re.sub(
            r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_]*)\)",
            lambda found: "$" if found[0] == "$$" else known.get(found[1], found[0]),
            text,
        )

    words = [*container.get("command", ()), *container.get("args", ())]
    return Start(argv=[expand(word) for word in words], environ=known)


def of_unit(*files: str) -> Start:
    """What systemd runs: the last command that stands after an empty one; `$$` is a dollar."""
    joined = "\n".join(files).replace("\\\n", " ")
    commands = re.findall(r"^ExecStart=(.*)$", joined, re.MULTILINE)
    while "" in commands:
        commands = commands[commands.index("") + 1 :]
    [command] = commands
    assert "$" not in command.replace("$$", ""), "systemd would look for a variable"
    return Start(argv=shlex.split(command.replace("$$", "$")), environ={})


def of_compose(*files: str) -> Start:
    """What docker runs for the service: a later file replaces the entry point; `$$` is a dollar."""
    service: Json = {}
    for text in files:
        assert "$" not in text.replace("$$", ""), "compose would look for a variable"
        service |= yaml.safe_load(text)["services"]["sglang"]
    words = [*service["entrypoint"], *service["command"]]
    return Start(argv=[word.replace("$$", "$") for word in words], environ={})


class Machine:
    """A folder with the stand-ins: SGLang and Dynamo, which write down how they were started."""

    def __init__(self, folder: pathlib.Path, archive: pathlib.Path) -> None:
        self.folder = folder
        self.gate = folder / "gate.pyz"
        shutil.copy(archive, self.gate)
        self.dump = folder / "dump.json"
        self.stderr = ""
        site = stand_ins.write_site(folder / "site")
        (site / "sglang/__init__.py").write_text("")
        for module in MODULES:
            path = stand_ins.write_command(site / module)
            (path.parent / "__init__.py").touch()
        stand_ins.write_command(folder / "bin/sglang")
        (folder / "bin/python3").symlink_to(sys.executable)
        self.environ = {
            "PATH": f"{folder / 'bin'}:/usr/bin:/bin",
            "PYTHONPATH": str(site),
            "DUMP": str(self.dump),
            "SMGATE_STATE_DIR": str(folder),
            "SMGATE_AGENT_SOCKET": str(folder / "agent.sock"),
            "LD_LIBRARY_PATH": str(nvml_library.write(folder / "nvml", GPUS)),
        }

    def run(self, start: Start) -> list[str]:
        """The arguments that the server saw. It is the very process that was started."""
        self.dump.unlink(missing_ok=True)
        process = subprocess.Popen(
            [GATE.sub(str(self.gate), word) for word in start.argv],
            env={**start.environ, **self.environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
        )
        stdout, self.stderr = process.communicate(timeout=60)
        assert (process.returncode, stdout) == (0, "served\n"), self.stderr
        seen = json.loads(self.dump.read_text())
        assert seen["pid"] == process.pid, "the server is not the process that gets the signals"
        arguments: list[str] = seen["argv"][1:]
        return arguments

    def run_with_agent(self, start: Start) -> tuple[list[str], Json]:
        """The same beside an agent that hands on a decision, and the launch that was told to it."""
        with self.agent() as agent:
            seen = self.run(start)
        [launch] = agent.launches()
        return seen, launch

    @contextlib.contextmanager
    def agent(self) -> Iterator[stand_ins.Controller]:
        """An agent that hands on a decision: append the safe value."""
        said = stand_ins.honest(lambda launch: stand_ins.directive(stand_ins.entry(launch)))
        me = {"node": "node-a", "public_key": stand_ins.PUBLIC_KEY}

        def reply(request: tuple[str, str, Json | None, str | None]) -> bytes:
            if request[1] == "/v1/agent/identity":
                return stand_ins.http_answer(me)
            return said(request)

        socket = self.folder / "agent.sock"
        with stand_ins.Controller(reply, path=socket) as agent:
            yield agent
        socket.unlink()
