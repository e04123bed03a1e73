"""Watch servers that nobody declared: each process that is found, from its start to its end.

A server is told to the controller once its GPUs are known, since they say which unit it is: by the
launch gate's record of this very process, or by the driver's list of who uses which GPU, when two
looks in a row agree. Its name is made of its GPUs, so it stays the same from one start to the next.
What is watched is written down: a server that ended while the agent was away has ended, not vanished.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from smgate_agent import clock, config, files, launch_records, scan, watch
from smgate_agent.launch import whole_file

FOUND_FILE: Final = "found.json"
BOOT_ID: Final = "sys/kernel/random/boot_id"

Users = Callable[[], Mapping[str, frozenset[int]] | None]
"""Who uses which GPU: process ids by GPU UUID; None where the driver cannot be asked."""
Start = Callable[[config.Instance, watch.ProcessState], watch.Watcher]


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """One process, and what it is watched as."""

    declared: config.Instance
    pid: int
    start_ticks: int
    boot: str


@dataclass(frozen=True)
class _Watched:
    found: Found
    watcher: watch.Watcher


@dataclass(frozen=True, kw_only=True)
class Shown:
    """For status: servers seen, of which some are not told yet, and why some may not be seen."""

    servers: int = 0
    not_told: int = 0
    code: str | None = None
    sentence: str = ""


@dataclass
class Finder:
    """Looks now and then; used by one thread, shown to others."""

    settings: config.AgentConfig
    users: Users
    start: Start
    stop: threading.Event
    clock_: clock.Clock
    proc: Path = scan.PROC
    shown: Shown = field(default_factory=Shown)
    _watched: dict[str, _Watched] = field(default_factory=dict)
    _before: dict[tuple[int, int], tuple[str, ...]] = field(default_factory=dict)
    """GPUs of a process at the last look."""

    @property
    def watchers(self) -> list[watch.Watcher]:
        """Those of found servers, also of ones that have just ended."""
        return [one.watcher for one in list(self._watched.values())]

    def run(self) -> None:
        """Look until told to stop."""
        self.resume()
        while not self.stop.is_set():
            self.step()
            self.stop.wait(self.settings.scan_interval_s)

    def resume(self) -> None:
        """Go on with what was watched before the agent was restarted."""
        try:
            data = files.read_bounded(self._path)
            saved = msgspec.json.decode(data, type=tuple[Found, ...])
        except (OSError, msgspec.MsgspecError, ValueError, RecursionError):
            return
        for found in saved:
            if found.declared.id not in self._watched:
                self._watch(found)

    def step(self) -> None:
        """Look once."""
        seen = scan.look(self.proc)
        before = self._known()
        for name in [name for name, one in self._watched.items() if one.watcher.ended]:
            del self._watched[name]
        not_told, now = 0, dict[tuple[int, int], tuple[str, ...]]()
        running = self._known()
        for server in seen.servers:
            process = (server.pid, server.start_ticks)
            if process in running or self._is_declared(server):
                continue
            found, gpus = self._place(server)
            now[process] = gpus
            taken = found is None or set(gpus) & self._declared_gpus()
            if found is not None and not taken and found.declared.id not in self._watched:
                self._watch(found)
            not_told += found is None
        self._before = now
        self.shown = Shown(
            servers=len(seen.servers), not_told=not_told, code=seen.code, sentence=seen.sentence
        )
        if self._known() != before:
            self._save()

    @property
    def _path(self) -> Path:
        return Path(self.settings.state_dir) / FOUND_FILE

    def _known(self) -> set[tuple[int, int]]:
        return {(one.found.pid, one.found.start_ticks) for one in self._watched.values()}

    def _declared_gpus(self) -> set[str]:
        return {uuid for one in self.settings.instance for uuid in one.gpu_uuids}

    def _is_declared(self, server: scan.Server) -> bool:
        """By its address or its log; by its GPUs once they are known."""
        return any(
            (server.url is not None and declared.url == server.url)
            or (server.log is not None and declared.log == server.log)
            for declared in self.settings.instance
        )

    def _place(self, server: scan.Server) -> tuple[Found | None, tuple[str, ...]]:
        """What it is watched as, or None while its GPUs are not known; and its GPUs."""
        record = record_of(server, Path(self.settings.state_dir), self.proc)
        gpus = tuple(sorted(record.gpu_uuids)) if record is not None else ()
        if not gpus:
            gpus = self._gpus(server)
            settled = self._before.get((server.pid, server.start_ticks)) == gpus
            if len(gpus) < server.gpu_count or not settled:
                return None, gpus
        declared = config.Instance(
            id=self._name(gpus, server),
            url=server.url,
            log=server.log,
            log_format=server.log_format,
            gpu_uuids=gpus,
            unit_name=record.unit_name if record is not None else None,
            workload=record.workload if record is not None else None,
            rendezvous=(record.rendezvous if record is not None else None) or server.rendezvous,
            nnodes=record.nnodes if record is not None else server.nnodes,
            node_rank=record.node_rank if record is not None else server.node_rank,
            launch_id=record.launch_id if record is not None else None,
            bake_interval_s=self.settings.bake_interval_s,
        )
        boot = self._boot()
        return Found(
            declared=declared, pid=server.pid, start_ticks=server.start_ticks, boot=boot
        ), gpus

    def _name(self, gpus: Sequence[str], server: scan.Server) -> str:
        name = f"found-{hashlib.sha256(','.join(gpus).encode()).hexdigest()[:8]}"
        other = self._watched.get(name)
        if other is None or self._process(other.found) == "gone":
            return name
        return f"{name}-{server.pid}"  # two live servers on the same GPUs

    def _gpus(self, server: scan.Server) -> tuple[str, ...]:
        users = self.users()
        return tuple(
            sorted(
                uuid
                for uuid, pids in (users or {}).items()
                if any(server.pid in scan.parents(pid, self.proc) for pid in pids)
            )
        )

    def _watch(self, found: Found) -> None:
        watcher = self.start(found.declared, lambda: self._process(found))
        self._watched[found.declared.id] = _Watched(found, watcher)

    def _process(self, found: Found) -> launch_records.Process:
        boot = self._boot()
        if boot and found.boot and boot != found.boot:
            return "gone"
        alive = scan.alive(found.pid, found.start_ticks, self.proc)
        return "unknown" if alive is None else "alive" if alive else "gone"

    def _boot(self) -> str:
        try:
            return files.read_bounded(self.proc / BOOT_ID, bytes_max=200).decode("ascii").strip()
        except (OSError, UnicodeDecodeError):
            return ""

    def _save(self) -> None:
        """Tried, never needed: without it a server that ends meanwhile is told with the next one."""
        saved = [one.found for one in self._watched.values()]
        with contextlib.suppress(OSError):
            whole_file.replace(self._path, msgspec.json.encode(saved))


def record_of(
    server: scan.Server, state_dir: Path, proc: Path = scan.PROC
) -> launch_records.LaunchRecord | None:
    """The launch gate's record of this process, beside the agent or in its own container."""
    launched = scan.launched_as(server.pid, proc)
    if launched is None:
        return None
    inside = proc / str(server.pid) / "root" / config.DEFAULT_STATE_DIR.lstrip("/")
    for folder in (state_dir, inside):
        for record in launch_records.read(folder):
            if (record.pid_namespace, record.pid) == launched:
                return record
    return None


def rounds(watchers: Iterable[watch.Watcher]) -> dict[str, int]:
    """Readings made by each watcher that still reads, by the name of its instance."""
    return {one.declared.id: one.rounds for one in watchers if not one.ended}
