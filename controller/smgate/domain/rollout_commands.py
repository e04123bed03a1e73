"""Commands about rollouts. Author and approver differ: here and by the log's own constraint."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from smgate.domain import (
    commands,
    context,
    plan_check,
    policy,
    revocation,
    revoking,
    rules_start,
    rulings,
    takeover,
    unit_commands,
)
from smgate.domain.errors import RejectedError
from smgate.domain.events import Event
from smgate.domain.state import Fleet, Unit
from smgate.domain.state_rollouts import Rollout


def find_rollout(fleet: Fleet, name: str) -> Rollout:
    """A rollout by name.

    Raises:
        RejectedError: `unknown_rollout`.
    """
    found = fleet.rollouts.get(name)
    if found is None:
        raise RejectedError(
            code="unknown_rollout",
            message=f"No rollout {name!r}.",
            next_step="See `smgate rollout ls`.",
        )
    return found


def _refuse_phase(rollout: Rollout, verb: str, next_step: str) -> RejectedError:
    return RejectedError(
        code=f"rollout_{rollout.phase}",
        message=f"Rollout {rollout.plan.id} is {rollout.phase}; it cannot be {verb}.",
        next_step=next_step,
    )


def _propose(fleet: Fleet, command: commands.ProposeRollout, by: str) -> tuple[Event, ...]:
    plan = command.plan
    plan_check.validate(plan, fleet.gates)
    check_superseded(fleet, plan)
    before = fleet.rollouts.get(plan.id)
    if before is not None:
        if before.plan == plan and before.author == by and before.phase == "proposed":
            return ()
        raise RejectedError(
            code="rollout_exists",
            message=f"A rollout {plan.id!r} exists already.",
            next_step="Give the plan another id: its id is also the salt of its cohorts.",
        )
    return (rulings.RolloutProposed(plan=plan, author=by, reason=command.reason),)


def check_superseded(fleet: Fleet, plan: policy.RolloutPlan) -> None:
    """Refuse a plan that supersedes what it cannot take over from."""
    if plan.supersedes is None:
        return
    other = find_rollout(fleet, plan.supersedes).plan
    if (other.gate, other.sm) != (plan.gate, plan.sm):
        raise RejectedError(
            code="bad_policy",
            message=f"Rollout {plan.id} cannot supersede {other.id}, "
            f"which is of gate {other.gate} on SM {other.sm}.",
            next_step="Name another rollout of the same gate and SM.",
        )


def _approve(fleet: Fleet, command: commands.ApproveRollout, by: str) -> tuple[Event, ...]:
    rollout = find_rollout(fleet, command.rollout)
    if rollout.phase in ("proposed", "approved") and by in rollout.approvers:
        return ()
    if rollout.phase != "proposed":
        raise _refuse_phase(rollout, "approved", "Only a proposed rollout can be.")
    if rollout.author == by:
        raise RejectedError(
            code="same_person",
            message=f"{by} proposed rollout {rollout.plan.id} and cannot approve it.",
            next_step="Ask another person with the role approver.",
        )
    return (rulings.RolloutApproved(rollout=rollout.plan.id, approver=by, reason=command.reason),)


def _start(fleet: Fleet, command: commands.StartRollout, by: str) -> tuple[Event, ...]:
    return start(fleet, command)


def start(
    fleet: Fleet, command: commands.StartRollout, *, approved: bool = True
) -> tuple[Event, ...]:
    """What starting comes to. Not `approved`: one person does it alone, for a time."""
    rollout = find_rollout(fleet, command.rollout)
    if rollout.phase == "running":
        return ()
    if rollout.phase != "approved" and (approved or rollout.phase != "proposed"):
        raise _refuse_phase(
            rollout,
            "started",
            f"Have it approved by another person first: {rollout.agreed}."
            if rollout.phase == "proposed"
            else "Resume it."
            if rollout.phase == "paused"
            else "Propose a new one.",
        )
    ended: list[Event] = []
    carried: tuple[str, ...] = ()
    for other in fleet.rollouts.values():
        if other.phase in ("running", "paused") and other.plan.id == rollout.plan.supersedes:
            carried = takeover.baked_keys(fleet, other)
            ended.append(
                rulings.RolloutAborted(
                    rollout=other.plan.id, code="superseded", reason=command.reason
                )
            )
        elif other.phase in ("running", "paused") and (other.plan.gate, other.plan.sm) == (
            rollout.plan.gate,
            rollout.plan.sm,
        ):
            raise RejectedError(
                code="rollout_busy",
                message=f"Rollout {other.plan.id} is {other.phase} on SM {other.plan.sm}.",
                next_step="Let it finish, abort it first, or name it in supersedes.",
            )
    started = rulings.RolloutStarted(
        rollout=rollout.plan.id, reason=command.reason, carried_keys=carried
    )
    return (*ended, started)


def _pause(fleet: Fleet, command: commands.PauseRollout, by: str) -> tuple[Event, ...]:
    rollout = find_rollout(fleet, command.rollout)
    if rollout.phase == "paused":
        return ()
    if rollout.phase != "running":
        raise _refuse_phase(rollout, "paused", "Only a running rollout can be.")
    return (
        rulings.RolloutPaused(rollout=rollout.plan.id, code="by_person", reason=command.reason),
    )


def _resume(fleet: Fleet, command: commands.ResumeRollout, by: str) -> tuple[Event, ...]:
    rollout = find_rollout(fleet, command.rollout)
    if rollout.phase == "running":
        return ()
    if rollout.phase != "paused":
        raise _refuse_phase(
            rollout, "resumed", "A halted or aborted rollout stays so; propose a new one."
        )
    return (rulings.RolloutResumed(rollout=rollout.plan.id, reason=command.reason),)


def _halt(fleet: Fleet, command: commands.HaltRollout, by: str) -> tuple[Event, ...]:
    rollout = find_rollout(fleet, command.rollout)
    if rollout.phase == "halted":
        return ()
    if rollout.ended:
        raise _refuse_phase(rollout, "halted", "It has ended already.")
    return (
        rulings.RolloutHalted(rollout=rollout.plan.id, code="by_person", reason=command.reason),
    )


def _abort(fleet: Fleet, command: commands.AbortRollout, by: str) -> tuple[Event, ...]:
    rollout = find_rollout(fleet, command.rollout)
    if rollout.phase == "aborted":
        return ()
    if rollout.ended:
        raise _refuse_phase(rollout, "aborted", "It has ended already.")
    return (rulings.RolloutAborted(rollout=rollout.plan.id, reason=command.reason),)


def _revoke(fleet: Fleet, command: revocation.RevokeGrants, by: str) -> tuple[Event, ...]:
    """Whose grants these are is worked out here; in no phase is it too late."""
    rollout = find_rollout(fleet, command.rollout)
    if command.wave is not None and command.wave not in range(len(rollout.waves)):
        opened = len(rollout.waves)
        raise RejectedError(
            code="unknown_wave",
            message=f"Rollout {rollout.plan.id} has opened {opened} waves, and no wave "
            f"{command.wave}.",
            next_step=f"They are counted from 0: smgate rollout get {rollout.plan.id}.",
        )
    names: Iterable[str] = fleet.units
    if command.unit is not None:
        names = [unit_commands.find_unit(fleet, command.unit).id]
    if command.wave is not None:
        members = rollout.waves[command.wave].members
        names = [name for name in names if name in members]
    units = tuple(name for name in sorted(names) if _holds(fleet, rollout, fleet.units[name]))
    if not units:
        return ()
    return (
        revocation.GrantRevoked(
            units=units, rollout=rollout.plan.id, wave=command.wave, reason=command.reason
        ),
    )


def _holds(fleet: Fleet, rollout: Rollout, unit: Unit) -> bool:
    """True if the unit has a grant of this rollout, or one that stands since it completed."""
    found = revoking.grants(rollout, unit)
    return any(not grant.standing for grant in found) or (
        bool(found) and rules_start.covers(rollout, context.of_unit(fleet, unit, fleet.now_us))
    )


Handler = Callable[[Fleet, Any, str], tuple[Event, ...]]

HANDLERS: Final[dict[type, Handler]] = {
    commands.ProposeRollout: _propose,
    commands.ApproveRollout: _approve,
    commands.StartRollout: _start,
    commands.PauseRollout: _pause,
    commands.ResumeRollout: _resume,
    commands.HaltRollout: _halt,
    commands.AbortRollout: _abort,
    revocation.RevokeGrants: _revoke,
}
