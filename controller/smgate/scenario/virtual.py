"""A fleet that plays itself against the real core: one seed gives one history, byte for byte.

Servers, people and misfortunes are generators that yield how many seconds pass until they go on.
They react to what smgate tells them; a watch reads the log beside it and asks every invariant.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from smgate.domain import commands, decisions, exposure, facts as domain_facts, readings, rulings
from smgate.domain.events import Recorded
from smgate.domain.state import Fleet, Unit
from smgate.domain.waits import SECOND_US
from smgate.log import codec, verify
from smgate.scenario import core, document, telling, watch
from smgate.service.refusal import RefusedError
from smgate.wire import facts

Actor = Generator[float, None, None]

START_US: Final = round(datetime(2026, 1, 5, tzinfo=UTC).timestamp()) * SECOND_US
"""A Monday."""
HOUR: Final = 3_600.0
DAY: Final = 24 * HOUR
LOOK_EVERY: Final = 40
"""Every so many turns the whole fleet is planned anew beside the controller's incremental plan."""

FAULTS: Final = (
    "away",
    "bf16",
    "broken",
    "crash",
    "driver",
    "hang",
    "image",
    "late",
    "lost",
    "people",
    "reimage",
    "silence",
    "wrong",
)
"""What may go wrong; each may be left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """One run: the seed, the size, and what may go wrong."""

    seed: int
    nodes: int = 60
    days: float = 14.0
    faults: frozenset[str] = frozenset(FAULTS)


@dataclass(slots=True)
class Machine:
    """One node: what it is, and what of it nobody can see."""

    name: str
    sm: str
    rack: str
    pool: bool
    build: facts.Build
    gpu: str
    """The UUID of its GPUs, taken as one: it stays when the host gets another name."""
    broken: bool = False
    connected: bool = True
    waiting: list[facts.Payload] = field(default_factory=list)

    @property
    def gpus(self) -> tuple[facts.Gpu, ...]:
        """Its GPUs as one set of one."""
        return (facts.Gpu(uuid=self.gpu, sm=self.sm),)

    def reported(self) -> facts.NodeReported:
        """What its agent says of it."""
        return facts.NodeReported(
            agent_version="0.1.0",
            gpus=self.gpus,
            driver_version=self.build.driver_version,
            rack=self.rack,
            chassis=f"chassis-{self.gpu}",
            pool=self.pool,
        )


class World:
    """The machines, the people's commands, the core, and what is told of it all."""

    def __init__(self, spec: Spec) -> None:
        self.spec: Final = spec
        self.rng: Final = random.Random(spec.seed)  # noqa: S311  a simulation, no secret
        self.core: Final = core.Core(START_US, name="virtual")
        self.watch: Final = watch.Watch()
        self.machines: Final[list[Machine]] = []
        self.wrong: Final[set[str]] = set()
        """FlashInfer versions whose kernel is wrong on SM107: only a check or a crash shows it."""
        self.unseen: Final[set[str]] = set()
        """Those of them that every self-test passes: only serving shows it."""
        self.counts: Final[Counter[str]] = Counter()
        self.lines: Final[list[str]] = []
        self.exposure: Final[list[dict[str, int]]] = []
        self._due: Final[list[tuple[int, int, Actor]]] = []
        self._started = 0
        self._turns = 0

    # What actors may ask and do

    @property
    def now_us(self) -> int:
        """The moment it is."""
        return self.core.clock.now_us()

    @property
    def now_s(self) -> float:
        """Seconds since the start."""
        return (self.now_us - START_US) / SECOND_US

    @property
    def fleet(self) -> Fleet:
        """What the log says: the watch's own fold."""
        return self.watch.fleet

    def may(self, fault: str) -> bool:
        """True if this may go wrong in this run."""
        return fault in self.spec.faults

    def start(self, actor: Actor, after_s: float = 0.0) -> None:
        """Let an actor begin."""
        self._started += 1
        at_us = self.now_us + round(after_s * SECOND_US)
        heapq.heappush(self._due, (at_us, self._started, actor))

    def report(self, machine: Machine, *told: facts.Payload) -> None:
        """A machine's agent reports; behind a broken network it keeps everything for later."""
        machine.waiting.extend(told)
        if machine.connected and machine.waiting:
            self.core.report(machine.name, tuple(machine.waiting))
            machine.waiting.clear()
            self._settle()

    def command(
        self,
        by: str,
        command: commands.Command,
        *,
        role: document.Role = "approver",
        accepted_by: str | None = None,
        break_glass_s: int | None = None,
    ) -> bool:
        """A person gives a command, and another may accept it at once; True if it was not refused."""
        self.counts["commands"] += 1
        try:
            waits = self.core.command(command, by=by, role=role, break_glass_s=break_glass_s)
            if waits is not None and accepted_by is not None:
                accept = commands.AcceptChange(change=waits, reason="Looked at it too.")
                self.core.command(accept, by=accepted_by, role="approver")
        except RefusedError as error:
            self.counts["refused"] += 1
            self.tell(f"{by}: {type(command).__name__} REFUSED ({error.code}) {error.message}")
            return False
        self._settle()
        return True

    def unit_of(self, launch_id: str) -> str:
        """The unit of a launch that smgate has heard of; empty if it has not."""
        return self.fleet.launch_units.get(launch_id, "")

    def told_otherwise(self, launch_id: str, told: str | None) -> bool:
        """True if the next start of this server would have another value than it runs with."""
        unit = self.fleet.units.get(self.unit_of(launch_id))
        override = unit.override if unit is not None else None
        return override is not None and override.form == "append" and override.value != told

    def tell(self, line: str) -> None:
        """One line of the report."""
        day, second = divmod(round(self.now_s), round(DAY))
        self.lines.append(f"day {day + 1:2} {second // 3600:02}:{second // 60 % 60:02}  {line}")

    # The run

    def run(self) -> None:
        """Play to the end."""
        end_us = START_US + round(self.spec.days * DAY * SECOND_US)
        self._settle()
        self.start(self._days())
        while self._due and self._due[0][0] < end_us:
            at_us, number, actor = heapq.heappop(self._due)
            self.core.run_until(at_us, self._read)
            self._read()
            after_s = next(actor, None)
            if after_s is not None:
                due_us = self.now_us + max(1, round(after_s * SECOND_US))
                heapq.heappush(self._due, (due_us, number, actor))
        self.core.run_until(end_us, self._read)
        self._read()
        self._look()
        with self.core.folder.at_head() as fleet:
            self.watch.same_as(fleet)

    def _days(self) -> Actor:
        while True:
            self.exposure.append(self._exposure())
            yield DAY
            self.watch.snapshot()

    def _settle(self) -> None:
        self.core.settle()
        self._read()
        self._turns += 1
        if self._turns % LOOK_EVERY == 0:
            self._look()

    def _look(self) -> None:
        if self.core.away_since_us is None:
            self.watch.settled(self.now_us)

    def _read(self) -> None:
        while page := self.core.store.read(after=self.watch.fleet.position):
            recorded = [codec.recorded(record) for record in page]
            self.watch.take(recorded)
            for line in telling.report(recorded):
                self.tell(line)
            for one in recorded:
                self._count(one)

    def _count(self, recorded: Recorded) -> None:
        match recorded.event:
            case rulings.RolloutHalted():
                self.counts["halts"] += 1
            case decisions.BreakerTripped():
                self.counts["breaker_trips"] += 1
            case decisions.RolloutCompleted():
                self.counts["completed"] += 1
            case domain_facts.LaunchPlanned(node_rank=0):
                self.counts["starts"] += 1
            case domain_facts.InstanceChanged(state="exited", exit_code=1):
                self.counts["crashes"] += 1
            case decisions.Granted() as granted:
                self.counts["grants"] += 1
                unit = self.fleet.units[granted.unit]
                self.counts["grants_on_wrong_kernels"] += self._runs_wrong(unit)
            case decisions.DrainOrdered():
                self.counts["drains"] += 1
            case decisions.DrainFailed():
                self.counts["drains_failed"] += 1
            case decisions.GrantEnded():
                self.counts["grants_ended"] += 1
            case decisions.OverrideSet():
                self.counts["decisions"] += 1
            case _:  # told elsewhere, or no number of interest
                pass

    def _runs_wrong(self, unit: Unit) -> bool:
        builds = {rank.planned.build.flashinfer_version for rank in unit.known_ranks.values()}
        return not self.wrong.isdisjoint(builds)

    def _exposure(self) -> dict[str, int]:
        fleet = self.fleet
        units = [unit for unit in fleet.units.values() if unit.live]
        on_target = [unit for unit in units if exposure.runs_target(fleet, unit)]
        return {
            "day": len(self.exposure) + 1,
            "units": len(units),
            "granted": sum(readings.grant_in_force(fleet, unit) is not None for unit in units),
            "on_target": len(on_target),
            "on_wrong_kernels": sum(self._runs_wrong(unit) for unit in on_target),
            "exposed": sum(exposure.exposed(fleet, unit) for unit in units),
            "uncontrolled": sum(exposure.uncontrolled(fleet, unit) for unit in units),
        }

    def summary(self) -> dict[str, Any]:
        """What came of it, in numbers."""
        stored = verify.verify(self.core.store)
        return {
            "seed": self.spec.seed,
            "nodes": self.spec.nodes,
            "days": self.spec.days,
            "faults": sorted(self.spec.faults),
            "log_events": stored.positions,
            "chain_ok": stored.ok,
            "counts": dict(sorted(self.counts.items())),
            "exposure": [*self.exposure, self._exposure()],
            "checks": dict(sorted(self.watch.checks.items())),
            "violations": [
                {"invariant": one.invariant, "position": one.position, "sentence": one.sentence}
                for one in self.watch.violations
            ],
        }
