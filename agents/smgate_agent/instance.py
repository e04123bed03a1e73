"""What one instance is doing, and which facts that makes: pure, one reading after another.

Missing data is `unknown`: it makes no fact, clears no alarm and is never shown as fine. Facts are
offered with the key under which they are compared with what was said last, and a salt that is
new for every start, so that each start is attested by itself.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Final, Literal

from smgate.wire import facts
from smgate_agent import (
    config,
    fallback,
    launch_records,
    log_reader,
    model_config,
    server_args,
    server_info,
)

Http = Literal["ok", "starting", "sick", "refused", "none"]
"""`sick`: the port is open, but the answer is late, wrong or no HTTP. `none`: not asked."""

State = Literal["starting", "serving", "unhealthy", "exited"]

SICK_READINGS: Final = 2
"""One late answer is noise; two polls in a row are a fact."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Everything seen at one moment. None: not known, or not there."""

    http: Http
    info: server_info.ServerInfo | None = None
    architecture: str | None = None
    life: log_reader.Life | None = None
    process: launch_records.Process = "unknown"
    launch: launch_records.LaunchRecord | None = None
    model: model_config.ModelConfig = field(default_factory=model_config.ModelConfig)
    checkpoint_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Offer:
    """A fact to store, unless it was the last one under this key with this salt."""

    key: str
    payload: facts.Payload
    salt: str = ""


@dataclass(frozen=True, kw_only=True)
class View:
    """The instance as it stands, for status and metrics. None: not known."""

    state: State | None = None
    runner: str | None = None
    a2a: str | None = None
    source: Literal["server_info", "log"] | None = None
    architecture: str | None = None
    mxfp4: bool | None = None
    sglang_version: str | None = None
    weight_bytes: int | None = None
    expected_packed_bytes: int | None = None
    verdict: fallback.Verdict = fallback.UNKNOWN
    restarts: int = 0
    launch_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class Memory:
    """What must outlive the agent: the starts that were counted, and what was said last."""

    counted_life: int | None = None
    restarts: int = 0
    state: State | None = None
    launch_id: str | None = None
    fallback_raised: bool = False
    left_life: int | None = None
    """The start that the log told of last when another launch began: not that launch's."""


