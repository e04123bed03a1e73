"""Readings of the state that several parts need: what a rank has, what an instance runs."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Final

from smgate.domain import keys, upstream
from smgate.domain.facts import LaunchPlanned
from smgate.domain.policy import CRASH_LOOP_WINDOW_US
from smgate.domain.state import TAKEN_BACK_HERE, Fleet, Grant, Rank, Unit
from smgate.domain.state_nodes import Instance
from smgate.domain.values import TARGET_A2A, Build, GivenFor, Model

VERSIONS_KEPT: Final = 1024
"""Version texts whose form is remembered: every unit has one, and few are distinct."""
GIVEN_KEPT: Final = 4_096
"""What decisions are made for, remembered: of every rank, and few are distinct."""


def mxfp4_layout(model: Model) -> upstream.MxfpLayout:
    """Where the checkpoint says MXFP4: for SGLang's gate, for its loader alone, or nowhere."""
    if "mxfp4" in (model.format_group or ""):
        return "group"
    return "top_level" if "mxfp4" in (model.format_top_level or "") else "none"


def rank_sms(fleet: Fleet, rank: Rank) -> tuple[str | None, ...]:
    """The SMs of a rank's GPUs, each once; None among them for one that is unknown."""
    if rank.sms_read != fleet.sms_read:
        sms = set(map(fleet.gpu_sms.get, rank.gpu_uuids))
        rank.sms = tuple(sms) if len(sms) == 1 else tuple(sorted(sms, key=str))
        rank.sms_read, rank.kind = fleet.sms_read, None
    return rank.sms


def rank_sm(fleet: Fleet, rank: Rank) -> str | None:
    """The one SM of a rank's GPUs; None if unknown or mixed."""
    sms = rank_sms(fleet, rank)
    return sms[0] if len(sms) == 1 else None


def rank_a2a(rank: Rank) -> str:
    """The a2a backend this launch will have, as far as anybody knows before it starts."""
    planned = rank.planned
    if planned.asked_runner == "megamoe":  # a runner name that is really an a2a backend
        return "megamoe"
    if planned.dry_resolved is not None:
        return planned.dry_resolved.a2a
    return planned.asked_a2a or "none"


def rank_key(fleet: Fleet, rank: Rank) -> str | None:
    """The kernel key of one rank, None if an essential part is unknown."""
    return key_on(rank, rank_sms(fleet, rank))


def key_on(rank: Rank, sms: tuple[str | None, ...]) -> str | None:
    """The kernel key of one rank whose GPUs are of these SMs."""
    sm = sms[0] if len(sms) == 1 else None
    if sm not in rank.keys:
        rank.keys[sm] = keys.kernel_key(
            sm=sm, build=rank.planned.build, layout=rank.planned.layout, a2a=rank_a2a(rank)
        )
    return rank.keys[sm]


def launch_keys(fleet: Fleet, unit: Unit) -> set[str] | None:
    """The kernel keys of a unit's launch, with the last reading of ranks that are not in yet.

    None if any is unknown, or nothing was ever launched.
    """
    if unit.launch is None:
        return None
    found: set[str] = set()
    for rank in unit.ranks.values():
        key = rank_key(fleet, rank)
        if key is None:
            return None
        found.add(key)
    return found or None


def grant_in_force(fleet: Fleet, unit: Unit) -> Grant | None:
    """The grant that covers what the unit launched. One for other kernel keys says nothing."""
    if unit.grant is None:
        return None
    return unit.grant_for(launch_keys(fleet, unit) or ())


def fault_bounds(fleet: Fleet, grant: Grant | None) -> tuple[int, int]:
    """What makes a fault in service: failed exits, and seconds unhealthy.

    A rollout that has not ended is judged by the policy at its start, or by a stricter one since.
    """
    now = fleet.policy
    rollout = fleet.rollouts.get(grant.rollout or "") if grant is not None else None
    then = now if rollout is None or rollout.ended else rollout.judged_by or now
    return (
        min(now.crash_loop_exits, then.crash_loop_exits),
        min(now.hang_after_s, then.hang_after_s),
    )


def torch_cuda(build: Build) -> str | None:
    """The CUDA torch was built for; None where it is no version: what was not read, or garbage."""
    return build.torch_cuda if _is_version(build.torch_cuda or "") else None


@functools.lru_cache(maxsize=VERSIONS_KEPT)
def _is_version(text: str) -> bool:
    return all(part.isascii() and part.isdigit() for part in text.split(".")[:2])


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
            model = fleet.model_of(rank.planned)
            if rank.planned.launch_id == instance.launch_id and model is not None:
                return model.architecture
    return None


def on_target(fleet: Fleet, instance: Instance) -> bool:
    """True if the instance attested the target pair."""
    pair = instance.effective
    if pair is None or pair.a2a != TARGET_A2A or pair.runner not in fleet.targets:
        return False
    return pair.runner == target_of(fleet, instance)


