"""Watch one instance: read its log, ask its port, and offer what follows to the outbox.

One thread per instance, so that a server that hangs holds up nobody else. Everything read is
bounded; what cannot be used is counted and leaves the instance unknown.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from smgate.wire import facts
from smgate_agent import (
    bake,
    clock,
    config,
    files,
    http1,
    instance,
    launch_records,
    log_files,
    log_frames,
    log_reader,
    metrics,
    model_files,
    nvml,
    outbox,
    server_info,
    tail,
)
from smgate_agent.launch import whole_file

T = TypeVar("T")

ProcessState = Callable[[], launch_records.Process]
"""Whether the process of a server lives, where somebody knows which one it is."""

DIRECTORY: Final = "watch"
LOG_PIECES_MAX: Final = 32
"""Pieces read before the port is asked again: 8 MiB, so that a long log delays no health check."""
BODY_BYTES_MAX: Final = 1 << 20
"""Ten times a real `/server_info`; eight servers that lie at once must fit in memory."""
KEY_BYTES_MAX: Final = 4096
SAVE_STEP_BYTES: Final = 1 << 20
"""A place in a log is written down this often, or when what the log says changed."""
_OK: Final = 200
_NOT_FOUND: Final = 404
_UNAVAILABLE: Final = 503
_OLDER_NAMES: Final = {"server_info": "/get_server_info", "model_info": "/get_model_info"}
"""Deprecated in SGLang, kept by what speaks like it."""


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """What a restarted agent continues from."""

    place: log_files.Place | None = None
    life: log_reader.Life = log_reader.Life()
    memory: instance.Memory = instance.Memory()


class Watcher:
    """One instance's thread."""

    def __init__(  # noqa: PLR0913  what it works with, and what it is told of the process
        self,
        declared: config.Instance,
        settings: config.AgentConfig,
        *,
        outbox_: outbox.Outbox,
        metrics_: metrics.Metrics,
        clock_: clock.Clock,
        stop: threading.Event,
        faults: nvml.FaultLog,
        wanted: bake.Wanted,
        process: ProcessState | None = None,
    ) -> None:
        self._faults = faults
        self._wanted = wanted
        self._process = process
        self.ended = False
        """The one process this watcher is for has ended, and that was told."""
        self.declared = declared
        self._settings = settings
        self._outbox = outbox_
        self._metrics = metrics_
        self._clock = clock_
        self._stop = stop
        self._saved_path = Path(settings.state_dir) / DIRECTORY / f"{_file_name(declared.id)}.json"
        saved = self._load()
        self._saved: Saved | None = saved
        self._tail = tail.Tail(declared.log, place=saved.place) if declared.log else None
        self._place = saved.place
        self._framer = log_frames.Framer(declared.log_format)
        self._log = log_reader.LogReader(saved.life)
        self._caught_up = self._tail is None
        self._tracker = instance.Tracker(declared, frozenset(settings.architectures), saved.memory)
        self._info: server_info.ServerInfo | None = None
        self._architecture: str | None = None
        self._info_due_s = 0.0
        self._life_number = saved.life.number
        self._models = model_files.ModelFiles(settings.hf_home)
        self._bake: tuple[float, bake.Counters, int, int] | None = None
        self._told_idle = False
        self.rounds = 0
        """Readings made; the resident waits for one of each before it closes a gap."""

    @property
    def view(self) -> instance.View:
        """The instance as it stands."""
        return self._tracker.view

    def run(self) -> None:
        """Read until told to stop."""
        while not (self._stop.is_set() or self.ended):
            self.step()
            if self._caught_up and not self.ended:
                self._stop.wait(self._settings.poll_interval_s)
        if self._tail is not None:
            self._tail.close()

    def step(self) -> None:
        """One reading, and the facts that follow from it."""
        self._read_log()
        if not self._caught_up:
            return  # what an old log tells on the way is history, not news
        reading = self._reading()
        for offer in self._tracker.observe(reading):
            self._outbox.report(offer.key, offer.payload, salt=offer.salt)
        self._bake_interval(reading)
        view = self.view
        if view.state in {"starting", "exited"}:
            self._forget_info()
        self._metrics.instance(self.declared.id, state=view.state, phase=view.verdict.phase)
        self._save()
        self.rounds += 1
        self.ended = self._process is not None and reading.process == "gone"

    def _read_log(self) -> None:
        if self._tail is None:
            return
        malformed = self._framer.malformed
        for _ in range(LOG_PIECES_MAX):
            piece = self._tail.read()
            if piece.fresh:
                self._framer.reset(rotated=piece.rotated)
            if piece.lost:
                self._log.lose()
            for line in self._framer.feed(piece.data):
                self._log.line(line)
            self._place = self._tail.place(behind_bytes=self._framer.unfinished_bytes)
            if not piece.data:
                self._caught_up = True
                break
            if self._stop.is_set():
                break
        if self._framer.malformed > malformed:
            self._count("log", "malformed")
        if self._log.life.number != self._life_number:
            self._life_number = self._log.life.number
            self._forget_info()

    def _reading(self) -> instance.Reading:
        launch = self._launch()
        process: launch_records.Process = "unknown"
        if self._process is not None:
            process = self._process()
        elif launch is not None:
            process = launch_records.process(launch)
        # Where a process that is gone listened, another one may answer now.
        gone = self._process is not None and process == "gone"
        status: instance.Http = "none" if gone else self._health()
        if status == "ok" and self.declared.node_rank == 0:
            self._ask_info()
        args = self._info.args if self._info is not None else self._log.life.args
        model, checkpoint_bytes = self._models.look(
            self.declared, launch, args.model_path if args is not None else None
        )
        return instance.Reading(
            http=status,
            info=self._info,
            architecture=self._architecture,
            life=self._log.life if self._tail is not None else None,
            process=process,
            launch=launch,
            model=model,
            checkpoint_bytes=checkpoint_bytes,
        )

    def _launch(self) -> launch_records.LaunchRecord | None:
        records = launch_records.read_all(
            Path(self._settings.state_dir), now_us=self._clock.now_us()
        )
        alone = len(self._settings.instance) == 1
        return launch_records.record_of(self.declared, records, alone=alone)

    def _health(self) -> instance.Http:
        if self.declared.url is None:
            return "none"
        try:
            answer = self._get("/health")
        except http1.HttpError as exc:
            if exc.code == "refused":
                return "refused"
            self._count("health", exc.code)
            return "sick"
        if answer.status == _OK and answer.body.lstrip()[:1] == b"<":
            self._count("health", "malformed")
            return "sick"  # a page for people: whoever has the port, it is not SGLang
        if answer.status == _OK:
            return "ok"
        return "starting" if answer.status == _UNAVAILABLE else "sick"

    def _ask_info(self) -> None:
        now_s = self._clock.monotonic_s()
        if self._info is not None and now_s < self._info_due_s:
            return
        info = self._ask("server_info", server_info.parse)
        if info is None:
            return
        self._info = info
        self._architecture = self._ask("model_info", server_info.parse_architecture)
        self._info_due_s = now_s + self._settings.info_interval_s

    def _ask(self, source: str, parse: Callable[[bytes], T]) -> T | None:
        try:
            answer = self._get(f"/{source}")
            if answer.status == _NOT_FOUND and source in _OLDER_NAMES:
                answer = self._get(_OLDER_NAMES[source])
            return parse(answer.body) if answer.status == _OK else None
        except http1.HttpError as exc:
            self._count(source, exc.code)
        except server_info.MalformedBodyError:
            self._count(source, "malformed")
        return None

    def _get(self, path: str) -> http1.Answer:
        assert self.declared.url is not None
        client = http1.Client(self.declared.url, clock_=self._clock, keep_alive=False)
        headers = {}
        if self.declared.api_key_file is not None:
            with contextlib.suppress(OSError):
                key = files.read_bounded(Path(self.declared.api_key_file), bytes_max=KEY_BYTES_MAX)
                headers["Authorization"] = f"Bearer {key.decode('latin-1').strip()}"
        return client.request(
            "GET",
            path,
            timeout_s=self._settings.request_timeout_s,
            headers=headers,
            body_bytes_max=BODY_BYTES_MAX,
        )

    def _bake_interval(self, reading: instance.Reading) -> None:
        if self.declared.bake_interval_s == 0 or reading.http != "ok":
            return
        if not self._wanted.of(self.declared.id):
            self._bake = None  # the next interval begins when one is wanted
            return
        now_s = self._clock.monotonic_s()
        if self._bake is not None and now_s < self._bake[0] + self.declared.bake_interval_s:
            return
        counters = self._ask("metrics", lambda body: bake.parse(body.decode("utf-8", "replace")))
        if counters is None:
            self._bake = None
            return
        restarts = self.view.restarts
        xids = self._faults.count(self.declared.gpu_uuids)
        if self._bake is not None:
            since_s, before, restarts_before, xids_before = self._bake
            fact = bake.interval(
                self.declared.id,
                before,
                counters,
                elapsed_s=now_s - since_s,
                restarts=restarts - restarts_before,
                xids=xids - xids_before,
            )
            if fact is not None:
                idle = bake.is_idle(fact)
                if not (idle and self._told_idle):
                    self._outbox.append(fact)
                self._told_idle = idle
        self._bake = (now_s, counters, restarts, xids)

    def _forget_info(self) -> None:
        self._info = None
        self._architecture = None

    def _count(self, source: str, reason: str) -> None:
        if reason in metrics.REASONS:
            self._metrics.failures.labels(self.declared.id, source, reason).inc()

    def _load(self) -> Saved:
        last = self._outbox.last_reported(f"instance:{self.declared.id}")
        fallback = self._outbox.last_reported(f"fallback:{self.declared.id}")
        try:
            saved = msgspec.json.decode(files.read_bounded(self._saved_path), type=Saved)
        except (OSError, msgspec.MsgspecError, ValueError):
            saved = Saved()
        if not isinstance(last, facts.InstanceChanged):
            return saved
        # The outbox is durable at every fact; the file beside it may be older.
        memory = saved.memory
        return msgspec.structs.replace(
            saved,
            memory=instance.Memory(
                counted_life=memory.counted_life,
                restarts=max(memory.restarts, last.restarts),
                state=last.state,
                launch_id=last.launch_id,
                fallback_raised=isinstance(fallback, facts.MemoryFallbackSeen),
            ),
        )

    def _save(self) -> None:
        saved = Saved(place=self._place, life=self._log.life, memory=self._tracker.memory)
        before = self._saved
        same = before is not None and (saved.life, saved.memory) == (before.life, before.memory)
        if same and before is not None and not _moved_on(before.place, saved.place):
            return
        with contextlib.suppress(OSError):
            self._saved_path.parent.mkdir(parents=True, exist_ok=True)
            whole_file.replace(self._saved_path, msgspec.json.encode(saved))
            self._saved = saved


def _moved_on(before: log_files.Place | None, now: log_files.Place | None) -> bool:
    if before is None or now is None:
        return before is not now
    if (before.device, before.inode) != (now.device, now.inode):
        return True
    return not 0 <= now.offset - before.offset < SAVE_STEP_BYTES


def _file_name(instance_id: str) -> str:
    return instance_id.replace("/", "%2F")
