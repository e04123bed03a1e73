"""What a rollout waits for: whose move it is, since when, until when, and what to do."""

from __future__ import annotations

from typing import Any

from smgate.domain import membership, waits, waves
from smgate.domain.state import Fleet
from smgate.domain.why import iso, need


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
                need("freeze", f"Freeze {f}: {fleet.freeze_reasons[f]}", {"freeze": f})
                for f in sorted(fleet.freezes)
            ),
            *(
                [need("breaker_open", "The breaker is open.", {})]
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
