"""The resident agent: starts its threads, reports the node, keeps the status file, stops in time.

The only module that catches broadly: a thread that fails is counted, logged and started again,
because watching seven servers must not end with the eighth.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import smgate_agent
from smgate.wire import facts
from smgate_agent import (
    allocator,
    bake,
    clock,
    config,
    controller_link,
    delivery,
    directive_poll,
    drain,
    files,
    found,
    gate_folder,
    gate_socket,
    identity,
    metrics,
    news,
    nvml,
    outbox,
    status_file,
    watch,
    witness,
)

log = logging.getLogger(__name__)

LOCK_FILE: Final = "agent.lock"
OUTBOX_FILE: Final = "outbox.db"

_ROUND_S: Final = 1.0
"""Period of the housekeeping loop; every reaction of its own is bounded by it."""
_TRIM_FIRST_S: Final = 3.0
_TRIM_PERIOD_S: Final = 300.0
_NODE_PERIOD_S: Final = 60.0
_NODE_FIRST_S: Final = 2.0
"""Instances are told after the node they are on, unless the driver takes longer than this."""
_RESTART_THREAD_S: Final = 5.0
_STOP_S: Final = 0.5
"""Threads get this long; what they would still do is durable or is done again after a start."""
_XID_WAIT_MS: Final = 1000
_METRICS_RETRY_S: Final = 30.0


class AlreadyRunningError(Exception):
    """Another resident agent holds the state directory."""


class Edges:
    """What the agent takes from outside: time, ids, chance, and the signature check."""

    def __init__(
        self,
        *,
        clock_: clock.Clock,
        new_id: Callable[[], str],
        jitter: Callable[[], float],
        verify: directive_poll.Verify,
    ) -> None:
        self.clock = clock_
        self.new_id = new_id
        self.jitter = jitter
        self.verify = verify


class Resident:
    """One resident agent and everything it runs."""

    def __init__(self, settings: config.AgentConfig, edges: Edges) -> None:
        self._settings = settings
        self._edges = edges
        self._state_dir = Path(settings.state_dir)
        self._state_dir.mkdir(mode=gate_folder.FOLDER_MODE, parents=True, exist_ok=True)
        gate_folder.prepare(self._state_dir)
        if (lock := files.hold(self._state_dir / LOCK_FILE)) is None:
            raise AlreadyRunningError(settings.state_dir)
        self._lock = lock
        self.stop = threading.Event()
        self._talk_stop = threading.Event()
        """Ends what was begun with one credential; the rest goes on."""
        self._starting = threading.Lock()
        self._threads: list[threading.Thread] = []
        self.metrics = metrics.Metrics(instance.id for instance in settings.instance)
        self.outbox = outbox.Outbox(
            self._state_dir / OUTBOX_FILE,
            clock_=edges.clock,
            new_id=edges.new_id,
            bytes_max=settings.outbox_bytes_max,
        )
        self._nvml = nvml.Nvml()
        self._inventory = nvml.Inventory()
        self._faults = nvml.FaultLog(edges.clock)
        self._wanted = bake.Wanted()
        self._declared = [self._watcher(one, None) for one in settings.instance]
        self._finder = found.Finder(
            settings, self._nvml.users, self._watch_found, self.stop, edges.clock
        )
        self._drains = drain.Drains(
            self._state_dir,
            watched=lambda: [
                drain.Watched(declared=w.declared, view=w.view) for w in self._watchers
            ],
            outbox_=self.outbox,
            clock_=edges.clock,
            stop=self.stop,
        )
        self._credential: identity.Credential | None = None
        self._holder: directive_poll.Holder | None = None
        self._links: dict[str, controller_link.Link] = {}
        self._socket: gate_socket.GateSocket | None = None
        self._gap_rounds: dict[str, int] | None = None
        self._node_known = threading.Event()
        self._node_due = threading.Event()
        self._trim_due_s = edges.clock.monotonic_s() + _TRIM_FIRST_S
        self._news = news.News(log)
        self._status_file = status_file.StatusFile(
            self._state_dir, clock_=edges.clock, news_=self._news
        )
        self._metrics_due_s = edges.clock.monotonic_s()

    @property
    def _watchers(self) -> list[watch.Watcher]:
        return self._declared + self._finder.watchers

    def _watcher(self, one: config.Instance, process: watch.ProcessState | None) -> watch.Watcher:
        return watch.Watcher(
            one,
            self._settings,
            outbox_=self.outbox,
            metrics_=self.metrics,
            clock_=self._edges.clock,
            stop=self.stop,
            faults=self._faults,
            wanted=self._wanted,
            process=process,
        )

    def _watch_found(self, one: config.Instance, process: watch.ProcessState) -> watch.Watcher:
        self.metrics.add(one.id)
        watcher = self._watcher(one, process)
        self._start(f"watch {one.id}", watcher.run)
        return watcher

    def ask_to_stop(self) -> None:
        """From a signal handler: end soon."""
        self.stop.set()
        self._talk_stop.set()
        self.outbox.appended.set()
        self._node_due.set()
        self._drains.wake()

    def run(self) -> None:
        """Run until asked to stop."""
        try:
            allocator.limit_arenas()
            self._start("gpus", self._watch_gpus)
            self._node_known.wait(_NODE_FIRST_S)
            for watcher in self._declared:
                self._start(f"watch {watcher.declared.id}", watcher.run)
            if self._settings.scan_interval_s:
                self._start("scan", self._finder.run)
            self._start("drains", self._drains.run)
            while not self.stop.is_set():
                self._round()
                self.stop.wait(_ROUND_S)
            self._end()
        finally:
            self.outbox.close()
            self._lock.close()

    def _round(self) -> None:
        now_s = self._edges.clock.monotonic_s()
        self._follow_credential()
        self._serve_metrics(now_s)
        self._close_gap()
        self._show()
        if now_s >= self._trim_due_s:
            self._trim_due_s = now_s + _TRIM_PERIOD_S
            allocator.trim()

    def _serve_metrics(self, now_s: float) -> None:
        """A port that another process has costs the metrics, for as long as it has it."""
        host, port = self._settings.metrics_host, self._settings.metrics_port
        if not port or now_s < self._metrics_due_s:
            return
        try:
            self.metrics.serve(port, host=host)
        except OSError as exc:
            self._metrics_due_s = now_s + _METRICS_RETRY_S
            said = f"No metrics at {host}:{port} ({exc}); everything else goes on."
            self._news.say("metrics", said, level=logging.WARNING)
        else:
            self._metrics_due_s = math.inf
            self._news.say("metrics", f"Metrics at http://{host}:{port}/metrics.")

    def _follow_credential(self) -> None:
        """Talk to the controller as soon as the node is enrolled, and anew when it is again."""
        credential = identity.load(self._state_dir)
        if credential is None or credential == self._credential:
            return
        if self._credential is not None:
            log.info("The credential changed: talking to the controller anew.")
            self._hang_up()
        self._connect(credential)

    def _hang_up(self) -> None:
        self._talk_stop.set()
        self.outbox.appended.set()
        for link in self._links.values():
            link.close()
        if self._socket is not None:
            self._socket.hide()
            self._socket = None

    def _connect(self, credential: identity.Credential) -> None:
        edges, self._credential = self._edges, credential
        with contextlib.suppress(OSError):  # a full disk: gates ask the socket
            identity.publish(self._state_dir, credential)
        self._talk_stop = stop = threading.Event()
        holder = directive_poll.Holder(self._state_dir, credential=credential, verify=edges.verify)
        self._holder = holder
        self._listen(credential)
        deliverer = delivery.Deliverer(
            link=self._link("facts", credential),
            outbox_=self.outbox,
            jitter=self._edges.jitter,
            stop=stop,
            keep=witness.Witness(self._state_dir, clock_=edges.clock).keep,
        )
        poller = directive_poll.Poller(
            link=self._link("directive", credential),
            holder=holder,
            clock_=self._edges.clock,
            wait_s=self._settings.directive_wait_s,
            jitter=self._edges.jitter,
            stop=stop,
            on_another_log=self._say_held,
            on_confirmed=self._drains.confirm,
            on_baking=self._wanted.tell,
        )
        self._start("facts", deliverer.run, stop)
        self._start("directive", poller.run, stop)

    def _say_held(self, held: facts.DirectiveHeld) -> None:
        """Once for each restore: all that is kept, and after it what the log before told."""
        if self.outbox.report("directive_held", held):
            self.outbox.rewind()

    def _link(self, name: str, credential: identity.Credential) -> controller_link.Link:
        link = self._new_link(credential, keep_alive=True)
        self._links[name] = link
        return link

    def _new_link(
        self, credential: identity.Credential, *, keep_alive: bool
    ) -> controller_link.Link:
        return controller_link.Link(
            credential,
            clock_=self._edges.clock,
            ca_file=self._settings.ca_file,
            keep_alive=keep_alive,
        )

    def _listen(self, credential: identity.Credential) -> None:
        path = Path(self._settings.socket)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._socket = gate_socket.GateSocket(
                path,
                credential=credential,
                state_dir=self._state_dir,
                new_link=lambda: self._new_link(credential, keep_alive=False),
            )
        except OSError as exc:
            log.error("Cannot listen for launch gates at %s: %s", path, exc)  # noqa: TRY400 # no bug
            return
        run = functools.partial(self._socket.run, self._talk_stop)
        self._start("gate socket", run, self._talk_stop)

    def _watch_gpus(self) -> None:
        """A thread of its own: a driver in trouble can hold a call for ever."""
        if not self._node_known.is_set():
            self._nvml.open()
            self._start("xid", self._watch_faults)
        while not self.stop.is_set():
            self._report_node()
            self._node_due.wait(_NODE_PERIOD_S)
            self._node_due.clear()

    def _report_node(self) -> None:
        self._inventory = nvml.keep_known(self._inventory, self._nvml.inventory())
        self.metrics.gpus.set(len(self._inventory.gpus))
        settings = self._settings
        report = facts.NodeReported(
            agent_version=smgate_agent.VERSION,
            gpus=self._inventory.gpus,
            driver_version=self._inventory.driver_version,
            rack=settings.rack,
            chassis=settings.chassis,
            pool=settings.pool,
            ephemeral=settings.ephemeral,
        )
        self.outbox.report("node", report)
        self._node_known.set()

    def _watch_faults(self) -> None:
        for fault in self._nvml.faults(wait_ms=_XID_WAIT_MS):
            if self.stop.is_set():
                return
            if fault is not None and self._faults.add(fault):
                self.outbox.append(facts.GpuFaultSeen(gpu_uuid=fault.gpu_uuid, xid=fault.xid))

    def _close_gap(self) -> None:
        """After a gap everything is said again; when each watcher has, the gap is closed."""
        if not self.outbox.standing().gap_open:
            self._gap_rounds = None
            return
        rounds = found.rounds(self._watchers)
        if self._gap_rounds is None:
            self._gap_rounds = rounds
            self._node_due.set()
            return
        # Two rounds: the first may have begun before the gap.
        if all(now >= self._gap_rounds.get(name, -2) + 2 for name, now in rounds.items()):
            self.outbox.close_gap()

    def _show(self) -> None:
        standing = self.outbox.standing()
        held = self._holder.held if self._holder is not None else None
        reachable = any(link.state.reachable for link in self._links.values())
        self.metrics.outbox_depth.set(standing.depth)
        self.metrics.outbox_dropped.set(standing.dropped)
        self.metrics.reachable.set(reachable)
        self.metrics.enrolled.set(self._credential is not None)
        self.metrics.last_acknowledged.set((standing.last_acknowledged_at_us or 0) / 1e6)
        self.metrics.generation.set(held.generation if held is not None else 0)
        self._news.enrolment(self._credential, self._state_dir)
        self._news.links(self._links)
        self._news.scan(self._finder.shown)
        self._news.outbox(standing, self._state_dir / OUTBOX_FILE)
        self._status_file.write(
            {
                "pid": os.getpid(),
                "links": {name: link.state for name, link in self._links.items()},
                "gpus": self._inventory.gpus,
                "gpus_reason": self._inventory.reason,
                "dropped": standing.dropped,
                "instances": {w.declared.id: w.view for w in self._watchers},
                "scan": self._finder.shown if self._settings.scan_interval_s else None,
            }
        )

    def _start(
        self, name: str, work: Callable[[], None], stop: threading.Event | None = None
    ) -> None:
        thread = threading.Thread(
            target=self._supervise, args=(name, work, stop or self.stop), name=name, daemon=True
        )
        with self._starting:
            self._threads = [*filter(threading.Thread.is_alive, self._threads), thread]
            thread.start()

    def _supervise(self, name: str, work: Callable[[], None], stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                work()
                return
            except Exception:
                log.exception("A thread failed and is started again: %s", name)
                stop.wait(_RESTART_THREAD_S)

    def _end(self) -> None:
        self._hang_up()
        deadline_s = self._edges.clock.monotonic_s() + _STOP_S
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - self._edges.clock.monotonic_s()))
