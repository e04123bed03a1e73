"""The stage of the demonstration: a fresh log, a controller, people, the real agent, nodes."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import httpx2

from smgate.sim import fleet, processes
from smgate.sim.node import Node
from smgate.sim.processes import Cli, DemoError

SETTLE_S: Final = 15.0
POLICY: Final = """\
# The demonstration's policy: seconds where a fleet has hours.
min_gpu_sets: 3
gather_s: 3
silent_after_s: 60
confirm_timeout_s: 60
check_timeout_s: 20
episode_quiet_s: 5
breaker_bad_units: 4
"""
PLAN: Final = """\
id: rubin-1
gate: kimi-k3-mxfp4
sm: "10.7"
waves:
  - count: 1
  - percent: 50
  - percent: 100
max_in_flight: 8
bake_s: 2
wave_timeout_s: 600
"""
AGENT: Final = """\
# The demonstration's agent keeps away from the one that may run on this machine.
state_dir = {state}
socket = {socket}
metrics_port = 0
"""


class Demo:
    """The stage: processes, people, nodes."""

    def __init__(self, state: Path) -> None:
        self.state: Final = state
        self.database: Final = state / "smgate.db"
        self.url: Final = f"http://127.0.0.1:{processes.free_port()}"
        self.running: Final[list[subprocess.Popen[bytes]]] = []
        self.alice: Final = Cli(url=self.url, state=state, person="alice")
        self.bob: Final = Cli(url=self.url, state=state, person="bob")
        self.nodes: Final[dict[str, Node]] = {}
        self.reading: Final = httpx2.Client(base_url=self.url, timeout=30.0)

    # --- setting the stage ------------------------------------------------------------------

    def set_up(self) -> None:
        """A fresh log, two people, a controller."""
        self._clear()
        (self.state / "policy.yaml").write_text(POLICY)
        (self.state / "plan.yaml").write_text(PLAN)
        database = f"sqlite:///{self.database}"
        self._offline("db", "upgrade", "--database", database)
        for person, role in (("alice", "approver"), ("bob", "approver"), ("root", "admin")):
            token = self._offline(
                "token", "issue", "--name", person, "--role", role, "--database", database
            )
            self._secret(f"{person}.token", token)
        self._secret(
            "join.token",
            self._offline("token", "issue", "--join", "--name", "demo", "--database", database),
        )
        log = self.state / "controller.log"
        port = self.url.rpartition(":")[2]
        serve = self._spawn(
            "smgate", "serve", "--database", database, "--listen", f"127.0.0.1:{port}", log=log
        )
        processes.wait_ready(self.url, serve, log)
        token = (self.state / "alice.token").read_text().strip()
        self.reading.headers["Authorization"] = f"Bearer {token}"

    def _clear(self) -> None:
        if self.state.exists() and any(self.state.iterdir()) and not self.database.exists():
            raise DemoError(f"{self.state} has other files than a demonstration's; empty it first.")
        shutil.rmtree(self.state, ignore_errors=True)
        self.state.mkdir(parents=True)

    def _offline(self, *args: str) -> str:
        done = subprocess.run(  # noqa: S603  our own program
            [str(processes.BIN / "smgate"), *args],
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        if done.returncode != 0:
            raise DemoError(f"smgate {' '.join(args)}: {done.stderr}")
        return done.stdout.strip()

    def _secret(self, name: str, text: str) -> None:
        path = self.state / name
        path.touch(mode=0o600)
        path.write_text(text.splitlines()[-1] + "\n")

    def _spawn(self, *args: str, log: Path) -> subprocess.Popen[bytes]:
        with log.open("ab") as sink:
            process = subprocess.Popen(  # noqa: S603  our own programs
                [str(processes.BIN / args[0]), *args[1:]],
                stdout=sink,
                stderr=sink,
                stdin=subprocess.DEVNULL,
            )
        self.running.append(process)
        return process

    def start_agent(self) -> str:
        """Enrol and run the real agent of this machine; its own status line."""
        state = self.state / "agent"
        config = self.state / "agent.toml"
        config.write_text(
            AGENT.format(
                state=json.dumps(str(state)), socket=json.dumps(str(self.state / "agent.sock"))
            )
        )
        enrolled = subprocess.run(  # noqa: S603  our own program
            [
                str(processes.BIN / "smgate-agent"),
                "enroll",
                "--controller",
                self.url,
                "--join-token-file",
                str(self.state / "join.token"),
                "--node",
                "this-machine",
                "--config",
                str(config),
            ],
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        if enrolled.returncode != 0:
            raise DemoError(f"smgate-agent enroll: {enrolled.stderr}")
        self._spawn("smgate-agent", "run", "--config", str(config), log=self.state / "agent.log")
        return str(state)

    def agent_says(self) -> str:
        """What the real agent found on this machine."""
        done = subprocess.run(  # noqa: S603  our own program
            [
                str(processes.BIN / "smgate-agent"),
                "status",
                "--config",
                str(self.state / "agent.toml"),
            ],
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        return next((x for x in done.stdout.splitlines() if x.startswith("gpus")), "gpus unknown")

    def start_fleet(self) -> None:
        """Enrol every simulated node and let it report."""
        join = (self.state / "join.token").read_text().strip()
        for spec in fleet.specs():
            self.nodes[spec.name] = Node(spec, url=self.url)

        def begin(node: Node) -> None:
            node.enroll(join)
            node.report()

        self.each(begin, *self.nodes)

    def each(self, act: Any, *names: str) -> list[Any]:  # noqa: ANN401  any function of a node
        """Do one thing on several nodes at once."""
        with ThreadPoolExecutor(max_workers=12) as pool:
            return list(pool.map(lambda name: act(self.nodes[name]), names))

    def restart(self, *names: str, fits: bool = False) -> dict[str, str]:
        """Their owner restarts these servers: launch gate, decision, SGLang. Runner per node."""

        def act(node: Node) -> tuple[str, str]:
            if node.runner is not None:
                node.stop_server()
            return node.spec.name, node.start_server(node.launch(), fits=fits)

        return dict(self.each(act, *names))

    def close(self) -> None:
        """End everything this started."""
        self.reading.close()
        for node in self.nodes.values():
            node.close()
        for process in reversed(self.running):
            processes.stop(process)

    # --- reading ----------------------------------------------------------------------------

    def read(self, path: str) -> Any:  # noqa: ANN401  whatever the path holds
        """Read from the controller, as its CLI does.

        Raises:
            DemoError: it refused.
        """
        answer = self.reading.get(f"/v1/{path}")
        if answer.status_code != httpx2.codes.OK:
            raise DemoError(f"GET /v1/{path}: {answer.status_code} {answer.text[:300]}")
        return answer.json()

    def units(self) -> list[dict[str, Any]]:
        """The live units that were decided, as the controller lists them."""
        return [u for u in self.read("units")["items"] if u["live"] and u["override"]]

    def unit_on(self, node: str) -> str:
        """The unit a node belongs to."""
        return next(str(u["id"]) for u in self.units() if node in u["nodes"])

    def why(self, unit: str) -> dict[str, Any]:
        """The controller's answer to why."""
        return dict(self.read(f"units/{quote(unit, safe='')}/why"))

    def until(self, what: str, holds: Any) -> Any:  # noqa: ANN401  any reading
        """Wait until the controller says so.

        Raises:
            DemoError: it did not within the demonstration's patience.
        """
        deadline = time.monotonic() + SETTLE_S
        while time.monotonic() < deadline:
            found = holds()
            if found:
                return found
            time.sleep(0.2)
        raise DemoError(f"The controller never came to this: {what}")

    def agree(self, *args: str) -> None:
        """Alice asks for what widens, and bob, who is another person, accepts it."""
        change = self.alice.ask(*args, "--yes", "--reason", "demo")
        self.bob.run("change", "accept", change, "--yes", "--reason", "looked at it too")

    def summary(self) -> dict[str, Any]:
        """What the log holds at the end, as the controller counts it."""
        units = self.units()
        target = "flashinfer_mxfp4"
        append = [u for u in units if u["override"]["form"] == "append"]
        alarms = self.read("alarms")["items"]
        verified = self.read("log/verify")
        return {
            "database": str(self.database),
            "units": len(units),
            "units_on_target": sum(u["override"]["value"] == target for u in append),
            "units_on_safe": sum(u["override"]["value"] != target for u in append),
            "units_hands_off": len(units) - len(append),
            "alarms": len([a for a in alarms if a.get("closed_at") is None]),
            "log_events": verified["position"],
            "chain_ok": verified["ok"],
        }
