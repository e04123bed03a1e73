"""Who runs or may run the target: the counts that limits and headlines are made of."""

from __future__ import annotations

from smgate.domain import census, readings
from smgate.domain.decisions import OverrideSet
from smgate.domain.policy import RolloutPlan
from smgate.domain.state import Fleet, Grant, Rank, Unit
from smgate.domain.state_counts import Kinds
from smgate.domain.state_rollouts import Rollout
from smgate.domain.values import TARGET_A2A, Pair


def unit_sm(fleet: Fleet, unit: Unit) -> str | None:
    """The one SM of a unit, by its ranks' GPUs, else by its servers'."""
    sms = {sm for rank in unit.known_ranks.values() for sm in readings.rank_sms(fleet, rank)}
    sms.discard(None)
    if not sms:
        sms = {
            sm
            for sm in (readings.instance_sm(fleet, i) for i in unit.instances.values())
            if sm is not None
        }
    return sms.pop() if len(sms) == 1 else None


def is_candidate(fleet: Fleet, sm: str | None) -> bool:
    """True if any gate has the SM as a candidate."""
    return sm in fleet.candidate_sms


def runs_target(fleet: Fleet, unit: Unit) -> bool:
    """True if a live rank attested the target pair."""
    for instance in unit.instances.values():
        if instance.live and readings.on_target(fleet, instance):
            return True
    return False


def asks_target(fleet: Fleet, unit: Unit) -> bool:
    """True if the launch itself names the target: it would run it whatever is decided."""
    if unit.launch is None or unit.flag_adopted:
        return False
    for rank in unit.launch.ranks.values():
        if rank.planned.asked_runner in fleet.targets:
            model = fleet.model_of(rank.planned)
            if model is not None and fleet.gate_of(model.architecture) is not None:
                return True
    return False


def chooses_target(fleet: Fleet, unit: Unit) -> bool:
    """True if the launch was left to SGLang, which would choose the target by itself.

    That is so until its server attests what it resolved, or ends.
    """
    launch = unit.launch
    if launch is None or not left_to_target(fleet, unit):
        return False
    own = [i for i in unit.instances.values() if i.launch_id in launch.launch_ids]
    return all(instance.live and instance.effective is None for instance in own)


def left_to_target(fleet: Fleet, unit: Unit) -> bool:
    """True if nothing was appended to the launch, and SGLang then chooses or was told the target."""
    launch = unit.launch
    if launch is None or launch.decided is None or launch.decided.value is not None:
        return False
    return asks_target(fleet, unit) or any(
        _left_to_target(fleet, rank) for rank in launch.ranks.values()
    )


def _left_to_target(fleet: Fleet, rank: Rank) -> bool:
    planned, model, sm = rank.planned, fleet.model_of(rank.planned), readings.rank_sm(fleet, rank)
    gate = fleet.gate_of(model.architecture if model is not None else None)
    if model is None or gate is None or sm is None or planned.platform != "cuda":
        return False
    target = Pair(runner=gate.target, a2a=TARGET_A2A)
    if planned.dry_resolved is not None:  # SGLang's own answer, on that GPU
        return planned.dry_resolved == target
    if not planned.argv_read:  # what it names is unknown, so what it resolves to is
        return False
    alone = readings.left_alone(planned, model, sm)
    return (alone.runner, alone.a2a) == (target.runner, target.a2a)


def would_run_target(fleet: Fleet, unit: Unit) -> bool:
    """True if it runs the target, or would whatever it is told."""
    return runs_target(fleet, unit) or asks_target(fleet, unit) or chooses_target(fleet, unit)


def uncontrolled(fleet: Fleet, unit: Unit) -> bool:
    """A server that runs or would run the target on a candidate SM with no grant."""
    if not unit.live or told_target(fleet, unit):
        return False
    if not would_run_target(fleet, unit):
        return False
    if readings.grant_in_force(fleet, unit) is not None:
        return False
    return is_candidate(fleet, unit_sm(fleet, unit))


def told_target(fleet: Fleet, unit: Unit) -> bool:
    """True if the decision that governs the running launch, or else the standing one, is the target."""
    decided = unit.launch.decided if unit.launch is not None else None
    return is_target(fleet, decided or unit.override)


def is_target(fleet: Fleet, override: OverrideSet | None) -> bool:
    """True if a decision is to append the target."""
    if override is None or override.form != "append":
        return False
    return override.value in fleet.targets


