"""Does a server fit its GPUs as it was launched, with what it would resolve? Asked in every mode."""

from __future__ import annotations

from smgate.domain import readings, upstream
from smgate.domain.memory import fit
from smgate.domain.state import Fleet, Rank, Unit


def of_unit(fleet: Fleet, unit: Unit) -> fit.Fit | None:
    """The rank of the current launch that fits least; None while nothing can be said.

    A launch is asked about from its decision on, whether or not its server runs: what died of it
    says so until the next launch. One that serves has fitted.
    """
    launch = unit.launch
    if launch is None or launch.decided is None:
        return None
    worst = None
    for number, rank in launch.ranks.items():
        if not rank.planned.layout.expert_layers or _served(unit, number, rank):
            continue
        room = _of_rank(fleet, unit, rank)
        if room is None:
            continue
        if worst is None or (room.fits, room.free_bytes) < (worst.fits, worst.free_bytes):
            worst = room
    return worst


def _served(unit: Unit, number: int, rank: Rank) -> bool:
    if not unit.instances:
        return False
    launch_id = rank.planned.launch_id
    return any(
        instance.served and instance.launch_id == launch_id and instance.node_rank == number
        for instance in unit.instances.values()
    )


def _of_rank(fleet: Fleet, unit: Unit, rank: Rank) -> fit.Fit | None:
    runner = _runner(fleet, unit, rank)
    if runner is None:
        return None
    if runner not in rank.fits:
        found = _with(fleet, rank, runner)
        planned = rank.planned
        if planned.model is None or not all(gpu.memory_bytes for gpu in planned.gpus):
            return found  # others may say more of it later
        rank.fits[runner] = found
    return rank.fits[runner]


def _with(fleet: Fleet, rank: Rank, runner: str) -> fit.Fit | None:
    planned, model = rank.planned, fleet.model_of(rank.planned)
    memory_bytes = _memory_bytes(fleet, rank)
    if model is None or not memory_bytes or planned.platform != "cuda":
        return None
    layout = readings.mxfp4_layout(model)
    if layout == "none":
        return None
    a2a = readings.rank_a2a(rank)
    falls_back = upstream.is_memory_fallback(runner=runner, a2a=a2a, layout=layout)
    return fit.of_launch(
        planned.layout,
        a2a=a2a,
        memory_bytes=memory_bytes,
        form="bf16" if falls_back else "packed",
    )


def _runner(fleet: Fleet, unit: Unit, rank: Rank) -> str | None:
    """The runner that this rank resolves: what it was told, else its own flag, else SGLang's choice."""
    assert unit.launch is not None
    decided, planned = unit.launch.decided, rank.planned
    if decided is not None and decided.value is not None:
        return decided.value
    if planned.dry_resolved is not None:
        return planned.dry_resolved.runner
    model, sm = fleet.model_of(planned), readings.rank_sm(fleet, rank)
    if model is None or sm is None or not planned.argv_read:
        return None
    alone = readings.left_alone(planned, model, sm)
    return None if alone.raises is not None else alone.runner


def _memory_bytes(fleet: Fleet, rank: Rank) -> int:
    """Memory of the rank's smallest GPU: as its launch gate read it, else as its node reported."""
    sizes = {gpu.uuid: gpu.memory_bytes for gpu in rank.planned.gpus}
    node = fleet.nodes.get(rank.node)
    if 0 in sizes.values() and node is not None and node.reported is not None:
        known = {gpu.uuid: gpu.memory_bytes for gpu in node.reported.gpus}
        sizes = {uuid: size or known.get(uuid, 0) for uuid, size in sizes.items()}
    return min(sizes.values(), default=0)
