"""Which units an event concerns: what a planner must look at again.

Asked before and after the event is folded, since a server may move from one unit to another. More
than needed is harmless; a property test holds that it is never less.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

from smgate.domain import decisions, facts, proof, rulings
from smgate.domain.events import Event, Recorded
from smgate.domain.state import Fleet

OF_A_UNIT = (
    rulings.UnitExcluded
    | rulings.UnitIncluded
    | rulings.PinSet
    | rulings.PinRemoved
    | rulings.FlagAdopted
    | rulings.AdoptionDecided
    | rulings.OverrideReleased
    | decisions.OverrideSet
    | decisions.Adopted
    | decisions.Granted
    | decisions.DrainOrdered
    | decisions.DrainFinished
    | decisions.DrainFailed
)
OF_A_NODE = (
    rulings.NodeEnrolled | rulings.NodeRetired | decisions.NodeWentSilent | decisions.NodeReturned
)
OF_ITS_GPUS = decisions.UnitDisagreed | decisions.GrantEnded
OF_UNITS = OF_A_UNIT | OF_ITS_GPUS | decisions.WaveJoined
OF_CHECKS = facts.CheckFinished | decisions.SelfTestWanted | decisions.WaitTimedOut
OF_NOBODY = (
    decisions.EpisodeOpened
    | decisions.EpisodeUpdated
    | decisions.EpisodeClosed
    | rulings.BuildAnnounced
    | rulings.ChangeAsked
    | rulings.BreakGlassUsed
)


def concerned(fleet: Fleet, recorded: Recorded) -> set[str] | None:
    """The units an event concerns as things stand; None for all of them."""
    event = recorded.event
    if isinstance(event, OF_UNITS):
        return _of_units(fleet, event)
    if isinstance(event, OF_A_NODE):
        return set(fleet.node_units.get(event.node, ()))
    if isinstance(event, decisions.SelfTestWanted):
        return _of_launch(fleet, event.launch_id)
    if isinstance(event, decisions.WaitTimedOut):  # of a check: no longer waited for
        return _of_launch(fleet, event.subject.partition("/")[2])
    everybodys = _new_reading(fleet, event) or _proves(fleet, event)
    if isinstance(event, facts.Fact) and not everybodys:
        return _of_fact(fleet, recorded, event)
    return set() if isinstance(event, OF_NOBODY) else None


def _of_units(fleet: Fleet, event: OF_UNITS) -> set[str]:
    """Those it names, and whoever else holds a GPU of which it says something."""
    if isinstance(event, decisions.WaveJoined):
        return set(event.units)
    uuids = event.gpu_uuids if isinstance(event, OF_ITS_GPUS) else ()
    return {event.unit}.union(*(fleet.gpu_units.get(uuid, ()) for uuid in uuids))


def _of_launch(fleet: Fleet, launch_id: str) -> set[str]:
    unit = fleet.launch_units.get(launch_id)
    return set() if unit is None else {unit}


def _proves(fleet: Fleet, event: Event) -> bool:
    """A baseline's check may make count what was held on nodes all over the fleet."""
    return (
        isinstance(event, facts.CheckFinished)
        and event.probe_version in fleet.unproven_probes
        and proof.is_baseline(fleet, event.sm)
    )


def _new_reading(fleet: Fleet, fact: Event) -> bool:
    """A model read anew counts for every launch that could not read it."""
    return (
        isinstance(fact, facts.LaunchPlanned)
        and fact.model is not None
        and fleet.models.get(fact.model.digest) != fact.model
    )


def _of_fact(fleet: Fleet, recorded: Recorded, fact: facts.Fact) -> set[str]:
    """Everything on the fact's node or of its launch, and whoever else holds a GPU of those."""
    node = recorded.actor.removeprefix("node:")
    found = set(fleet.node_units.get(node, ()))
    launch_id = getattr(fact, "launch_id", None)
    if launch_id is not None:
        found |= _of_launch(fleet, launch_id)
    uuids = set(_gpus(fact))
    for name in found:
        unit = fleet.units[name]
        uuids.update(uuid for rank in unit.known_ranks.values() for uuid in rank.gpu_uuids)
        uuids.update(uuid for instance in unit.instances.values() for uuid in instance.gpu_uuids)
    for uuid in uuids:
        found |= fleet.gpu_units.get(uuid, frozenset())
    return found


def _gpus(fact: facts.Fact) -> Iterator[str]:
    for gpu in getattr(fact, "gpus", ()):
        yield gpu.uuid
    yield from getattr(fact, "gpu_uuids", ())
    if isinstance(fact, facts.GpuFaultSeen):
        yield fact.gpu_uuid


def mark(fleet: Fleet, event: Event, before: set[str] | None, after: set[str] | None) -> None:
    """Note in the state what an event concerned."""
    if isinstance(event, OF_CHECKS):
        fleet.checks_position = fleet.position
    if before is None or after is None:
        fleet.world_position = fleet.position
        return
    for unit in sorted(before | after):
        fleet.touched.pop(unit, None)  # the most recent stand last
        fleet.touched[unit] = fleet.position


def since(fleet: Fleet, position: int) -> list[str] | None:
    """The units that events after a position concerned, by name; None for all of them."""
    if fleet.world_position > position or fleet.position < position:
        return None
    recent = takewhile(lambda item: item[1] > position, reversed(fleet.touched.items()))
    return sorted(name for name, _ in recent)