def is_safe_value(fleet: Fleet, override: OverrideSet | None) -> bool:
    """True if a decision is to append the safe value."""
    return override is not None and override.form == "append" and not is_target(fleet, override)


def exposed(fleet: Fleet, unit: Unit) -> bool:
    """Effective is the target and the standing decision is not."""
    if not unit.live or is_target(fleet, unit.override) or not runs_target(fleet, unit):
        return False
    return is_candidate(fleet, unit_sm(fleet, unit))


def may_run_target(fleet: Fleet, unit: Unit) -> bool:
    """True if nothing but the unit's next start stands between it and the target, or not even that."""
    return unit.live and (
        unit.grant is not None
        or unit.adoption == "adopted"
        or told_target(fleet, unit)
        or is_target(fleet, unit.override)
        or uncontrolled(fleet, unit)
    )


def exposed_count(fleet: Fleet, sm: str, *, except_unit: str | None = None) -> int:
    """Units of one SM that may run the target: granted, pinned, adopted, uncontrolled together."""
    counted = census.taken(fleet, ("exposed",), fleet.units, lambda name: _exposes(fleet, name))
    return counted.totals[sm] - (sm in counted.of_unit.get(except_unit or "", ()))


def _exposes(fleet: Fleet, name: str) -> Kinds:
    """The SM on which a unit may run the target."""
    unit = fleet.units[name]
    return (unit_sm(fleet, unit),) if may_run_target(fleet, unit) else ()


def granted_by(fleet: Fleet, unit: Unit, rollout: Rollout) -> Grant | None:
    """The grant that a rollout gave for what this unit launched."""
    grant = readings.grant_in_force(fleet, unit)
    return grant if grant is not None and grant.rollout == rollout.plan.id else None


def good(fleet: Fleet, unit: Unit, rollout: Rollout) -> bool:
    """A good outcome: every rank attested the target, it serves, and it is verified.

    A rank that attested nothing is missing data, which is never a pass.
    """
    grant = granted_by(fleet, unit, rollout)
    if grant is None or unit.launch is None or not verified(grant, rollout.plan):
        return False
    live = unit.live_instances()
    return (
        len({i.node_rank for i in live if i.effective is not None}) >= unit.launch.nnodes
        and all(readings.on_target(fleet, i) for i in live)
        and any(i.state == "serving" for i in live)
    )


def verified(grant: Grant, plan: RolloutPlan) -> bool:
    """True if a grant has baked and, where the plan asks for them, its golden prompts came out right."""
    wrong = grant.golden_mismatches
    answered = wrong is not None and wrong <= plan.golden_mismatches_max
    return grant.bake_s >= plan.bake_s and (plan.golden == "ignore" or answered)


def bakes(fleet: Fleet, unit: Unit) -> bool:
    """True if what a unit serves on the target is still counted: its rollout's plan wants more."""
    grant = readings.grant_in_force(fleet, unit)
    rollout = None if grant is None else fleet.rollouts.get(grant.rollout or "")
    return grant is not None and rollout is not None and grant.bake_s < rollout.plan.bake_s


def in_flight(fleet: Fleet, rollout: Rollout) -> int:
    """Units of a rollout that restart or bake. One that waits for its owner's restart is not."""
    counted = census.taken(fleet, ("in_flight",), fleet.units, lambda name: _flies(fleet, name))
    return counted.totals[rollout.plan.id]


def _flies(fleet: Fleet, name: str) -> Kinds:
    """The rollout under which a unit restarts or bakes."""
    unit = fleet.units[name]
    grant = readings.grant_in_force(fleet, unit)
    rollout = None if grant is None else fleet.rollouts.get(grant.rollout or "")
    if grant is None or rollout is None or not grant.launched or good(fleet, unit, rollout):
        return ()
    watched = any(name in wave.members for wave in rollout.watched)
    return (rollout.plan.id,) if watched else ()


def granted_keys(fleet: Fleet, rollout: Rollout) -> set[str]:
    """The kernel keys that a rollout's grants stand for."""
    counted = census.taken(fleet, ("granted",), fleet.units, lambda name: _grants(fleet, name))
    found = set()
    for granted_by_id, key in counted.totals:
        if granted_by_id == rollout.plan.id:
            found.add(key)
    return found


def _grants(fleet: Fleet, name: str) -> Kinds:
    """Every (rollout, kernel key) that a unit is granted."""
    unit = fleet.units[name]
    if unit.grant is None:
        return ()
    return tuple({(grant.rollout, key) for grant in unit.grants for key in grant.kernel_keys})
