"""Readings of the state that several parts need: what a rank has, what an instance runs."""

from __future__ import annotations

from smgate.domain import keys
from smgate.domain.state import Fleet, Instance, Rank
from smgate.domain.values import TARGET_A2A, GivenFor, Model, Pair

RUNNER_ALIASES = {"megamoe": "megamoe"}
"""Runner names that are really an a2a backend."""

UPCAST_RUNNERS = ("auto", "triton")
"""Resolved runners under which SGLang materialises MXFP4 experts in BF16."""

PACKED_A2A = ("megamoe", "flashinfer_megamoe")
"""a2a backends whose own kernels keep the experts packed, whatever the runner says."""


def is_mxfp4(model: Model) -> bool:
    """True if SGLang's loader would treat the experts as MXFP4: `format` at top level or in a group."""
    return any("mxfp4" in (text or "") for text in (model.format_top_level, model.format_group))


def rank_sm(fleet: Fleet, rank: Rank) -> str | None:
    """The one SM of a rank's GPUs; None if unknown or mixed."""
    sms = {fleet.sm_of(uuid) for uuid in rank.gpu_uuids}
    return sms.pop() if len(sms) == 1 else None


def rank_a2a(rank: Rank) -> str:
    """The a2a backend this launch will have, as far as anybody knows before it starts."""
    planned = rank.planned
    if planned.asked_runner in RUNNER_ALIASES:
        return RUNNER_ALIASES[planned.asked_runner]
    if planned.dry_resolved is not None:
        return planned.dry_resolved.a2a
    return planned.asked_a2a or "none"


def rank_key(fleet: Fleet, rank: Rank) -> str | None:
    """The kernel key of one rank, None if an essential part is unknown."""
    return keys.kernel_key(
        sm=rank_sm(fleet, rank),
        build=rank.planned.build,
        layout=rank.planned.layout,
        a2a=rank_a2a(rank),
    )


def target_of(fleet: Fleet, instance: Instance) -> str | None:
    """The target runner of the gate this instance's model belongs to."""
    gate = fleet.gate_of(architecture_of(fleet, instance))
    return gate.target if gate is not None else None


def architecture_of(fleet: Fleet, instance: Instance) -> str | None:
    """What the server says it loaded, else what its launch gate read."""
    if instance.architecture is not None:
        return instance.architecture
    unit = fleet.units.get(instance.unit)
    if unit is not None and unit.launch is not None:
        for rank in unit.launch.ranks.values():
            if rank.planned.launch_id == instance.launch_id and rank.planned.model is not None:
                return rank.planned.model.architecture
    return None


def on_target(fleet: Fleet, instance: Instance) -> bool:
    """True if the instance attested the target pair."""
    target = target_of(fleet, instance)
    return (
        target is not None
        and instance.effective is not None
        and instance.effective == Pair(runner=target, a2a=TARGET_A2A)
    )


def instance_sm(fleet: Fleet, instance: Instance) -> str | None:
    """The one SM an instance runs on, as far as known."""
    uuids = instance.gpu_uuids
    unit = fleet.units.get(instance.unit)
    if not uuids and unit is not None and unit.launch is not None:
        uuids = tuple(u for r in unit.launch.ranks.values() for u in r.gpu_uuids)
    node = fleet.nodes.get(instance.node)
    if not uuids and node is not None and node.reported is not None:
        uuids = tuple(g.uuid for g in node.reported.gpus)
    sms = {sm for sm in (fleet.sm_of(u) for u in uuids) if sm is not None}
    return sms.pop() if len(sms) == 1 else None


def given_for(fleet: Fleet, rank: Rank) -> GivenFor:
    """What a decision for this rank is made for."""
    model = rank.planned.model
    return GivenFor(
        architecture=model.architecture if model else None,
        model_digest=model.digest if model else None,
        a2a=rank_a2a(rank),
        sm=rank_sm(fleet, rank),
        kernel_key=rank_key(fleet, rank),
    )


def is_fallback(fleet: Fleet, instance: Instance) -> bool:
    """The verdict rule: an unresolved runner on MXFP4 experts of a gate's architecture is BF16."""
    gate = fleet.gate_of(architecture_of(fleet, instance))
    pair = instance.effective
    if gate is None or pair is None or pair.runner not in UPCAST_RUNNERS:
        return False
    if instance.mxfp4 is False or pair.a2a in PACKED_A2A:
        return False
    unit = fleet.units[instance.unit]
    launch = unit.launch
    models = [r.planned.model for r in launch.ranks.values()] if launch else []
    platforms = {r.planned.platform for r in launch.ranks.values()} if launch else set()
    reads_mxfp4 = any(m is not None and is_mxfp4(m) for m in models)
    return (instance.mxfp4 is True or reads_mxfp4) and platforms <= {"cuda"}
