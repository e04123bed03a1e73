"""Grants: when one is recorded, when one ends, and which units are adopted or disagree.

Keep rules end a grant: a pin to the safe value, and what went wrong with its kernel key. The kill
switch and known issues only suspend it; everything else leaves it alone.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Final

from smgate.domain import context, decisions, exposure, readings, rules, rules_end
from smgate.domain.events import Event
from smgate.domain.state import TAKEN_BACK_HERE, Fleet, Grant, Unit
from smgate.domain.state_rollouts import Rollout
from smgate.domain.values import Pair
from smgate.domain.waits import SECOND_US

OF_OTHER_GPUS: Final = ("pinned_off", "build_failed")
"""What ends a grant and says nothing of the GPUs it ran on: nothing is remembered there, so that a
failure which turns out to be another node's own bars nobody for good."""
OF_SOME_GPUS: Final = ("self_test_failed", TAKEN_BACK_HERE)
"""What is remembered on some of a unit's GPUs: the others are left alone."""


def adoptions(fleet: Fleet, units: Sequence[Unit]) -> list[Event]:
    """Units first seen already on the target on a candidate SM, never granted, not ruled on."""
    found: list[Event] = []
    for unit in units:
        if unit.adoption is not None or unit.ever_granted or not unit.live:
            continue
        decided = unit.launch.decided if unit.launch is not None else None
        if decided is not None and decided.form == "append":
            continue  # it was told otherwise: not delivered, which is another alarm
        if exposure.runs_target(fleet, unit) and exposure.uncontrolled(fleet, unit):
            keys = context.of_unit(fleet, unit, fleet.now_us).kernel_keys
            found.append(
                decisions.Adopted(
                    unit=unit.id, kernel_key=keys[0] if keys and len(keys) == 1 else None
                )
            )
    return found


def disagreements(fleet: Fleet, units: Sequence[Unit]) -> list[Event]:
    """Unit launches whose ranks attested different pairs."""
    found: list[Event] = []
    for unit in units:
        if len(unit.instances) < 2:  # noqa: PLR2004  one agrees with itself
            continue
        launch = unit.launch
        if launch is None or launch.launch_ids == unit.disagreed_launch_ids:
            continue
        ranks = [launch.ranks[n] for n in sorted(launch.ranks)]
        pairs: set[Pair] = {
            i.effective
            for i in unit.instances.values()
            if i.effective is not None and i.launch_id in launch.launch_ids
        }
        if len(pairs) > 1:
            keys = {readings.rank_key(fleet, rank) for rank in ranks}
            found.append(
                decisions.UnitDisagreed(
                    unit=unit.id,
                    launch_ids=launch.launch_ids,
                    gpu_uuids=tuple(sorted({u for rank in ranks for u in rank.gpu_uuids})),
                    kernel_keys=tuple(sorted(k for k in keys if k is not None)),
                    pairs=tuple(sorted(pairs, key=lambda p: (p.runner, p.a2a))),
                )
            )
    return found


def endings(fleet: Fleet, units: Sequence[Unit], now_us: int) -> list[Event]:
    """Grants that a keep rule ends now."""
    found: list[Event] = []
    for unit in units:
        if unit.grant is None or not _in_question(fleet, unit):
            continue
        ctx = context.of_unit(fleet, unit, now_us)
        for grant in unit.grants:
            code, sentence = _ending(ctx, grant)
            if code is None:
                continue
            found.append(
                decisions.GrantEnded(
                    unit=unit.id,
                    kernel_keys=grant.kernel_keys,
                    gpu_uuids=_bad_gpus(ctx, grant, code),
                    code=code,
                    sentence=sentence,
                )
            )
    return found


def _in_question(fleet: Fleet, unit: Unit) -> bool:
    """False of most: nothing of what can end a grant is there at all."""
    return (
        unit.pin is not None
        or bool(fleet.gpu_memory)
        or readings.unhealthy(unit)
        or any(
            grant.golden_mismatches
            or any((unit.id, key) in fleet.failed_exits for key in grant.kernel_keys)
            or any(_failed(fleet, key) for key in grant.kernel_keys)
            for grant in unit.grants
        )
    )


def _failed(fleet: Fleet, key: str) -> bool:
    evidence = fleet.keys.get(key)
    return evidence is not None and evidence.standing == "failed"


def _ending(ctx: context.Context, grant: Grant) -> tuple[str | None, str]:
    """The keep rule that ends a grant, by the grant's own kernel keys.

    Asked of every grant, whatever the unit launched since: what went wrong with one key says
    nothing about a grant for another.
    """
    fault = _fault(ctx.fleet, ctx.unit, grant.kernel_keys, grant, ctx.now_us)
    if fault is not None:
        return "fault_in_service", fault
    pin = ctx.unit.pin
    if pin is not None and pin.direction == "off":
        return "pinned_off", f"Pinned to the safe value: {pin.reason}"
    if pin is not None and pin.break_glass:
        return None, ""
    for key in grant.kernel_keys:
        for uuid in ctx.gpu_uuids:
            memory = ctx.fleet.gpu_memory.get((uuid, key))
            if memory is not None and ctx.unit.live:  # else when it comes back
                return memory[0], rules_end.MEMORY_SENTENCES[memory[0]]
        if _failed(ctx.fleet, key):
            return "build_failed", rules_end.failed_sentence(key)
    return None, ""