def instance_sm(fleet: Fleet, instance: Instance) -> str | None:
    """The one SM an instance runs on, as far as known."""
    uuids = instance.gpu_uuids
    unit = fleet.units.get(instance.unit)
    if not uuids and unit is not None and unit.launch is not None:
        uuids = tuple(u for r in unit.launch.ranks.values() for u in r.gpu_uuids)
    node = fleet.nodes.get(instance.node)
    if not uuids and node is not None and node.reported is not None:
        uuids = tuple(g.uuid for g in node.reported.gpus)
    sms = set(map(fleet.gpu_sms.get, uuids)) - {None}
    return sms.pop() if len(sms) == 1 else None


def given_for(fleet: Fleet, rank: Rank) -> GivenFor:
    """What a decision for this rank is made for."""
    model = fleet.model_of(rank.planned)
    architecture, digest = (model.architecture, model.digest) if model else (None, None)
    return _given_for(
        architecture, digest, rank_a2a(rank), rank_sm(fleet, rank), rank_key(fleet, rank)
    )


@functools.lru_cache(maxsize=GIVEN_KEPT)
def _given_for(
    architecture: str | None, digest: str | None, a2a: str, sm: str | None, key: str | None
) -> GivenFor:
    return GivenFor(architecture=architecture, model_digest=digest, a2a=a2a, sm=sm, kernel_key=key)


def is_fallback(fleet: Fleet, instance: Instance) -> bool:
    """The verdict rule: an unresolved runner on MXFP4 experts of a gate's architecture is BF16."""
    gate = fleet.gate_of(architecture_of(fleet, instance))
    pair = instance.effective
    if gate is None or pair is None or instance.mxfp4 is False:
        return False
    if not upstream.is_memory_fallback(runner=pair.runner, a2a=pair.a2a, layout="group"):
        return False
    unit = fleet.units[instance.unit]
    launch = unit.launch
    models = [fleet.model_of(r.planned) for r in launch.ranks.values()] if launch else []
    platforms = {r.planned.platform for r in launch.ranks.values()} if launch else set()
    reads_mxfp4 = any(m is not None and mxfp4_layout(m) != "none" for m in models)
    return (instance.mxfp4 is True or reads_mxfp4) and platforms <= {"cuda"}


def unhealthy(unit: Unit) -> bool:
    """True if a server of it does not answer as a healthy one does: the quick answer for most."""
    for instance in unit.instances.values():  # noqa: SIM110  in half the time of `any`
        if instance.unhealthy_led_us is not None:
            return True
    return False


def hanging(fleet: Fleet, unit: Unit) -> Iterator[Instance]:
    """Live servers on the target, on a candidate SM, that do not answer as healthy ones do.

    None where that was said and remembered: there the unit is told the safe value already.
    """
    troubled = [i for i in unit.live_instances() if i.unhealthy_led_us is not None]
    if not troubled or remembered(fleet, unit):
        return
    candidates = {sm for gate in fleet.gates.values() for sm in gate.candidate_sms}
    for instance in troubled:
        if on_target(fleet, instance) and instance_sm(fleet, instance) in candidates:
            yield instance


def remembered(fleet: Fleet, unit: Unit) -> bool:
    """True if something went wrong before on a GPU of this unit with the kernel key it runs there.

    What a person took back did not, and a server that runs on may still do so.
    """
    return any(code != TAKEN_BACK_HERE for code in _memories(fleet, unit))


def barred(fleet: Fleet, unit: Unit) -> bool:
    """True if the kernel key that a unit launched is not offered on one of its GPUs any more."""
    return any(True for _ in _memories(fleet, unit))


def _memories(fleet: Fleet, unit: Unit) -> Iterator[str]:
    for rank in unit.ranks.values():
        key = rank_key(fleet, rank)
        if key is None:
            continue
        for uuid in rank.gpu_uuids:
            memory = fleet.gpu_memory.get((uuid, key))
            if memory is not None:
                yield memory[0]


def failures(fleet: Fleet, unit: Unit, kernel_keys: Iterable[str], now_us: int) -> int:
    """Failed exits on the target with one of these keys, within the time that makes a loop."""
    since_us = fleet.led_us(now_us) - CRASH_LOOP_WINDOW_US
    counts = (
        sum(at > since_us for at in fleet.failed_exits.get((unit.id, key), ()))
        for key in kernel_keys
    )
    return max(counts, default=0)


def left_alone(planned: LaunchPlanned, model: Model, sm: str) -> upstream.Resolution:
    """What SGLang would resolve by itself for this launch, by the model of its rules."""
    return upstream.upstream_auto_of(
        sglang_version=planned.build.sglang_version or "",
        sm=sm,
        torch_cuda=torch_cuda(planned.build),
        a2a=planned.asked_a2a or "none",
        backend=planned.asked_runner or "auto",
        architecture=model.architecture,
        layout=mxfp4_layout(model),
    )