class Tracker:
    """Folds readings of one instance into facts."""

    def __init__(
        self, instance: config.Instance, architectures: frozenset[str], memory: Memory
    ) -> None:
        self._instance = instance
        self._architectures = architectures
        self._state = memory.state
        self._restarts = memory.restarts
        self._counted_life = memory.counted_life
        self._launch_id = memory.launch_id
        self._fallback_raised = memory.fallback_raised
        self._left_life = memory.left_life
        self._bad_readings = 0
        self.view = View(restarts=memory.restarts)

    @property
    def memory(self) -> Memory:
        """To be kept and given to the next tracker of this instance."""
        return Memory(
            counted_life=self._counted_life,
            restarts=self._restarts,
            state=self._state,
            launch_id=self._launch_id,
            fallback_raised=self._fallback_raised,
            left_life=self._left_life,
        )

    def observe(self, reading: Reading) -> tuple[Offer, ...]:
        """Take one reading; the facts it makes, in the order they should be told."""
        launch_id = self._instance.launch_id or (
            reading.launch.launch_id if reading.launch is not None else None
        )
        reading = self._of_this_launch(reading, launch_id)
        self._count_start(reading, launch_id)
        silent = _is_silent(reading.life)
        reading = self._without_torn(reading, launch_id)
        self._bad_readings = 0 if reading.http in {"ok", "none"} else self._bad_readings + 1
        before, self._state = self._state, self._next_state(reading)
        revived = before == "exited" and self._state in {"starting", "serving"}
        if revived and silent:
            self._restarts += 1
        self._launch_id = launch_id
        self.view = self._look(reading, launch_id)
        return tuple(self._offers(reading))

    def _of_this_launch(self, reading: Reading, launch_id: str | None) -> Reading:
        """Without what the log told before the launch: a gate leaves its record before it starts it.

        The server before it may have run another backend.
        """
        life, before = reading.life, self._launch_id
        if life is None or life.number == 0:
            return reading
        if launch_id != before and None not in {launch_id, before}:
            new = self._counted_life is None or life.number > self._counted_life
            self._left_life = None if new else life.number
            self._state = self._state if new else None
        if life.number == self._left_life:
            return dataclasses.replace(reading, life=None)
        self._left_life = None
        return reading

    def _without_torn(self, reading: Reading, launch_id: str | None) -> Reading:
        """Without a start of which some of the log is lost, unless its process lives, or it ended."""
        life = reading.life
        if life is None or not life.torn or life.died:
            return reading
        same = reading.process == "alive" and launch_id == self._launch_id
        return reading if same else dataclasses.replace(reading, life=None)

    def _count_start(self, reading: Reading, launch_id: str | None) -> None:
        """A new start is a new life in the log, or else a new launch."""
        another = launch_id != self._launch_id and None not in {launch_id, self._launch_id}
        if another and _is_silent(reading.life) and self._left_life is None:
            self._restarts += 1
            self._state = None  # so that it is not counted again when it is seen alive
        if reading.life is None:
            return
        number = reading.life.number
        if self._counted_life is None:
            self._restarts = max(self._restarts, number - 1)
        elif number > self._counted_life:
            # The first start an empty log shows is no restart, unless it ended one that was seen.
            known = self._counted_life > 0 or self._state not in {None, "starting"}
            self._restarts += number - self._counted_life - (0 if known else 1)
            self._state = None
        else:
            return
        self._counted_life = number

    def _next_state(self, reading: Reading) -> State | None:
        if reading.http == "ok":
            return "serving"
        if reading.process == "gone":
            return "exited"
        if self._state in {"serving", "unhealthy"} and reading.http != "none":
            return self._after_serving(reading)
        if reading.http == "starting":
            return "starting"
        return self._by_log(reading)

    def _after_serving(self, reading: Reading) -> State | None:
        """It served, and its port is not as it was."""
        if reading.http == "starting":
            return "unhealthy"  # SGLang answers 503 again while it shuts down
        died = reading.http == "refused" and reading.life is not None and reading.life.died
        if not died and self._bad_readings < SICK_READINGS:
            return self._state
        return "exited" if reading.http == "refused" else "unhealthy"

    def _by_log(self, reading: Reading) -> State | None:
        life = reading.life
        if life is None or (life.number == 0 and not life.died):
            return (self._state or "starting") if reading.process == "alive" else self._state
        if life.died:
            return "exited"
        if not life.ready:
            return "starting"
        if reading.http == "none":
            return "serving"
        # It was ready once, by a log older than this agent, and its port has never answered.
        if self._bad_readings < SICK_READINGS:
            return self._state
        return "exited" if reading.http == "refused" else "unhealthy"

    def _look(self, reading: Reading, launch_id: str | None) -> View:
        args, source = _resolved(reading)
        info, life, launch = reading.info, reading.life, reading.launch
        expected = self._instance.expected_packed_bytes
        if expected is None and args is not None:
            expected = model_config.expected_packed_bytes(
                reading.model, args, checkpoint_bytes=reading.checkpoint_bytes
            )
        weight = info.weight_bytes if info is not None else None
        if weight is None and life is not None:
            weight = life.weight_bytes
        mxfp4 = self._instance.mxfp4
        if mxfp4 is None and launch is not None:
            mxfp4 = launch.mxfp4
        view = View(
            state=self._state,
            runner=args.runner if args is not None else None,
            a2a=args.a2a if args is not None else None,
            source=source,
            architecture=_architecture(reading, self._instance.architecture),
            mxfp4=reading.model.mxfp4 if mxfp4 is None else mxfp4,
            sglang_version=info.version if info is not None else None,
            weight_bytes=weight,
            expected_packed_bytes=expected,
            restarts=self._restarts,
            launch_id=launch_id,
        )
        return _with_verdict(view, reading, self._architectures)

    def _offers(self, reading: Reading) -> list[Offer]:
        view = self.view
        if view.state is None:
            return []
        name = self._instance.id
        salt = f"{view.launch_id}:{view.restarts}"
        offers = [Offer(key=f"instance:{name}", payload=self._changed(reading.launch))]
        if view.state == "exited":
            return offers + self._fallback_offers(salt)  # what it resolved was said while it ran
        if view.runner is not None and view.a2a is not None and view.source is not None:
            effective = facts.EffectiveSeen(
                instance_id=name,
                runner=view.runner,
                a2a=view.a2a,
                source=view.source,
                architecture=view.architecture,
                mxfp4=view.mxfp4,
                sglang_version=view.sglang_version,
            )
            offers.append(Offer(key=f"effective:{name}", payload=effective, salt=salt))
        if view.weight_bytes is not None:
            weights = facts.WeightsSeen(
                instance_id=name,
                weight_bytes=view.weight_bytes,
                expected_packed_bytes=view.expected_packed_bytes,
            )
            offers.append(Offer(key=f"weights:{name}", payload=weights, salt=salt))
        offers += self._fallback_offers(salt)
        return offers

    def _changed(self, launch: launch_records.LaunchRecord | None) -> facts.InstanceChanged:
        instance, view = self._instance, self.view
        assert view.state is not None
        spans = launch if launch is not None and instance.nnodes == 1 else instance
        return facts.InstanceChanged(
            instance_id=instance.id,
            state=view.state,
            gpu_uuids=instance.gpu_uuids or (launch.gpu_uuids if launch is not None else ()),
            launch_id=view.launch_id,
            unit_name=instance.unit_name or (launch.unit_name if launch is not None else None),
            workload=instance.workload or (launch.workload if launch is not None else None),
            rendezvous=instance.rendezvous or (launch.rendezvous if launch is not None else None),
            nnodes=spans.nnodes,
            node_rank=spans.node_rank,
            restarts=view.restarts,
        )

    def _fallback_offers(self, salt: str) -> list[Offer]:
        name, verdict, state = self._instance.id, self.view.verdict, self.view.state
        key = f"fallback:{name}"
        gone = state == "exited" and verdict.phase != "crashed"
        if verdict.phase is not None and not gone:
            self._fallback_raised = True
            seen = facts.MemoryFallbackSeen(
                instance_id=name, phase=verdict.phase, excess_bytes=verdict.excess_bytes
            )
            return [Offer(key=key, payload=seen, salt=salt)]
        packed = state == "serving" and verdict.known
        if self._fallback_raised and (gone or packed):
            self._fallback_raised = False
            return [
                Offer(key=key, payload=facts.MemoryFallbackCleared(instance_id=name), salt=salt)
            ]
        return []


