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
    windows,
)
from smgate.domain.state import Fleet
from smgate.domain.state_rollouts import Rollout, Wave
from smgate.domain.windows import SECOND_US

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
        plan=plan, author="", position=fleet.position + 1, since_led_us=0, phase="approved"
    )
    fleet.rollouts[plan.id] = rollout
    shown = course(fleet, rollout, now_us)
    names: list[str] = shown.pop("eligible")
    found = plan_lint.remarks(plan, sizes=[len(row["units"]) for row in shown["waves"]])
    if exists:
        found.insert(0, _exists(plan.id))
    frozen = windows.frozen(plan.freeze_windows, now_us)
    return {
        **shown,
        "frozen_until": None if frozen is None else windows.iso(frozen.end_us),
        **blocked(fleet, rollout, set(names), now_us),
        "warnings": [dataclasses.asdict(one) for one in found],
    }


def course(fleet: Fleet, rollout: Rollout, now_us: int) -> dict[str, Any]:
    """A rollout's waves: those that opened as they are, the rest as if each passed from now on.

    Args:
        fleet: a copy; the rollout in it goes on.
        rollout: one of the fleet. One that has ended opens nothing more.
        now_us: the moment in question.
    """
    plan = rollout.plan
    _go_on(fleet, rollout)
    exposed = {unit.id for unit in fleet.units.values() if _exposed(fleet, unit.id, plan.sm)}
    names = [] if rollout.ended else membership.eligible(fleet, rollout, now_us)
    waves = []
    for number in range(len(rollout.waves) if rollout.ended else len(plan.waves)):
        if number == len(rollout.waves):
            units = membership.opening(fleet, rollout, names)
            rollout.waves.append(_opened(rollout, number, units, len(names), fleet.position))
            row = _wave(fleet, number, units)
        else:
            wave = rollout.waves[number]
            row = _wave(fleet, number, wave.units) | {"verdict": wave.verdict or "running"}
            wave.verdict = "passed"
        exposed.update(row["units"])
        waves.append(row | {"exposed_units": len(exposed)})
    end_us = _clock(plan, waves, now_us)
    for row in waves:
        row["waits_for"] = {} if rollout.ended else _waits(fleet, row["units"], now_us)
    return {
        "plan": plan.id,
        "gate": plan.gate,
        "sm": plan.sm,
        "as_of_position": fleet.position,
        "now": why.iso(now_us),
        "eligible": names,
        "eligible_units": len(names),
        "eligible_gpus": sum(membership.gpu_count(fleet.units[name]) for name in names),
        "waves": waves,
        "restarts": sum(row["restarts"] for row in waves),
        "worst_exposed_units": len(exposed),
        "exposure_limit_units": fleet.policy.exposure_limit_units,
        "least_duration_s": math.ceil((end_us - now_us) / SECOND_US),
        "duration_without": "restarts, waiting for owners and for traffic",
    }


def _go_on(fleet: Fleet, rollout: Rollout) -> None:
    """Let a rollout run that has not ended; one that was not started takes over what it may."""
    before = fleet.rollouts.get(rollout.plan.supersedes or "")
    waiting = rollout.phase in ("proposed", "approved")
    if not rollout.ended:
        rollout.phase = "running"
    if waiting and before is not None and before.phase in ("running", "paused"):
        baked = takeover.baked_keys(fleet, before)
        takeover.carry_over(fleet, before, rollout, baked=baked)
        before.phase = "aborted"
    fleet.censuses.clear()


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


def _wave(fleet: Fleet, number: int, units: Sequence[str]) -> dict[str, Any]:
    restarting = [u for u in units if not exposure.runs_target(fleet, fleet.units[u])]
    return {
        "wave": number,
        "units": list(units),
        "gpus": sum(membership.gpu_count(fleet.units[unit]) for unit in units),
        "restarts": len(restarting),
    }


def _clock(plan: policy.RolloutPlan, waves: Sequence[dict[str, Any]], now_us: int) -> int:
    """When each wave would open at the earliest, how long it takes at least, and when all is done.

    As many as may be in flight bake together. In a freeze window nothing opens and nobody is
    granted; who bakes goes on baking.
    """
    at_us = now_us
    for row in waves:
        if row.get("verdict", "running") != "running":  # it has opened and ended
            row |= {"opens_at": None, "least_duration_s": 0}
            continue
        size = len(row["units"])
        rounds = math.ceil(min(size, plan.min_sample or size) / plan.max_in_flight)
        at_us = opens_us = _thawed(plan, at_us)
        for _ in range(rounds):
            at_us = _thawed(plan, at_us) + plan.bake_s * SECOND_US
        row["opens_at"] = why.iso(opens_us)
        row["least_duration_s"] = math.ceil((at_us - opens_us) / SECOND_US)
    return at_us


def _thawed(plan: policy.RolloutPlan, at_us: int) -> int:
    held = windows.frozen(plan.freeze_windows, at_us)
    return at_us if held is None else held.end_us


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
