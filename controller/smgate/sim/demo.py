"""`make run`: a controller, the real agent of this machine, and a simulated fleet around them.

Every line it prints is true of the running controller: it is read back through the operators' CLI.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import httpx2

from smgate.sim import fleet, processes
from smgate.sim.node import Node, SimulatedNodeError
from smgate.sim.processes import Cli, DemoError

GATE: Final = "kimi-k3-mxfp4"
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
max_in_flight: 4
bake_s: 2
wave_timeout_s: 600
"""


def say(text: str = "") -> None:
    """One line for the person watching."""
    print(text, flush=True)


def indented(text: str) -> str:
    """Somebody else's lines, set apart."""
    return "\n".join(f"      {line}" for line in text.rstrip().splitlines())


def heading(number: int, text: str) -> None:
    """A step of the story."""
    say()
    say(f"{number}. {text}")


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
        shutil.rmtree(self.state, ignore_errors=True)
        self.state.mkdir(parents=True)
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
                "--state-dir",
                str(state),
            ],
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        if enrolled.returncode != 0:
            raise DemoError(f"smgate-agent enroll: {enrolled.stderr}")
        self._spawn("smgate-agent", "run", "--state-dir", str(state), log=self.state / "agent.log")
        return str(state)

    def agent_says(self) -> str:
        """What the real agent found on this machine."""
        done = subprocess.run(  # noqa: S603  our own program
            [
                str(processes.BIN / "smgate-agent"),
                "status",
                "--state-dir",
                str(self.state / "agent"),
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


def tell(demo: Demo) -> None:
    """The story, in order."""
    _left_alone(demo)
    _observe(demo)
    _qualify(demo)
    _roll_out(demo)
    _suspect(demo)
    _fall_back(demo)
    _what_next(demo)


def _left_alone(demo: Demo) -> None:
    heading(1, "What SGLang would do if left alone")
    baseline = [n for n, node in demo.nodes.items() if node.spec.sm in ("10.0", "10.3")]
    demo.restart(*baseline, "rubin-1", "rubin-2")
    demo.each(Node.launch, "rubin-ep-1", "h200-1", "rubin-old-1")
    shown = ("b200-1", "rubin-1", "rubin-old-1", "rubin-ep-1", "h200-1")
    demo.until("all launches decided", lambda: len(demo.units()) >= len(baseline) + len(shown))
    for name in shown:
        spec = demo.nodes[name].spec
        alone = demo.why(demo.unit_on(name))["if_left_alone"]
        effect = (
            "its experts become BF16, 3.76 times the bytes"
            if alone["memory_fallback"]
            else "it dies at model construction"
            if alone["raises"]
            else "packed MXFP4"
        )
        say(
            f"   {name:<12} SM {spec.sm:<5} SGLang {spec.build.sglang_version} resolves "
            f"{alone['runner']}, a2a {alone['a2a']}: {effect}."
        )
    say("   On SM 10.7 nothing has checked that this node's FlashInfer can do it right.")


def _observe(demo: Demo) -> None:
    heading(2, "Observe mode: decided and recorded, nothing changed")
    units = demo.units()
    hands_off = [u for u in units if u["override"]["form"] != "append"]
    say(f"   {len(hands_off)} of {len(units)} units are hands off; SM 10.7 would be:")
    would: dict[str, int] = {}
    for unit in units:
        if unit["sm"] == "10.7" and unit["override"]["would"]:
            name = f"{unit['override']['would']['value'] or 'untouched'} ({unit['override']['would']['code']})"
            would[name] = would.get(name, 0) + 1
    for name, count in sorted(would.items()):
        say(f"     {count:>2} x {name}")
    exposed = sum(bool(u["exposed"]) for u in units)
    say(f"   {exposed} servers run the target though nobody decided so: that is the exposure.")


def _qualify(demo: Demo) -> None:
    heading(3, "Enforce SM 10.7, and qualify the good kernel key on the pool")
    yes = ("--yes", "--reason", "demo")
    demo.alice.run("policy", "publish", "-f", str(demo.state / "policy.yaml"), *yes)
    demo.alice.run("gate", "mode", GATE, "10.7", "enforce", *yes)
    demo.alice.run("gate", "mode", GATE, "9.0", "enforce", *yes)
    demo.alice.run("unit", "take-back", demo.unit_on("rubin-2"), *yes)
    demo.restart("rubin-pool-1", "rubin-pool-2", "rubin-pool-3", "h200-1")
    keys = demo.until(
        "a qualified key",
        lambda: [k for k in demo.read("builds")["items"] if k["standing"] == "qualified"],
    )
    say(f"   Kernel key {keys[0]['key']} is qualified: 3 GPU sets of the pool passed.")


def _roll_out(demo: Demo) -> None:
    heading(4, "A rollout: proposed by alice, approved by bob, opened wave by wave")
    yes = ("--yes", "--reason", "demo")
    started = demo.restart(*[n for n in demo.nodes if _joins(n)])
    say(
        f"   {len(started)} more servers start; all get {', '.join(sorted(set(started.values())))}."
    )
    demo.alice.run("rollout", "propose", "-f", str(demo.state / "plan.yaml"), *yes)
    demo.alice.run("rollout", "approve", "rubin-1", *yes, fails=True)
    demo.bob.run("rollout", "approve", "rubin-1", *yes)
    demo.bob.run("rollout", "start", "rubin-1", *yes)
    for wave in range(2):
        members = demo.until(f"wave {wave} open and granted", lambda w=wave: _granted(demo, w))
        if wave == 1:
            demo.alice.run("freeze", "declare", "holiday", *yes)
        nodes = [n for u in demo.units() if u["id"] in members for n in u["nodes"]]
        demo.restart(*nodes)
        demo.each(lambda node: node.bake(3), *[n for n in nodes if demo.nodes[n].spec.rank == 0])
        judged = demo.until(f"wave {wave} judged", lambda w=wave: _judged(demo, w))
        say(
            f"   Wave {wave}: {len(members)} units restarted onto the target; "
            f"{judged['verdict']}: {judged['sentence']}"
        )
    waiting = [u for u in demo.units() if u["sm"] == "10.7" and u["override"]["value"] == "marlin"]
    say(
        f"   The freeze keeps wave 2 shut: {len(waiting)} units stay on the safe value, and "
        "nothing that was granted ends."
    )


def _joins(name: str) -> bool:
    """The Rubin servers that start once the mode is enforce; rubin-1 stays as it was found."""
    apart = ("rubin-1", "rubin-ep-1", "rubin-new-1", "rubin-new-2")
    return name.startswith("rubin-") and "pool" not in name and name not in apart


def _wave(demo: Demo, number: int) -> dict[str, Any] | None:
    shown = demo.read("rollouts/rubin-1/why")["waves"]
    return dict(shown[number]) if len(shown) > number else None


def _granted(demo: Demo, number: int) -> list[str]:
    wave = _wave(demo, number)
    if wave is None:
        return []
    granted = {u["id"] for u in demo.units() if u["override"]["code"] == "granted"}
    members = [str(u) for u in wave["units"]]
    return members if set(members) <= granted else []


def _judged(demo: Demo, number: int) -> dict[str, Any] | None:
    wave = _wave(demo, number)
    return wave if wave is not None and wave["verdict"] != "running" else None


def _suspect(demo: Demo) -> None:
    heading(5, "One failing check makes a kernel key suspect, and holds it")
    runner = demo.restart("rubin-new-1")["rubin-new-1"]
    bad = demo.until(
        "a suspect key",
        lambda: [k for k in demo.read("builds")["items"] if k["standing"] == "suspect"],
    )[0]
    say(
        "   rubin-new-1 has FlashInfer 0.6.17: the enum and the signature are there, and its "
        "kernel returns zeros."
    )
    say(
        f"   Kernel key {bad['key']} is suspect: no new grant for it anywhere; "
        f"the server itself started with {runner}."
    )


def _fall_back(demo: Demo) -> None:
    heading(6, "One server seen in BF16, and the alarm it raises")
    unit = demo.unit_on("rubin-old-1")
    demo.alice.run("unit", "release", unit, "--yes", "--reason", "owner wants SGLang's default")
    runner = demo.restart("rubin-old-1", fits=True)["rubin-old-1"]
    say(f"   SGLang 0.5.18 there, with nothing appended, resolved {runner!r}: BF16 experts.")
    demo.until(
        "a memory_fallback alarm",
        lambda: [a for a in demo.read("alarms")["items"] if a["cause"] == "memory_fallback"],
    )
    say(indented(demo.alice.run("alarm", "ls")))


def _what_next(demo: Demo) -> None:
    heading(7, "What to type next")
    binary = processes.BIN / "smgate"
    shown = os.path.relpath(binary)
    say(
        f"   export SMGATE_URL={demo.url} SMGATE_TOKEN_FILE={os.path.relpath(demo.state)}/alice.token"
    )
    for command in (
        f"unit why {demo.unit_on('rubin-old-1')}",
        f"unit why {demo.unit_on('rubin-ep-1')}",
        "unit ls",
        "build ls",
        "rollout why rubin-1",
        "log tail",
        "log verify",
    ):
        say(f"   {shown} {command}")


def main(argv: list[str] | None = None) -> int:
    """Run the demonstration; exit status."""
    parser = argparse.ArgumentParser(prog="smgate-demo", description=__doc__)
    parser.add_argument("--once", action="store_true", help="End by itself; last line is JSON.")
    parser.add_argument("--state", type=Path, default=Path(".demo"), help="Folder for its files.")
    args = parser.parse_args(argv)
    demo = Demo(args.state.resolve())
    began = time.monotonic()
    try:
        demo.set_up()
        say("smgate: a controller on SQLite, the real agent of this machine, 24 simulated nodes.")
        agent_state = demo.start_agent()
        demo.start_fleet()
        say(f"   controller {demo.url}; agent state in {os.path.relpath(agent_state)}")
        say(f"   this machine: {' '.join(demo.agent_says().split())}")
        tell(demo)
        summary = demo.summary()
        say()
        say(f"   Done in {time.monotonic() - began:.0f} s. The log stays in {demo.database.name}.")
        if not args.once:
            say(json.dumps(summary))
            say("   Ctrl-C ends it.")
            threading.Event().wait()
        say(json.dumps(summary))
    except KeyboardInterrupt:
        say("\nStopped.")
    except (DemoError, SimulatedNodeError) as error:
        say(f"\nThe demonstration failed: {error}")
        return 1
    finally:
        demo.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
