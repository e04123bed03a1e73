"""The answer to "why": computed by the same rules from a folded state, never read back from the log."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from smgate.domain import (
    context,
    decisions,
    exposure,
    facts,
    fits,
    outcome,
    revocation,
    rules,
    rules_end,
    rules_start,
    upstream,
    walk,
)
from smgate.domain.events import Event, Recorded
from smgate.domain.next_steps import next_step
from smgate.domain.state import Fleet, Unit

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
        case revocation.GrantRevoked():
            return f"what rollout {event.rollout} granted was taken back: {event.reason}"
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
    would, known = event.would, names(ctx)
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
        "rules": [_row(row, known) for row in walk.rows(decision)],
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
        "memory": _memory(fleet, unit),
        "members": [_member(ctx, member) for member in ctx.members],
        "if_left_alone": _left_alone(ctx),
        "memory_fallback": sorted({str(i.fallback) for i in fallen}) or None,
        "exposed": exposure.exposed(fleet, unit),
        "uncontrolled": exposure.uncontrolled(fleet, unit),
        "note": NO_CHECK_ON_SILICON if ctx.candidate else None,
    }


def _memory(fleet: Fleet, unit: Unit) -> dict[str, Any] | None:
    """Whether its experts fit its GPUs as it would run; None where nobody can say."""
    room = fits.of_unit(fleet, unit)
    if room is None:
        return None
    return {
        "fits": room.fits,
        "form": room.form,
        "packed_expert_bytes_per_gpu": room.packed_bytes,
        "bf16_expert_bytes_per_gpu": room.bf16_bytes,
        "gpu_free_bytes": room.free_bytes,
        "fallback_fits": room.fallback_fits,
        "sentence": room.sentence,
    }


def _row(row: walk.Row, names: Mapping[str, str]) -> dict[str, Any]:
    """One row of the table; a row that holds says what to do about it."""
    return {
        "part": row.part,
        "number": row.number,
        "codes": list(row.codes),
        "state": row.state,
        "sentence": row.sentence,
        "nodes": list(row.nodes),
        "next_step": None if row.state == "does_not_apply" else next_step(row.codes[0], names),
    }


def names(ctx: context.Context) -> dict[str, str]:
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
