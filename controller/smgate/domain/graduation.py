"""When a gate ends for an SM: a rollout has completed there, and nothing speaks against it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from smgate.domain import commands, rulings
from smgate.domain.errors import RejectedError
from smgate.domain.events import Event
from smgate.domain.policy import Gate
from smgate.domain.state import Fleet


def graduated(gate: Gate, sm: str) -> Gate:
    """The gate with one of its candidate SMs among its baselines."""
    return replace(
        gate,
        baseline_sms=(*gate.baseline_sms, sm),
        candidate_sms=tuple(one for one in gate.candidate_sms if one != sm),
    )


def graduate(fleet: Fleet, command: commands.GraduateGate) -> tuple[Event, ...]:
    """Decide that an SM is decided as a baseline from now on.

    Raises:
        RejectedError: `unknown_gate`, `bad_sm`, or the code of what stands against it.
    """
    gate, sm = fleet.gates.get(command.gate), command.sm
    if gate is None:
        raise RejectedError(
            code="unknown_gate",
            message=f"No gate {command.gate!r}.",
            next_step="See `smgate gate show`.",
        )
    if sm in gate.baseline_sms:
        return ()
    if sm not in gate.candidate_sms:
        raise RejectedError(
            code="bad_sm",
            message=f"SM {sm} is no candidate of gate {gate.id}.",
            next_step=f"Candidates: {', '.join(gate.candidate_sms) or 'none'}.",
        )
    for code, message, next_step in _against(fleet, gate, sm):
        raise RejectedError(code=code, message=message, next_step=next_step)
    return (rulings.GateGraduated(gate=gate.id, sm=sm, reason=command.reason),)


def _against(fleet: Fleet, gate: Gate, sm: str) -> Iterator[tuple[str, str, str]]:
    """What stands against it: code, sentence, next step. Missing data is never a pass."""
    rollouts = [r for r in fleet.rollouts.values() if (r.plan.gate, r.plan.sm) == (gate.id, sm)]
    completed = [r.phase_position for r in rollouts if r.phase == "completed"]
    if not completed:
        yield (
            "not_completed",
            f"No rollout of gate {gate.id} on SM {sm} has completed.",
            "Let one complete: smgate rollout ls.",
        )
    for rollout in rollouts:
        name = rollout.plan.id
        if not rollout.ended:
            yield (
                "rollout_busy",
                f"Rollout {name} is {rollout.phase} on SM {sm}.",
                f"Let it finish, or smgate rollout abort {name}.",
            )
        if rollout.phase == "halted" and rollout.phase_position > max(completed):
            yield (
                "rollout_halted",
                f"Rollout {name} was halted ({rollout.halted_code}), and none completed since.",
                "Find the bad sign, and let another rollout complete.",
            )
    for key in sorted(fleet.keys):
        standing = fleet.keys[key].standing
        if fleet.keys[key].sm == sm and standing in ("suspect", "failed"):
            yield (
                f"build_{standing}",
                f"Kernel key {key} is {standing} on SM {sm}.",
                f"smgate build why {key}; then smgate build rule {key}.",
            )
    if fleet.breaker_position is not None:
        yield (
            "breaker_open",
            "The breaker is open.",
            "smgate breaker show, then smgate breaker reset.",
        )
    for name in sorted(fleet.freezes):
        yield (
            "freeze",
            f"Freeze {name} is in force: {fleet.freeze_reasons[name]}",
            f"smgate freeze lift {name}",
        )
