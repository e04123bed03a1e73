"""Fold of what nodes report."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

from smgate.domain import (
    evolve_checks,
    evolve_drains,
    evolve_launches,
    exposure,
    keys,
    policy,
    readings,
    restoring,
)
from smgate.domain.events import Recorded
from smgate.domain.evolve_nodes import node_of, reporter
from smgate.domain.facts import (
    BakeInterval,
    CheckFinished,
    DirectiveHeld,
    DrainHookEnded,
    EffectiveSeen,
    GapNoticed,
    GoldenFinished,
    GpuFaultSeen,
    InstanceChanged,
    LaunchPlanned,
    MemoryFallbackCleared,
    MemoryFallbackSeen,
    NodeReported,
    OverrideApplied,
    WeightsSeen,
)
from smgate.domain.state import Fleet, Unit
from smgate.domain.state_nodes import Instance
from smgate.domain.values import Pair

Handler = Callable[[Fleet, Recorded, Any], None]

PAIRS_KEPT: Final = 256
"""Pairs that servers attest: a fleet knows a few."""


def _node_reported(fleet: Fleet, recorded: Recorded, fact: NodeReported) -> None:
    node = reporter(fleet, recorded)
    node.reported = fact
    evolve_launches.note_sms(fleet, fact.gpus)


def _check_finished(fleet: Fleet, recorded: Recorded, fact: CheckFinished) -> None:
    evolve_checks.take_check(fleet, node_of(fleet, recorded), recorded, fact)


def _instance_changed(fleet: Fleet, recorded: Recorded, fact: InstanceChanged) -> None:
    node = reporter(fleet, recorded)
    name = (node.name, fact.instance_id)
    full_name = f"{node.name}/{fact.instance_id}"
    unit_name = fleet.launch_units.get(fact.launch_id or "")
    if unit_name is None:
        unit_name = keys.unit_id(node.name, fact, fact.gpu_uuids)
    unit = evolve_launches.unit_of(fleet, unit_name, recorded.position)
    evolve_launches.place(fleet, node.name, unit_name)
    instance = fleet.instances.get(name)
    launch_id = fact.launch_id or _launch_on(unit, node.name)
    restarted = instance is not None and (
        launch_id != instance.launch_id or fact.restarts > instance.restarts
    )
    if instance is None or instance.unit != unit_name or restarted:
        if instance is not None:
            if instance.live and launch_id == instance.launch_id:  # its exit was not reported
                _count_failures(
                    fleet, unit, instance, recorded, times=fact.restarts - instance.restarts
                )
            _leave(fleet.units[instance.unit], full_name)
        instance = Instance(
            node=node.name,
            id=fact.instance_id,
            unit=unit_name,
            state=fact.state,
            position=recorded.position,
        )
        fleet.instances[name] = instance
        unit.instances[full_name] = instance
        ended_before = False
    else:
        ended_before = not instance.live
    if fact.state != "unhealthy":
        instance.unhealthy_led_us = None
    elif instance.unhealthy_led_us is None:
        instance.unhealthy_led_us = fleet.led_us(recorded.at_us)
    instance.state = fact.state
    instance.launch_id = launch_id
    instance.node_rank = fact.node_rank
    instance.restarts = fact.restarts
    instance.gpu_uuids = keys.gpu_set(fact.gpu_uuids)
    instance.served = instance.served or fact.state == "serving"
    if fact.state == "serving" and instance.fallback == "imminent":
        _note_fallback(fleet, instance, "active", recorded.position)
    if fact.state == "exited" and not ended_before:
        _exited(fleet, unit, instance, fact, recorded)
    elif instance.live and instance.gpu_uuids:
        unit.superseded = False
        evolve_launches.claim_gpus(fleet, unit, instance.gpu_uuids)
    if instance.live:
        _end_earlier(unit, instance)


def _leave(unit: Unit, instance: str) -> None:
    """A server turns out to be another unit's: one that was nothing but this server never was."""
    unit.instances.pop(instance, None)
    unit.superseded = unit.superseded or (unit.launch is None and not unit.instances)


def _end_earlier(unit: Unit, instance: Instance) -> None:
    """A server of a new launch: those of earlier launches on its node are gone, reported or not.

    The launch gate runs before SGLang, while these GPUs are empty.
    """
    if unit.launch is None or instance.launch_id not in unit.launch.launch_ids:
        return
    for other in unit.instances.values():
        if other.node != instance.node or other.launch_id in unit.launch.launch_ids:
            continue
        other.state = "exited"
        if other.fallback != "crashed" or instance.state == "serving":
            other.fallback = None


