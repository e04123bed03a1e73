"""Ranks of one server behind real gates, each on a node of its own, on loopback."""

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time

from tests import ports
from tests.launch import nvml_library, stand_ins
from tests.launch.asking import ENFORCE, given_for, hands_off

from smgate_agent.launch import barrier, ranks, server

SERVER = pathlib.Path(__file__).with_name("gated_sglang.py")
DISTANCES = (ranks.PORT_DISTANCE, barrier.PORT_DISTANCE)
PATIENCE_S = 150
RESOLVES = """
import argparse, os
def prepare_server_args(argv):
    found = argparse.ArgumentParser()
    found.add_argument("--moe-runner-backend", default="auto")
    found.add_argument("--moe-a2a-backend", default="none")
    found.add_argument("--host", default="127.0.0.1")
    found.add_argument("--dp-size", type=int, default=1)
    found.add_argument("--enable-dp-attention", action="store_true")
    found.add_argument("--elastic-ep-backend")
    if not os.environ.get("NO_GATE"):
        found.add_argument("--gated-launch-port", type=int)
    values, others = found.parse_known_args(argv)
    if "--gated-launch-port" in others:
        raise SystemExit(2)
    values.moe_runner_backend = os.environ.get("RESOLVED", values.moe_runner_backend)
    return values
"""
"""SGLang's parser and resolution, as far as this server has them."""


def free_port():
    """A rendezvous port whose meeting ports are free as well."""
    return ports.free_port(DISTANCES)


class Started:
    """A launch that runs; everything it left is ended with it."""

    def __init__(self, process, node, events):
        self.process, self.node, self._events = process, node, events

    def events(self):
        lines = self._events.read_text().splitlines() if self._events.exists() else []
        found = [json.loads(line) for line in lines]
        return [one["event"] for one in found if one["pid"] == self.process.pid]

    def argv(self):
        for line in self._events.read_text().splitlines():
            one = json.loads(line)
            if one["event"] == "started" and one["pid"] == self.process.pid:
                return one["argv"]
        raise AssertionError(self.said())

    def wait_for(self, event, timeout_s=PATIENCE_S):
        until = time.monotonic() + timeout_s
        while event not in self.events():
            assert time.monotonic() < until, (event, self.events(), self.said())
            assert self.process.poll() is None, (event, self.events(), self.said())
            time.sleep(0.05)

    def is_waiting(self):
        """At the gate, and not past it."""
        return "joined" in self.events() and "activated" not in self.events()

    def said(self):
        return (self.node.folder / "said").read_text()

    def ended(self, timeout_s=PATIENCE_S):
        return self.process.wait(timeout_s)

    def guards(self):
        """The processes that stay beside it."""
        found = []
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if b"smgate_agent.launch import guard" in (folder / "cmdline").read_bytes():
                    environ = (folder / "environ").read_bytes()
                    if f"EVENTS={self._events}".encode() in environ:
                        found.append(int(folder.name))
        return sorted(pid for pid in found if (server.stat(pid) or "Z")[0] not in "ZX")

    def outcomes(self):
        """How the launches of this node came past the gate."""
        paths = sorted(
            (self.node.state / "launches" / "barriers").glob("launch-*"), key=os.path.getmtime
        )
        return [json.loads(path.read_text())["outcome"] for path in paths]


