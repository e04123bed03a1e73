"""What happened to one unit: which events of the log are about it, and how each reads.

A node's fact names a launch, a server or a GPU and seldom the unit, so what belongs to the unit is
asked of the fold at the head: launch ids are never used twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from smgate.domain import bodies, decisions, facts, keys, revocation, rulings, values, why
from smgate.domain.events import Event, Recorded
from smgate.domain.state import Fleet

OF_A_SERVER: Final = (
    facts.EffectiveSeen,
    facts.MemoryFallbackSeen,
    facts.MemoryFallbackCleared,
)
"""Facts that name a server of their node."""
HAS_UNITS: Final = (
    decisions.WaveOpened,
    decisions.BreakerTripped,
    decisions.ChangeHeld,
    revocation.GrantRevoked,
)
OF_A_LAUNCH: Final = (facts.OverrideApplied, decisions.SelfTestWanted)


@dataclass(slots=True, kw_only=True)
class Scope:
    """What belongs to a unit, read off a fold."""

    unit: str
    nodes: frozenset[str]
    launch_ids: frozenset[str]
    gpu_uuids: frozenset[str]
    servers: dict[tuple[str, str], str] = field(default_factory=dict)
    """(node, server) -> its unit as last heard; kept up while events are read in order."""

    def concerns(self, recorded: Recorded) -> bool:
        """Whether an event is about this unit. Ask in the order of the log."""
        event = recorded.event
        if isinstance(event, facts.Fact) and not isinstance(event, facts.DrainHookEnded):
            return self._fact(recorded.actor.removeprefix("node:"), event)
        if isinstance(event, OF_A_LAUNCH):
            return event.launch_id in self.launch_ids
        if isinstance(event, decisions.WaveJudged):
            return self.unit in event.good or self.unit in event.bad
        if isinstance(event, HAS_UNITS):
            return self.unit in event.units
        named = getattr(event, "unit", None)
        if isinstance(event, rulings.ChangeAsked | rulings.BreakGlassUsed):
            named = event.body.get("unit")
        elif isinstance(event, decisions.WaitTimedOut):
            named = event.subject
        return bool(named == self.unit)

    def _fact(self, node: str, fact: facts.Fact) -> bool:
        if node not in self.nodes:
            return False
        if isinstance(fact, facts.LaunchPlanned | facts.OverrideApplied):
            return fact.launch_id in self.launch_ids
        if isinstance(fact, facts.InstanceChanged):
            mine = fact.launch_id in self.launch_ids or (
                fact.launch_id is None and keys.unit_id(node, fact, fact.gpu_uuids) == self.unit
            )
            self.servers[node, fact.instance_id] = self.unit if mine else ""
            return mine
        if isinstance(fact, OF_A_SERVER):
            return self.servers.get((node, fact.instance_id)) == self.unit
        if isinstance(fact, facts.CheckFinished):
            return fact.launch_id in self.launch_ids or bool(
                self.gpu_uuids.intersection(fact.gpu_uuids)
            )
        return isinstance(fact, facts.GpuFaultSeen) and fact.gpu_uuid in self.gpu_uuids


def scope(fleet: Fleet, unit_id: str) -> Scope:
    """What belongs to a unit of this fold."""
    unit = fleet.units[unit_id]
    gpus = {uuid for uuid, units in fleet.gpu_units.items() if unit_id in units}
    gpus.update(uuid for rank in unit.known_ranks.values() for uuid in rank.gpu_uuids)
    return Scope(
        unit=unit_id,
        nodes=frozenset(node for node, units in fleet.node_units.items() if unit_id in units),
        launch_ids=frozenset(one for one, name in fleet.launch_units.items() if name == unit_id),
        gpu_uuids=frozenset(gpus),
        servers={name: instance.unit for name, instance in fleet.instances.items()},
    )


def row(recorded: Recorded) -> dict[str, Any]:
    """One event as a line of a unit's history."""
    event = recorded.event
    found: dict[str, Any] = {
        "position": recorded.position,
        "at": why.iso(recorded.at_us),
        "type": type(event).__name__,
        "actor": recorded.actor,
        "says": _says(event),
    }
    if isinstance(event, decisions.OverrideSet):
        would = event.would
        found |= {"form": event.form, "value": event.value, "code": event.code}
        found["would"] = would and {"form": would.form, "value": would.value, "code": would.code}
    elif isinstance(event, decisions.GrantEnded):
        found["code"] = event.code
    return found


def _says(event: Event) -> str:
    match event:
        case decisions.OverrideSet():
            told = f"{_value(event)}: {event.code}"
            if event.would is not None:
                told += f" (would be {_value(event.would)}: {event.would.code})"
            said = f"{told}. {event.sentence}"
        case decisions.WaveOpened():
            said = f"wave {event.wave} of rollout {event.rollout} opened with it"
        case decisions.WaveJudged():
            said = f"wave {event.wave} of rollout {event.rollout} {event.verdict}: {event.sentence}"
        case (
            decisions.DrainOrdered()
            | decisions.DrainFinished()
            | decisions.DrainFailed()
            | facts.DrainHookEnded()
        ):
            said = _of_a_drain(event)
        case rulings.ChangeAsked() | rulings.BreakGlassUsed():
            said = f"{_how(event)}: {bodies.describe(event.command, event.body)}. {event.reason}"
        case facts.InstanceChanged():
            code = "" if event.exit_code is None else f" with exit code {event.exit_code}"
            said = f"{event.instance_id} is {event.state}{code}"
        case facts.MemoryFallbackSeen():
            said = f"{event.instance_id} has MXFP4 experts in BF16: {event.phase}"
        case facts.MemoryFallbackCleared():
            said = f"{event.instance_id} runs packed again, or is gone"
        case facts.OverrideApplied():
            said = f"launch {event.launch_id}: {_value(event)}"
        case _:
            said = why.says(event)
    return said


def _of_a_drain(
    event: decisions.DrainOrdered
    | decisions.DrainFinished
    | decisions.DrainFailed
    | facts.DrainHookEnded,
) -> str:
    match event:
        case decisions.DrainOrdered():
            return f"ordered to restart onto the safe value ({event.code}). {event.sentence}"
        case decisions.DrainFinished():
            return f"order {event.order} has ended: {event.code}"
        case decisions.DrainFailed():
            return f"order {event.order} failed: {event.code}. {event.sentence}"
        case facts.DrainHookEnded():
            return f"the drain hook of order {event.order}: {event.outcome}"


def _how(event: rulings.ChangeAsked | rulings.BreakGlassUsed) -> str:
    return "asked" if isinstance(event, rulings.ChangeAsked) else f"alone for {event.expires_s} s"


def _value(said: decisions.OverrideSet | values.Verdict | facts.OverrideApplied) -> str:
    return said.form if said.value is None else f"{said.form} {said.value}"