def _launch_on(unit: Unit, node: str) -> str | None:
    """The launch id of the unit's current launch on a node, for an instance that names none."""
    if unit.launch is None:
        return None
    for rank in unit.launch.ranks.values():
        if rank.node == node:
            return rank.planned.launch_id
    return None


def _exited(
    fleet: Fleet, unit: Unit, instance: Instance, fact: InstanceChanged, recorded: Recorded
) -> None:
    # Without an exit code, a server that ended before it ever served failed to start.
    code = fact.exit_code
    failed = not instance.served if code is None else code not in policy.STOPPED_CODES
    instance.failed = failed
    if failed:
        _count_failures(fleet, unit, instance, recorded, times=1)
    if instance.fallback != "crashed":
        instance.fallback = None
    instance.position = recorded.position


def _count_failures(
    fleet: Fleet, unit: Unit, instance: Instance, recorded: Recorded, *, times: int
) -> None:
    if not _ran_target(fleet, unit, instance):
        return
    now_us = fleet.led_us(recorded.at_us)
    for key in readings.launch_keys(fleet, unit) or ():
        before = fleet.failed_exits.get((unit.id, key), [])
        recent = [at for at in before if at > now_us - policy.CRASH_LOOP_WINDOW_US]
        fleet.failed_exits[unit.id, key] = [*recent, *[now_us] * times]


def _ran_target(fleet: Fleet, unit: Unit, instance: Instance) -> bool:
    """True if it attested the target, or was to run it and died before it attested anything."""
    if instance.effective is not None:
        return readings.on_target(fleet, instance)
    decided = unit.launch.decided if unit.launch is not None else None
    if decided is None or instance.launch_id not in decided.launch_ids:
        return False
    return exposure.is_target(fleet, decided) or exposure.left_to_target(fleet, unit)


def _instance_named(fleet: Fleet, recorded: Recorded, instance_id: str) -> Instance:
    """The instance a fact speaks of; one never introduced is taken as running, with no launch."""
    node = reporter(fleet, recorded)
    instance = fleet.instances.get((node.name, instance_id))
    if instance is None:
        introduced = InstanceChanged(
            instance_id=instance_id,
            state="serving",
            gpu_uuids=tuple(g.uuid for g in node.reported.gpus) if node.reported else (),
        )
        _instance_changed(fleet, recorded, introduced)
        instance = fleet.instances[(node.name, instance_id)]
    return instance


def _effective_seen(fleet: Fleet, recorded: Recorded, fact: EffectiveSeen) -> None:
    instance = _instance_named(fleet, recorded, fact.instance_id)
    instance.effective = _pair(fact.runner, fact.a2a)
    instance.architecture = fact.architecture or instance.architecture
    instance.sglang_version = fact.sglang_version or instance.sglang_version
    if fact.mxfp4 is not None:
        instance.mxfp4 = fact.mxfp4
    evolve_drains.note_taken_back(fleet, fleet.units[instance.unit], recorded)
    if readings.is_fallback(fleet, instance) and instance.fallback is None:
        phase = "imminent" if instance.state == "starting" else "active"
        _note_fallback(fleet, instance, phase, recorded.position)


@functools.lru_cache(maxsize=PAIRS_KEPT)
def _pair(runner: str, a2a: str) -> Pair:
    return Pair(runner=runner, a2a=a2a)


def _note_fallback(
    fleet: Fleet, instance: Instance, phase: str, position: int, excess_bytes: int | None = None
) -> None:
    if instance.fallback == phase:
        return
    unit = fleet.units[instance.unit]
    if instance.fallback is None and unit.override is not None and unit.override.form == "append":
        fleet.bad_signs.append((fleet.led_us(fleet.now_us), unit.id))
    instance.fallback = phase
    instance.fallback_position = position
    instance.fallback_excess_bytes = excess_bytes or instance.fallback_excess_bytes
    fleet.fallbacks_total[(readings.instance_sm(fleet, instance) or "unknown", phase)] += 1


def _weights_seen(fleet: Fleet, recorded: Recorded, fact: WeightsSeen) -> None:
    instance = _instance_named(fleet, recorded, fact.instance_id)
    instance.weight_bytes = fact.weight_bytes


def _fallback_seen(fleet: Fleet, recorded: Recorded, fact: MemoryFallbackSeen) -> None:
    instance = _instance_named(fleet, recorded, fact.instance_id)
    _note_fallback(fleet, instance, fact.phase, recorded.position, fact.excess_bytes)


