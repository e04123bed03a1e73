"""What a rollout plan would do if it were proposed now: whom each wave takes, and what it costs."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from smgate.domain import (
    exposure,
    membership,
    plan_check,
    plan_lint,
    policy,
    rollout_commands,
    rules,
    rules_start,
    takeover,
    why,
)
from smgate.domain.state import Fleet, Rollout, Wave

BLOCKED_SHOWN_MAX: Final = 200
OWN_CODES: Final = frozenset({"wave_not_open", "no_rollout", "max_in_flight", "exposure_limit"})
"""Refusals that the plan itself or its own progress brings about."""


def foresee(fleet: Fleet, plan: policy.RolloutPlan, now_us: int) -> dict[str, Any]:
    """The plan's waves over the fleet as it stands, as if each passed and nothing else happened.

    Args:
        fleet: a copy; the rollout is put into it.
        plan: what might be proposed.
        now_us: the moment in question.

    Raises:
        RejectedError: the plan is not valid.
    """
    plan_check.validate(plan, fleet.gates)
    rollout_commands.check_superseded(fleet, plan)
    exists = plan.id in fleet.rollouts
    rollout = Rollout(
        plan=plan, author="", position=fleet.position + 1, since_led_us=0, phase="running"
    )
    fleet.rollouts[plan.id] = rollout
    before = fleet.rollouts.get(plan.supersedes or "")
    if before is not None and before.phase in ("running", "paused"):
        baked = takeover.baked_keys(fleet, before)
        takeover.carry_over(fleet, before, rollout, baked=baked)
        before.phase = "aborted"
    fleet.censuses.clear()
    exposed = {unit.id for unit in fleet.units.values() if _exposed(fleet, unit.id, plan.sm)}
    names = membership.eligible(fleet, rollout, now_us)
    waves = []
    for number in range(len(plan.waves)):
        units = membership.opening(fleet, rollout, names)
        exposed.update(units)
        waves.append(_wave(fleet, rollout, number, units) | {"exposed_units": len(exposed)})
        rollout.waves.append(_opened(rollout, number, units, len(names), fleet.position))
    for row in waves:
        row["waits_for"] = _waits(fleet, row["units"], now_us)
    found = plan_lint.remarks(plan, sizes=[len(row["units"]) for row in waves])
    if exists:
        found.insert(0, _exists(plan.id))
    limit = fleet.policy.exposure_limit_units
    return {
        "plan": plan.id,
        "gate": plan.gate,
        "sm": plan.sm,
        "as_of_position": fleet.position,
        "now": why.iso(now_us),
        "eligible_units": len(names),
        "eligible_gpus": sum(membership.gpu_count(fleet.units[name]) for name in names),
        "waves": waves,
        "restarts": sum(row["restarts"] for row in waves),
        "worst_exposed_units": len(exposed),
        "exposure_limit_units": limit,
        "least_duration_s": sum(row["least_duration_s"] for row in waves),
        "duration_without": "restarts, waiting for owners and for traffic",
        **blocked(fleet, rollout, set(names), now_us),
        "warnings": [dataclasses.asdict(one) for one in found],
    }


def _exposed(fleet: Fleet, unit: str, sm: str) -> bool:
    found = fleet.units[unit]
    return exposure.may_run_target(fleet, found) and exposure.unit_sm(fleet, found) == sm


def _opened(
    rollout: Rollout, number: int, units: tuple[str, ...], eligible: int, position: int
) -> Wave:
    return Wave(
        number=number,
        units=units,
        eligible=eligible,
        position=position,
        since_led_us=rollout.since_led_us,
        verdict="passed",
    )


def _wave(fleet: Fleet, rollout: Rollout, number: int, units: Sequence[str]) -> dict[str, Any]:
    plan = rollout.plan
    restarting = [u for u in units if not exposure.runs_target(fleet, fleet.units[u])]
    sample = min(len(units), plan.min_sample or len(units))
    return {
        "wave": number,
        "units": list(units),
        "gpus": sum(membership.gpu_count(fleet.units[unit]) for unit in units),
        "restarts": len(restarting),
        "least_duration_s": math.ceil(sample / plan.max_in_flight) * plan.bake_s,
    }


def _waits(fleet: Fleet, units: Sequence[str], now_us: int) -> dict[str, int]:
    """Codes that would keep members of an open wave from starting now, with how many each."""
    counts: Counter[str] = Counter()
    for unit in units:
        decision = rules.decide_unit(fleet, unit, now_us)
        if decision.raw.kind != "target":
            counts.update({code for code, _ in decision.refusals})
    return dict(sorted(counts.items()))


def blocked(fleet: Fleet, rollout: Rollout, eligible: set[str], now_us: int) -> dict[str, Any]:
    """Units that a rollout covers and could not take, and why."""
    rows: list[dict[str, Any]] = []
    counts: Counter[str] = Counter()
    for name in sorted(fleet.units):
        if name in eligible or not fleet.units[name].live:
            continue
        decision = rules.decide_unit(fleet, name, now_us)
        if not rules_start.covers(rollout, decision.context):
            continue
        code, sentence = decision.event.code, decision.event.sentence
        if decision.event.would is None and decision.raw.kind == "safe":
            others = [one for one in decision.refusals if one[0] not in OWN_CODES]
            code, sentence = others[0] if code in OWN_CODES and others else (code, sentence)
        counts[code] += 1
        rows.append({"unit": name, "code": code, "sentence": sentence})
    return {
        "blocked_units": len(rows),
        "blocked_by_code": dict(sorted(counts.items())),
        "blocked": rows[:BLOCKED_SHOWN_MAX],
    }


def _exists(name: str) -> plan_lint.Remark:
    return plan_lint.Remark(
        code="rollout_exists",
        sentence=f"A rollout {name!r} exists already; this plan could not be proposed as it is.",
        next_step="Give the plan another id: its id is also the salt of its cohorts.",
    )
