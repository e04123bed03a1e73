"""Which units an event concerns: what a planner must look at again.

Asked before the event is folded, and after it where a server may have moved from one unit to another.
More than needed is harmless; a property test holds that it is never less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Set
from itertools import takewhile
from typing import Any, Final, get_args

from smgate.domain import decisions, facts, proof, revocation, revoking, rulings
from smgate.domain.events import Recorded
from smgate.domain.state import Fleet, Unit

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
OUTAGE = decisions.FleetUnreachable | decisions.FleetReachable
OF_ITS_GPUS = (
    decisions.UnitDisagreed | decisions.GrantEnded | decisions.TargetFaulted | rulings.MemoryCleared
)
OF_CHECKS = facts.CheckFinished | decisions.SelfTestWanted | decisions.WaitTimedOut
OF_NOBODY = (
    decisions.EpisodeOpened
    | decisions.EpisodeUpdated
    | decisions.EpisodeClosed
    | rulings.BuildAnnounced
    | rulings.ChangeAsked
    | rulings.BreakGlassUsed
    | rulings.FleetExpected
    | decisions.OpeningRecorded
)


Units = Set[str]
NOBODY: Final[frozenset[str]] = frozenset()


def concerned(fleet: Fleet, recorded: Recorded) -> Units | None:
    """The units an event concerns as things stand; None for all of them."""
    find = _CONCERNED.get(type(recorded.event))
    return None if find is None else find(fleet, recorded, recorded.event)


def _of_gpus(fleet: Fleet, event: OF_ITS_GPUS) -> set[str]:
    """The unit, and whoever else holds a GPU of which something is remembered."""
    return {event.unit}.union(*(fleet.gpu_units.get(uuid, ()) for uuid in event.gpu_uuids))


def _of_revoked(fleet: Fleet, event: revocation.GrantRevoked) -> set[str]:
    """The units, and whoever else holds a GPU of theirs."""
    uuids = {uuid for name in event.units for uuid in revoking.gpus(fleet.units[name])}
    return set(event.units).union(*(fleet.gpu_units.get(uuid, ()) for uuid in uuids))


def _of_launch(fleet: Fleet, launch_id: str) -> set[str]:
    unit = fleet.launch_units.get(launch_id)
    return set() if unit is None else {unit}


def _check(fleet: Fleet, recorded: Recorded, fact: facts.CheckFinished) -> Units | None:
    """A baseline's check may make count what was held on nodes all over the fleet."""
    proves = fact.probe_version in fleet.unproven_probes and proof.is_baseline(fleet, fact.sm)
    return None if proves else _fact(fleet, recorded, fact)


def _launch(fleet: Fleet, recorded: Recorded, fact: facts.LaunchPlanned) -> Units | None:
    """A model read anew counts for every launch that could not read it."""
    model = fact.model
    if model is not None:
        before = fleet.models.get(model.digest)
        if before is not model and before != model:
            return None
    return _fact(fleet, recorded, fact)


def _held_by(fleet: Fleet, recorded: Recorded, fact: facts.DirectiveHeld) -> Units:
    """Also the units that it names."""
    named = {held.unit for held in fact.units if held.unit in fleet.units}
    return _fact(fleet, recorded, fact, frozenset(named))


def _fact(
    fleet: Fleet, recorded: Recorded, fact: facts.Fact, named: frozenset[str] = NOBODY
) -> Units:
    """Everything on the fact's node or of its launch, and whoever else holds a GPU of those.

    Nearly always that is one unit whichever way it is found, so sets are compared, not made.
    """
    found = fleet.node_units.get(recorded.actor.removeprefix("node:"), NOBODY)
    if named:
        found |= named
    of_launch, names_gpus = _SAYS[type(fact)]
    if of_launch:
        unit = fleet.launch_units.get(fact.launch_id or "")  # type: ignore[union-attr]
        if unit is not None and unit not in found:
            found |= {unit}
    if names_gpus is not None:
        owners_of, seen = fleet.gpu_units.get, None
        for uuid in names_gpus(fact):
            owners = owners_of(uuid)
            # Most GPUs of a fact have the same owners, and these are one set.
            if owners is not None and owners is not seen:
                found |= owners
                seen = owners
    if fleet.contested:
        for name in tuple(found):
            for uuid in fleet.contested.intersection(_held(fleet.units[name])):
                found |= fleet.gpu_units[uuid]
    return found