class Unit:
    """Nodes of one server; each launch of a rank is a process of its own."""

    def __init__(self, folder, archive, k3, nnodes=2):
        self.k3, self.nnodes, self.port = k3, nnodes, free_port()
        self.folder, self.stop, self.started = folder, folder / "stop", []
        self.nodes = [self._node(folder / f"rank-{rank}", archive, rank) for rank in range(nnodes)]

    def _node(self, folder, archive, rank):
        folder.mkdir()
        node = stand_ins.Node(folder, archive)
        gpus = [{"uuid": f"GPU-{rank:04d}-aaaa", "sm": "10.7"}]
        node.environ["LD_LIBRARY_PATH"] = str(nvml_library.write(folder / "nvml", gpus))
        node.environ |= {"EVENTS": str(folder / "events"), "STOP": str(self.stop)}
        node.command.write_text(f"#!{sys.executable}\n{SERVER.read_text()}")
        package = folder / "site" / "sglang"
        (package / "srt").mkdir()
        (package / "__init__.py").write_text("")
        (package / "srt" / "plugins.py").write_text("def load_plugins(): pass\n")
        (package / "srt" / "server_args.py").write_text(RESOLVES)
        return node

    def start(self, rank, *more, deadline_s=60, timeout_s=60, port=None, options=(),
              barrier=True, **environ):  # fmt: skip
        node = self.nodes[rank]
        own = ["--nnodes", str(self.nnodes), "--node-rank", str(rank)]
        own += ["--dist-init-addr", f"127.0.0.1:{port or self.port}"]
        given = ["--unit", "k3-prod", "--deadline-s", str(deadline_s)]
        given += ["--barrier"] if barrier else []
        given += ["--gate-timeout-s", str(timeout_s), *options]
        with (node.folder / "said").open("a") as said:
            process = subprocess.Popen(
                [sys.executable, "-I", node.archive, "launch", "--state-dir", node.state, *given,
                 "--", "sglang", "serve", "--model-path", str(self.k3), *own, *more],
                env={**node.environ, **environ}, stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=said, cwd=node.folder,
            )  # fmt: skip
        started = Started(process, node, node.folder / "events")
        self.started.append(started)
        return started

    def all_ranks(self, **keywords):
        return [self.start(rank, **keywords) for rank in range(self.nnodes)]

    def has_no_gate(self, rank):
        """This rank's image is an older SGLang from now on."""
        (metadata,) = self.nodes[rank].folder.glob("site/sglang-*/METADATA")
        metadata.write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.18\n")

    def hold_target(self):
        """Both ranks hold one decision for the target, and no controller is there."""
        with stand_ins.Controller(stand_ins.honest(hands_off)) as controller:
            self.nodes[0].enroll(controller.url)
            self.start(0, barrier=False).wait_for("started")
            (launch,) = controller.launches()
        self.close()
        self.stop.unlink()
        for rank, node in enumerate(self.nodes):
            node.enroll(None, node=f"node-{rank}")
            entry = stand_ins.entry(
                {"launch_id": "another"}, "append", "flashinfer_mxfp4", "granted",
                unit="k3-prod", given_for=given_for(launch),
            )  # fmt: skip
            node.hold(stand_ins.directive(entry, modes=ENFORCE, node=f"node-{rank}"))

    def close(self):
        self.stop.touch()
        for one in self.started:
            one.process.kill()
            one.process.wait()
        for one in self.started:
            for pid in one.guards():
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)


class Wire:
    """Stands between a rank and rank 0. Cut, what is open stays, and carries nothing.

    It cuts itself before or behind the first piece that has `at` in it, the ranks' barrier alone or
    SGLang's own connections with it.
    """

    def __init__(self, port, at=None, *, behind=False, whole=False):
        self.port, self.opened, self.is_cut = free_port(), [], False
        self.at, self.behind, self.whole = at, behind, whole
        for distance in (0, *DISTANCES):
            here = ranks.address_of(f"127.0.0.1:{self.port}", distance)
            there = ranks.address_of(f"127.0.0.1:{port}", distance)
            listener = socket.create_server(here)
            self.opened.append(listener)
            can_be_cut = whole or distance == barrier.PORT_DISTANCE
            threading.Thread(
                target=self._accept, args=(listener, there, can_be_cut), daemon=True
            ).start()

    def mend(self):
        self.at, self.is_cut = None, False

    def _accept(self, listener, there, can_be_cut):
        with contextlib.suppress(OSError):
            while True:
                here, _ = listener.accept()
                self.opened.append(here)
                if self.is_cut and can_be_cut:
                    continue  # as a network that swallows everything: open, and silent
                try:
                    other = socket.create_connection(there)
                except OSError:
                    here.close()
                    continue
                self.opened.append(other)
                for one, two in ((here, other), (other, here)):
                    threading.Thread(
                        target=self._carry, args=(one, two, can_be_cut), daemon=True
                    ).start()

    def _carry(self, one, two, can_be_cut):
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                here = self.at is not None and self.at in data
                self.is_cut = self.is_cut or (here and not self.behind)
                while self.is_cut and can_be_cut:
                    time.sleep(0.05)
                two.sendall(data)
                self.is_cut = self.is_cut or (here and self.behind)
        for end in (one, two):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self):
        self.mend()
        for one in self.opened:
            one.close()