def _is_silent(life: log_reader.Life | None) -> bool:
    """There is no log, or none that ever told of a start."""
    return life is None or life.number == 0


def _resolved(
    reading: Reading,
) -> tuple[server_args.ServerArgs | None, Literal["server_info", "log"] | None]:
    """The resolved arguments, from the server itself if it was asked, else from its log."""
    if reading.info is not None and reading.info.args.runner is not None:
        return reading.info.args, "server_info"
    if reading.life is not None and reading.life.initialised and reading.life.args is not None:
        return reading.life.args, "log"
    return None, None


def _architecture(reading: Reading, declared: str | None) -> str | None:
    """The server's own word first, then what was read of the model, then what was said of it."""
    launch = reading.launch.architecture if reading.launch is not None else None
    life = reading.life.architecture if reading.life is not None else None
    return reading.architecture or reading.model.architecture or launch or declared or life


def _with_verdict(view: View, reading: Reading, architectures: frozenset[str]) -> View:
    life = reading.life
    loaded = reading.http == "ok" or reading.info is not None or (life is not None and life.loaded)
    evidence = fallback.Evidence(
        stage="loaded" if loaded else "loading",
        architecture=view.architecture,
        mxfp4=view.mxfp4,
        runner=view.runner,
        a2a=view.a2a,
        weight_bytes=view.weight_bytes,
        expected_packed_bytes=view.expected_packed_bytes,
        upcast_ran_out_of_memory=life is not None and life.upcast_ran_out_of_memory,
    )
    verdict = fallback.judge(evidence, architectures)
    return dataclasses.replace(view, verdict=verdict)