_GPUS: Final[dict[type, Callable[[Any], Iterable[str]]]] = {
    facts.NodeReported: lambda fact: [gpu.uuid for gpu in fact.gpus],
    facts.LaunchPlanned: lambda fact: [gpu.uuid for gpu in fact.gpus],
    facts.InstanceChanged: lambda fact: fact.gpu_uuids,
    facts.CheckFinished: lambda fact: fact.gpu_uuids,
    facts.GpuFaultSeen: lambda fact: (fact.gpu_uuid,),
}
"""The GPUs that a fact names; a test holds that no fact that has any is missing."""
_SAYS: Final = {one: ("launch_id" in one.__slots__, _GPUS.get(one)) for one in get_args(facts.Fact)}
"""Of each fact: whether it is of one launch, and its GPUs."""


def _held(unit: Unit) -> Iterator[str]:
    """The GPUs of a unit, by its launches and its servers."""
    for rank in unit.known_ranks.values():
        yield from rank.gpu_uuids
    for instance in unit.instances.values():
        yield from instance.gpu_uuids


_Find = Callable[[Fleet, Recorded, Any], Units | None]

_CONCERNED: Final[dict[type, _Find]] = {
    **dict.fromkeys(get_args(facts.Fact), _fact),
    facts.CheckFinished: _check,
    facts.LaunchPlanned: _launch,
    facts.DirectiveHeld: _held_by,
    **dict.fromkeys(get_args(OF_A_UNIT), lambda _fleet, _recorded, event: {event.unit}),
    **dict.fromkeys(get_args(OF_ITS_GPUS), lambda fleet, _, event: _of_gpus(fleet, event)),
    **dict.fromkeys(
        get_args(OF_A_NODE), lambda fleet, _, event: set(fleet.node_units.get(event.node, ()))
    ),
    **dict.fromkeys(
        get_args(OUTAGE),
        lambda fleet, _, event: {u for n in event.nodes for u in fleet.node_units.get(n, ())},
    ),
    revocation.GrantRevoked: lambda fleet, _, event: _of_revoked(fleet, event),
    decisions.WaveJoined: lambda _fleet, _recorded, event: set(event.units),
    decisions.SelfTestWanted: lambda fleet, _, event: _of_launch(fleet, event.launch_id),
    # Of a check that did not come: its launch no longer waits for it.
    decisions.WaitTimedOut: lambda fleet, _, event: _of_launch(
        fleet, event.subject.partition("/")[2]
    ),
    **dict.fromkeys(get_args(OF_NOBODY), lambda _fleet, _recorded, _event: set()),
}
"""What is not here concerns all units."""

_NODES: Final[dict[type, Callable[[Any], Iterable[str]]]] = {
    **dict.fromkeys(get_args(OF_A_NODE), lambda event: (event.node,)),
    **dict.fromkeys(get_args(OUTAGE), lambda event: event.nodes),
}
"""The nodes that an event is about; a fact is about the one that sent it."""
_CHECKS: Final = frozenset(get_args(OF_CHECKS))


def mark(fleet: Fleet, recorded: Recorded, before: Units | None, after: Units | None) -> None:
    """Note in the state what an event concerned."""
    event, position = recorded.event, recorded.position
    kind = type(event)
    if kind in _SAYS:
        _last(fleet.touched_nodes, recorded.actor.removeprefix("node:"), position)
    elif kind in _NODES:
        for node in _NODES[kind](event):
            _last(fleet.touched_nodes, node, position)
    if kind in _CHECKS:
        fleet.checks_position = position
    if before is None or after is None:
        fleet.world_position = position
        return
    both = before if before is after else before | after
    for unit in sorted(both) if len(both) > 1 else both:
        _last(fleet.touched, unit, position)


def _last(touched: dict[str, int], name: str, position: int) -> None:
    """The most recent stand last."""
    touched.pop(name, None)
    touched[name] = position


def since(fleet: Fleet, position: int) -> list[str] | None:
    """The units that events after a position concerned, by name; None for all of them."""
    if fleet.world_position > position or fleet.position < position:
        return None
    return sorted(_recent(fleet.touched, position))


def nodes_since(fleet: Fleet, position: int) -> Iterator[str]:
    """The nodes that events after a position were about."""
    return _recent(fleet.touched_nodes, position)


def _recent(touched: dict[str, int], position: int) -> Iterator[str]:
    for name, _ in takewhile(lambda item: item[1] > position, reversed(touched.items())):
        yield name