def _fallback_cleared(fleet: Fleet, recorded: Recorded, fact: MemoryFallbackCleared) -> None:
    instance = _instance_named(fleet, recorded, fact.instance_id)
    instance.fallback = None
    instance.fallback_excess_bytes = 0


def _gpu_fault(fleet: Fleet, recorded: Recorded, fact: GpuFaultSeen) -> None:
    reporter(fleet, recorded)
    _note_gpu_fault(fleet, fact.gpu_uuid, recorded.position)


def _note_gpu_fault(fleet: Fleet, gpu_uuid: str, position: int) -> None:
    for unit_name in sorted(fleet.gpu_units.get(gpu_uuid, ())):
        unit = fleet.units[unit_name]
        if unit.launch is None or not any(
            readings.on_target(fleet, i) for i in unit.live_instances()
        ):
            continue
        for rank in unit.ranks.values():
            key = readings.rank_key(fleet, rank)
            if key is not None and gpu_uuid in rank.gpu_uuids:
                fleet.remember(gpu_uuid, key, "fault_in_service", position)


def _bake_interval(fleet: Fleet, recorded: Recorded, fact: BakeInterval) -> None:
    instance = _instance_named(fleet, recorded, fact.instance_id)
    unit = fleet.units[instance.unit]
    instance.tokens_per_s = fact.tokens_per_s
    if fact.xids:
        for uuid in instance.gpu_uuids:
            _note_gpu_fault(fleet, uuid, recorded.position)
    grant = readings.grant_in_force(fleet, unit)
    answered = fact.requests - fact.failures  # failing every request is not serving
    if grant is not None and answered > 0 and readings.on_target(fleet, instance):
        name = f"{instance.node}/{instance.id}"
        grant.baked_s[name] = grant.baked_s.get(name, 0) + fact.interval_s


def _override_applied(fleet: Fleet, recorded: Recorded, fact: OverrideApplied) -> None:
    node_of(fleet, recorded)
    unit_name = fleet.launch_units.get(fact.launch_id)
    if unit_name is None:
        return
    unit = fleet.units[unit_name]
    if unit.launch is None:
        return
    for rank in unit.launch.ranks.values():
        if rank.planned.launch_id == fact.launch_id:
            rank.applied = fact
            if fact.form == "appended":  # what was appended last stays so while nothing is
                unit.appended_value = fact.value
                unit.appended_for = readings.given_for(fleet, unit.ranks[min(unit.ranks)])


def _gap_noticed(fleet: Fleet, recorded: Recorded, fact: GapNoticed) -> None:
    node = reporter(fleet, recorded)
    if fact.closed:
        node.gaps.discard(fact.lost_outbox_id)
    else:
        node.gaps.add(fact.lost_outbox_id)


def _drain_hook_ended(fleet: Fleet, recorded: Recorded, fact: DrainHookEnded) -> None:
    evolve_drains.note_hook(fleet, reporter(fleet, recorded).name, fact)


def _golden_finished(fleet: Fleet, recorded: Recorded, fact: GoldenFinished) -> None:
    """Answers count for the grant under which this server runs the target; others say nothing."""
    instance = _instance_named(fleet, recorded, fact.instance_id)
    unit = fleet.units[instance.unit]
    grant = readings.grant_in_force(fleet, unit)
    launched = unit.launch is not None and instance.launch_id in unit.launch.launch_ids
    if grant is not None and launched and readings.on_target(fleet, instance):
        worst = max(fact.mismatches, grant.golden.get(fact.set_digest, 0))
        grant.golden[fact.set_digest] = worst


def _directive_held(fleet: Fleet, recorded: Recorded, fact: DirectiveHeld) -> None:
    restoring.take_held(fleet, recorded, reporter(fleet, recorded).name, fact)


HANDLERS: dict[type, Handler] = {
    NodeReported: _node_reported,
    LaunchPlanned: evolve_launches.take_launch,
    CheckFinished: _check_finished,
    InstanceChanged: _instance_changed,
    EffectiveSeen: _effective_seen,
    WeightsSeen: _weights_seen,
    MemoryFallbackSeen: _fallback_seen,
    MemoryFallbackCleared: _fallback_cleared,
    GpuFaultSeen: _gpu_fault,
    BakeInterval: _bake_interval,
    OverrideApplied: _override_applied,
    GapNoticed: _gap_noticed,
    DrainHookEnded: _drain_hook_ended,
    GoldenFinished: _golden_finished,
    DirectiveHeld: _directive_held,
}
