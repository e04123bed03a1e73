"""Fold of a launch: which unit it is of, what it read, and whose its GPUs are."""

from __future__ import annotations

from collections.abc import Iterable

from smgate.domain import evolve_checks, keys, readings
from smgate.domain.events import Recorded
from smgate.domain.evolve_nodes import node_of
from smgate.domain.facts import LaunchPlanned
from smgate.domain.state import Fleet, Rank, Unit, UnitLaunch
from smgate.domain.state_nodes import Node
from smgate.domain.values import Gpu


def unit_of(fleet: Fleet, unit: str, position: int) -> Unit:
    """A unit by id; created on first sight."""
    found = fleet.units.get(unit)
    if found is None:
        found = fleet.units[unit] = Unit(id=unit, position=position)
    return found


def note_sms(fleet: Fleet, gpus: Iterable[Gpu]) -> None:
    """The SMs of GPUs, where a driver answered."""
    sms = fleet.gpu_sms
    for gpu in gpus:
        sm = gpu.sm
        if sm is not None and sms.get(gpu.uuid) != sm:
            sms[gpu.uuid] = sm
            fleet.sms_noted += 1
            if gpu.uuid in fleet.gpu_units:  # a rank may have been read without it
                fleet.sms_read += 1


def take_launch(fleet: Fleet, recorded: Recorded, fact: LaunchPlanned) -> None:
    """Take one launch of one rank."""
    node = node_of(fleet, recorded)
    note_sms(fleet, fact.gpus)
    name = keys.unit_id(node.name, fact, tuple([gpu.uuid for gpu in fact.gpus]))
    unit = unit_of(fleet, name, recorded.position)
    unit.superseded = False
    rank = _rank_of(unit.known_ranks.get(fact.node_rank), node, recorded, fact)
    launch = unit.launch
    if launch is None or fact.node_rank in launch.ranks or launch.nnodes != fact.nnodes:
        launch = unit.launch = UnitLaunch(
            nnodes=fact.nnodes,
            opened_led_us=fleet.led_us(recorded.at_us),
            opened_position=recorded.position,
        )
    launch.take(fact.node_rank, rank)
    unit.known_ranks[fact.node_rank] = rank
    for number in [n for n in unit.known_ranks if n >= fact.nnodes]:
        del unit.known_ranks[number]
    if fact.model is not None:
        fleet.models[fact.model.digest] = fact.model
    fleet.launch_units[fact.launch_id] = unit.id
    place(fleet, node.name, unit.id)
    claim_gpus(fleet, unit, rank.gpu_uuids)
    evolve_checks.note_key(fleet, rank, recorded)


def _rank_of(last: Rank | None, node: Node, recorded: Recorded, fact: LaunchPlanned) -> Rank:
    """The rank, with what was worked out of its last launch where that is the same."""
    position = recorded.position
    if last is None or last.planned.gpus is not fact.gpus:
        return Rank(node=node.name, planned=fact, position=position)
    rank = Rank(node=node.name, planned=fact, position=position, gpu_uuids=last.gpu_uuids)
    rank.sms, rank.sms_read = last.sms, last.sms_read
    before = last.planned
    same = before.build is fact.build and before.layout is fact.layout
    if same and readings.rank_a2a(last) == readings.rank_a2a(rank):
        rank.keys = last.keys
    return rank


def place(fleet: Fleet, node: str, unit: str) -> None:
    """The unit has a rank or a server on this node."""
    units = fleet.node_units.get(node, frozenset())
    if unit not in units:
        fleet.node_units[node] = units | {unit}
        fleet.moves += 1


def claim_gpus(fleet: Fleet, unit: Unit, uuids: tuple[str, ...]) -> None:
    """A unit with no live instance gives way to a new launch on its GPUs."""
    alone = frozenset((unit.id,))  # one for all of them: most GPUs are of one unit for ever
    owners_of = fleet.gpu_units.get
    for uuid in uuids:
        owners = owners_of(uuid)
        if owners is alone:
            continue
        if owners == alone:
            alone = owners
            continue
        fleet.moves += 1
        if owners is None:
            fleet.gpu_units[uuid] = alone
            continue
        gone = {name for name in owners - alone if not fleet.units[name].live_instances()}
        for name in gone:
            fleet.units[name].superseded = True
        owners = fleet.gpu_units[uuid] = (owners - gone) | alone
        if len(owners) > 1:
            fleet.contested.add(uuid)
        else:
            fleet.contested.discard(uuid)