def _bad_gpus(ctx: context.Context, grant: Grant, code: str) -> tuple[str, ...]:
    """The GPUs that a bad end is remembered on. A failed check was run on some of them, not on all."""
    if code in OF_OTHER_GPUS:
        return ()
    if code not in OF_SOME_GPUS:
        return ctx.gpu_uuids
    known = {uuid for uuid, key in ctx.fleet.gpu_memory if key in grant.kernel_keys}
    return tuple(uuid for uuid in ctx.gpu_uuids if uuid in known)


def _fault(
    fleet: Fleet, unit: Unit, keys: Sequence[str], grant: Grant | None, now_us: int
) -> str | None:
    """What a server did on the target that it must not do again: answer wrongly, crash or hang."""
    wrong = grant.golden_mismatches if grant is not None else None
    rollout = fleet.rollouts.get(grant.rollout or "") if grant is not None else None
    asked = rollout is not None and rollout.plan.golden == "require"
    if rollout is not None and asked and (wrong or 0) > rollout.plan.golden_mismatches_max:
        return f"{wrong} golden prompts of one set came out wrong on the target."
    exits, hang_after_s = readings.fault_bounds(fleet, grant)
    failed = readings.failures(fleet, unit, keys, now_us)
    if failed >= exits:
        return f"The server failed {failed} times on the target."
    since_us = fleet.led_us(now_us) - hang_after_s * SECOND_US
    hanging = (i.unhealthy_led_us for i in readings.hanging(fleet, unit))
    hangs = any(at is not None and at <= since_us for at in hanging)
    if hangs and grant is readings.grant_in_force(fleet, unit):
        return f"The server hung for {hang_after_s} s on the target."
    return None


def faults(fleet: Fleet, units: Sequence[Unit], now_us: int) -> list[Event]:
    """Servers that crash over and over or hang on the target with no grant that could end."""
    found: list[Event] = []
    for unit in units:
        if not _may_fault(fleet, unit):
            continue
        keys = tuple(sorted(readings.launch_keys(fleet, unit) or ()))
        sentence = _fault(fleet, unit, keys, None, now_us) if keys else None
        if sentence is not None and not readings.remembered(fleet, unit):
            uuids = {uuid for rank in unit.ranks.values() for uuid in rank.gpu_uuids}
            found.append(
                decisions.TargetFaulted(
                    unit=unit.id,
                    kernel_keys=keys,
                    gpu_uuids=tuple(sorted(uuids)),
                    sentence=sentence,
                )
            )
    return found


def _may_fault(fleet: Fleet, unit: Unit) -> bool:
    """The quick answer for nearly every unit: nothing of it failed or is unhealthy."""
    for one in unit.instances.values():
        if one.unhealthy_led_us is not None or not one.live:
            break
    else:
        return False
    return readings.grant_in_force(fleet, unit) is None and (
        exposure.is_candidate(fleet, exposure.unit_sm(fleet, unit))
    )


def starts(fleet: Fleet, names: Sequence[str], now_us: int) -> list[Event]:
    """Grants to record now, in cohort order, within the limits."""
    found: list[Event] = []
    exposed: dict[str, int] = {}
    flying: dict[str, int] = {}
    limit = fleet.policy.exposure_limit_units
    looked_at = set(names)
    waves = _running_waves(fleet, looked_at)
    for unit in _waiting(fleet, names, looked_at, waves):
        decision = rules.decide_unit(fleet, unit.id, now_us)
        if not decision.starts:
            continue
        rollout, wave = waves.get(unit.id, (None, None))
        if rollout is not None and unit.launch is not None and unit.launch.decided is None:
            # It starts right now, so it is in flight from here on.
            name = rollout.plan.id
            count = flying.setdefault(name, exposure.in_flight(fleet, rollout))
            if count >= rollout.plan.max_in_flight:
                continue
            flying[name] = count + 1
        if limit is not None:
            sm = decision.event.given_for.sm or ""
            count = exposed.setdefault(sm, exposure.exposed_count(fleet, sm))
            mine = 1 if exposure.may_run_target(fleet, unit) else 0
            if count - mine >= limit:
                continue
            exposed[sm] = count - mine + 1
        found.append(
            decisions.Granted(
                unit=unit.id,
                kernel_keys=decision.context.kernel_keys or (),
                rollout=rollout.plan.id if rollout is not None else None,
                wave=wave,
                code=decision.raw.code,
            )
        )
    return found


def _waiting(
    fleet: Fleet,
    names: Sequence[str],
    looked_at: Set[str],
    waves: dict[str, tuple[Rollout, int]],
) -> list[Unit]:
    """Units that might start, in cohort order.

    Only a member of a wave of a running rollout can, or anybody once a rollout has completed; and
    nobody whose launch is granted already.
    """
    ordered: dict[str, None] = {}
    for name in sorted(fleet.rollouts):
        for wave in fleet.rollouts[name].waves:
            ordered.update(dict.fromkeys(wave.among(looked_at)))
    if any(r.phase == "completed" for r in fleet.rollouts.values()):
        ordered.update(dict.fromkeys(names))
    else:
        ordered = {name: None for name in ordered if name in waves}
    return [
        unit
        for name in ordered
        if (unit := fleet.units.get(name)) is not None
        and unit.live
        and readings.grant_in_force(fleet, unit) is None
    ]


def _running_waves(fleet: Fleet, looked_at: Set[str]) -> dict[str, tuple[Rollout, int]]:
    """The wave of a running rollout that each of these is in: the first, by name and number."""
    found: dict[str, tuple[Rollout, int]] = {}
    for name in sorted(fleet.rollouts):
        rollout = fleet.rollouts[name]
        if rollout.phase == "running":
            for wave in rollout.waves:
                for unit in wave.among(looked_at):
                    found.setdefault(unit, (rollout, wave.number))
    return found
