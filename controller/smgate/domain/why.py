"""The answer to "why": computed by the same rules from a folded state, never read back from the log."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from smgate.domain import (
    context,
    decisions,
    evidence,
    exposure,
    facts,
    membership,
    outcome,
    reach,
    readings,
    rules,
    rules_end,
    rules_start,
    upstream,
    waits,
    waves,
)
from smgate.domain.events import Event, Recorded
from smgate.domain.next_steps import next_step
from smgate.domain.state import Fleet
from smgate.domain.state_evidence import KeyEvidence

Reader = Callable[[int], Recorded | None]
"""Reads one event by its position."""

NO_CHECK_ON_SILICON = (
    "No check of this project has run on SM10x silicon yet; evidence comes from this fleet's nodes."
)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def iso(at_us: int) -> str:
    """An instant as ISO-8601 in UTC."""
    return (EPOCH + timedelta(microseconds=at_us)).isoformat().replace("+00:00", "Z")


def says(event: Event) -> str:
    """One line about a cited event."""
    match event:
        case facts.LaunchPlanned():
            build = event.build
            return (
                f"launch {event.launch_id} rank {event.node_rank} of {event.nnodes}: SGLang "
                f"{build.sglang_version or '?'}, FlashInfer {build.flashinfer_version or '?'}, "
                f"asked runner {event.asked_runner or 'none'}"
            )
        case facts.CheckFinished():
            return f"check {event.check} {event.outcome} ({event.reason}) on {len(event.gpu_uuids)} GPUs"
        case facts.EffectiveSeen():
            return f"{event.instance_id} runs ({event.runner}, {event.a2a}), by its {event.source}"
        case decisions.Granted():
            by = f"rollout {event.rollout}, wave {event.wave}" if event.rollout else "a ruling"
            return f"granted by {by} for kernel key {', '.join(event.kernel_keys)}"
        case _:
            return (
                getattr(event, "reason", None) or getattr(event, "sentence", None) or _plain(event)
            )


def _plain(event: Event) -> str:
    """An event that has no words of its own: its values, without what is not known."""
    named = ((field.name, getattr(event, field.name)) for field in dataclasses.fields(event))
    return ", ".join(f"{name} {value}" for name, value in named if isinstance(value, (str, int)))


def _cited(positions: Iterable[int], read: Reader | None) -> list[dict[str, Any]]:
    found = []
    for position in positions:
        entry: dict[str, Any] = {"position": position}
        recorded = read(position) if read is not None else None
        if recorded is not None:
            entry |= {
                "type": type(recorded.event).__name__,
                "at": iso(recorded.at_us),
                "actor": recorded.actor,
                "says": says(recorded.event),
            }
        found.append(entry)
    return found


def _member(ctx: context.Context, member: context.Member) -> dict[str, Any]:
    rank, instance = member.rank, member.instance
    return {
        "node": member.node,
        "rank": rank.planned.node_rank if rank is not None else None,
        "gated": rank is not None,
        "sms": [sm or "unknown" for sm in member.sms],
        "gpus": len(member.gpu_uuids),
        "a2a": member.a2a,
        "kernel_key": member.kernel_key,
        "standing": ctx.fleet.keys[member.kernel_key].standing
        if member.kernel_key in ctx.fleet.keys
        else None,
        "effective": {"runner": instance.effective.runner, "a2a": instance.effective.a2a}
        if instance is not None and instance.effective is not None
        else None,
        "fallback": instance.fallback if instance is not None else None,
        "answer": rules.answer_member(ctx, member).code,
    }


def _left_alone(ctx: context.Context) -> dict[str, Any] | None:
    for member in ctx.members:
        alone = rules_end.left_alone(member)
        if alone is not None:
            return {
                "runner": alone.runner,
                "a2a": alone.a2a,
                "memory_fallback": alone.memory_fallback,
                "raises": alone.raises,
                "raises_sentence": None
                if alone.raises is None or alone.raises == "a2a_refused"
                else outcome.REFUSALS[alone.raises],
                "code": alone.code,
                "sentence": upstream.SENTENCES[alone.code],
            }
    return None


def explain(
    fleet: Fleet, unit_id: str, now_us: int, *, read: Reader | None = None
) -> dict[str, Any]:
    """Why a unit has the override it has, at the state's position.

    Args:
        fleet: the log folded to the position in question.
        unit_id: an id in `fleet.units`.
        now_us: the moment in question.
        read: reads cited events, to say what they were.
    """
    unit = fleet.units[unit_id]
    decision = rules.decide_unit(fleet, unit_id, now_us)
    event = decision.event
    ctx = context.of_unit(fleet, unit, now_us)
    would = event.would
    pending = unit.launch is not None and unit.launch.decided is None
    fallen = [i for i in unit.instances.values() if i.fallback is not None]
    return {
        "unit": unit_id,
        "as_of_position": fleet.position,
        "now": iso(now_us),
        "rules_version": event.rules_version,
        "mode": "observe" if would is not None else "enforce" if ctx.sms else None,
        "override": {
            "form": event.form,
            "value": event.value,
            "code": event.code,
            "sentence": event.sentence,
            "no_safe_value": event.no_safe_value,
        },
        "would": None
        if would is None
        else {"form": would.form, "value": would.value, "code": would.code},
        "rule": decision.raw.code,
        "recorded": None
        if unit.override is None
        else {
            "position": unit.override_position,
            "form": unit.override.form,
            "value": unit.override.value,
            "code": unit.override.code,
        },
        "launch_pending": pending,
        "facts": _cited(
            dict.fromkeys([*event.facts, *sorted(i.fallback_position for i in fallen)]), read
        ),
        "needed": _needed(ctx, decision),
        "members": [_member(ctx, member) for member in ctx.members],
        "if_left_alone": _left_alone(ctx),
        "memory_fallback": sorted({str(i.fallback) for i in fallen}) or None,
        "exposed": exposure.exposed(fleet, unit),
        "uncontrolled": exposure.uncontrolled(fleet, unit),
        "note": NO_CHECK_ON_SILICON if ctx.candidate else None,
    }


def _needed(ctx: context.Context, decision: rules.Decision) -> list[dict[str, str]]:
    """What stands between this unit and the target; empty if nothing does."""
    raw = decision.raw
    names = _names(ctx)
    found = []
    if decision.event.code == "observe":
        found.append(_need("observe", "The SM is in observe mode.", names))
    if raw.kind == "target":
        return found
    refusals = dict(decision.refusals)
    if raw.code not in refusals:
        found.append(_need(raw.code, raw.sentence, names))
    else:
        found.extend(_need(code, sentence, names) for code, sentence in decision.refusals)
    return found


def _names(ctx: context.Context) -> dict[str, str]:
    """The names a next step may speak of."""
    found = {"unit": ctx.unit.id}
    rollout = rules_start.rollout_of(ctx)
    if rollout is not None:
        found["rollout"] = rollout.plan.id
    if ctx.fleet.freezes:
        found["freeze"] = min(ctx.fleet.freezes)
    if ctx.kernel_keys:
        found["key"] = ctx.kernel_keys[0]
    if ctx.gate is not None:
        found["gate"] = ctx.gate.id
    if ctx.sm is not None:
        found["sm"] = ctx.sm
    return found


def _need(code: str, sentence: str, names: Mapping[str, str]) -> dict[str, str]:
    return {"code": code, "sentence": sentence, "next_step": next_step(code, names)}


def _results(found: KeyEvidence) -> list[dict[str, Any]]:
    """What was measured of a kernel key, one entry per GPU set."""
    return [
        {
            "node": result.node,
            "chassis": result.chassis,
            "pool": result.pool,
            "gpus": list(gpus),
            "checks": {name: c.outcome for name, c in sorted(result.worst.items())},
            "reasons": {name: c.reason for name, c in sorted(result.worst.items())},
            "flaky": sorted(result.flaky),
            "node_fault": gpus in found.faulty_sets,
            "confirmed": gpus in found.confirmed_sets,
        }
        for gpus, result in sorted(found.sets.items())
    ]


UNPROVEN: Final = {
    "negative_control": (
        "its negative control was not caught, so it cannot tell right from wrong",
        "Repair the check on that node, and run it again.",
    ),
    "baseline_proof": (
        "its probe version has not passed the required checks on a baseline SM",
        "Launch on a node of a baseline SM with this probe version, best in the pool.",
    ),
}


def _unproven(found: KeyEvidence) -> list[dict[str, Any]]:
    """Results that count for nothing: they block qualification and revoke nothing."""
    return [
        {
            "code": "check_unproven",
            "node": result.node,
            "gpus": list(gpus),
            "check": check,
            "outcome": one.fact.outcome,
            "probe_version": version,
            "lacks": one.lacks,
            "sentence": f"check_unproven: {check} {one.fact.outcome} on {result.node} with probe "
            f"version {version} counts for nothing, because {UNPROVEN[one.lacks][0]}.",
            "next_step": UNPROVEN[one.lacks][1],
        }
        for gpus, result in sorted(found.sets.items())
        for (check, version), one in sorted(result.unproven.items())
    ]


def explain_key(fleet: Fleet, key: str, now_us: int) -> dict[str, Any]:
    """Where a kernel key stands and what it still needs."""
    found = fleet.keys[key]
    gate = evidence.gate_of_key(fleet, found)
    passing = evidence.passing_sets(found, gate, pool_only=True) if gate else []
    build = found.build
    lacks = reach.lacking(fleet, found)
    unproven = _unproven(found)
    return {
        "sentence": " ".join(
            [f"Kernel key {key} is {found.standing}."]
            + [one["sentence"] for one in [*lacks, *unproven]]
        ),
        "kernel_key": key,
        "standing": found.standing,
        "accepted_like": found.accepted_like,
        "as_of_position": fleet.position,
        "now": iso(now_us),
        "sm": found.sm,
        "a2a": found.a2a,
        "build": {
            "sglang_version": build.sglang_version,
            "flashinfer_version": build.flashinfer_version,
            "driver_version": build.driver_version,
            "cuda_toolkit": build.cuda_toolkit,
            "torch_cuda": build.torch_cuda,
        },
        "pool_gpu_sets_passed": len(passing),
        "pool_gpu_sets_needed": fleet.policy.min_gpu_sets,
        "required_checks": list(gate.required_checks) if gate else [],
        "can_never_qualify_as_things_stand": bool(lacks),
        "pool_lacks": lacks,
        "nearest_qualified": reach.nearest(fleet, found),
        "results": _results(found),
        "unproven": unproven,
        "units": sorted(
            name
            for name, unit in fleet.units.items()
            if unit.live
            and any(readings.rank_key(fleet, r) == key for r in unit.known_ranks.values())
        ),
        "note": NO_CHECK_ON_SILICON,
    }


def explain_rollout(fleet: Fleet, rollout_id: str, now_us: int) -> dict[str, Any]:
    """What a rollout waits for, whose move it is, since when and until when."""
    rollout = fleet.rollouts[rollout_id]
    plan = rollout.plan
    names = membership.eligible(fleet, rollout, now_us)
    shown = []
    for wave in rollout.waves:
        counted = waves.tally(fleet, rollout, wave)
        result, sentence = waves.verdict(rollout, counted.counts)
        shown.append(
            {
                "wave": wave.number,
                "units": list(wave.units),
                "eligible": wave.eligible,
                "verdict": wave.verdict or result,
                "sentence": sentence,
                "good": list(counted.good),
                "bad": list(counted.bad),
                "pending": list(counted.pending),
            }
        )
    waiting = [
        show_wait(fleet, wait, now_us)
        for wait in waits.collect(fleet, now_us)
        if wait.subject == plan.id or wait.subject.startswith(f"{plan.id}/")
    ]
    return {
        "rollout": plan.id,
        "phase": rollout.phase,
        "halted_code": rollout.halted_code,
        "as_of_position": fleet.position,
        "now": iso(now_us),
        "author": rollout.author,
        "approver": rollout.approver,
        "waves": shown,
        "waits": waiting,
        "blocked_by": [
            *(
                _need("freeze", f"Freeze {f}: {fleet.freeze_reasons[f]}", {"freeze": f})
                for f in sorted(fleet.freezes)
            ),
            *(
                [_need("breaker_open", "The breaker is open.", {})]
                if fleet.breaker_position is not None
                else []
            ),
        ],
        "eligible_now": len(names),
        "next_wave": membership.upcoming(fleet, rollout, names),
    }


def show_wait(fleet: Fleet, wait: waits.Wait, now_us: int) -> dict[str, Any]:
    """A wait with its instants on the wall clock; `until` is None when only a person ends it."""
    elapsed_us = max(0, fleet.led_us(now_us) - wait.since_led_us)
    return {
        "id": wait.id,
        "code": wait.code,
        "subject": wait.subject,
        "owner": wait.owner,
        "since": iso(now_us - elapsed_us) if wait.since_led_us else None,
        "until": None if wait.remaining_us is None else iso(now_us + wait.remaining_us),
        "overdue": wait.remaining_us is not None and wait.remaining_us <= 0,
        "sentence": wait.sentence,
        "next_step": wait.next_step,
    }
