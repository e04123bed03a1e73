"""Commands to events: what a person asks, against what stands. Pure.

An empty answer means that it is so already. A refusal has a code, a sentence and a next step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from smgate.domain import (
    announced,
    break_glass,
    build_commands,
    change_commands,
    commands,
    graduation,
    policy,
    rollout_commands,
    rulings,
    unit_commands,
    values,
    windows,
)
from smgate.domain.errors import RejectedError, check_name
from smgate.domain.events import Event
from smgate.domain.state import Fleet
from smgate.domain.state_changes import Change

ONE: Final = ("operator", "approver", "admin")
"""Roles that may narrow, and ask for what another accepts."""
AGREES: Final = ("approver", "admin")
"""Roles that may widen: accept what another asked for, or break the glass."""
OWN_TWO_PEOPLE: Final = (commands.ApproveRollout, commands.StartRollout, commands.AcceptChange)
"""Commands that widen and are the second person's own, or come after."""

TEXT_MAX: Final = 2000


def decide(
    fleet: Fleet,
    command: commands.Command,
    *,
    by: str,
    roles: frozenset[str],
    now_us: int,
    break_glass_s: int | None = None,
) -> tuple[Event, ...]:
    """Decide one command of one person.

    What widens and needs a second person comes to a `ChangeAsked`: it is done when another accepts.

    Args:
        fleet: the folded log.
        command: what is asked.
        by: the person's name.
        roles: the person's roles.
        now_us: when it is asked; the last event may be long past.
        break_glass_s: do it alone, for this long; then it is undone.

    Raises:
        RejectedError: with the code, e.g. `forbidden`, `reason_needed`, `unknown_unit`,
            `same_person`, `not_running`, `no_break_glass`.
    """
    alone = break_glass_s is not None
    direction = _direction(fleet, command)
    waits = direction == "widens" and needs_another(fleet, command)
    # Whoever starts what two others, or themselves and another, agreed to, widens nothing by it.
    agreed = isinstance(command, commands.StartRollout) and (
        fleet.policy.second_person == "every_widening"
    )
    _check_role(direction, roles, one_will_do=(waits or agreed) and not alone)
    _check_reason(command)
    _check_until(command, max(fleet.now_us, now_us))
    if break_glass_s is not None:
        change_commands.check_break_glass(fleet, command, direction, expires_s=break_glass_s)
    events = effect(fleet, command, by=by, alone=alone)
    if not events:
        return ()
    settled = unit_commands.settled(fleet, command)
    if break_glass_s is not None:
        return change_commands.break_glass(fleet, settled, events, by=by, expires_s=break_glass_s)
    return change_commands.ask(fleet, settled, by=by) if waits else events


def effect(
    fleet: Fleet, command: commands.Command, *, by: str, alone: bool = False
) -> tuple[Event, ...]:
    """What a command comes to once whoever must agree has agreed. Raises as `decide`."""
    if alone and isinstance(command, commands.StartRollout):
        return rollout_commands.start(fleet, command, approved=False)
    return _HANDLERS[type(command)](fleet, command, by)


def answer(fleet: Fleet, change: Change) -> tuple[Event, ...]:
    """What an open change would come to. Raises as `decide`.

    One that was asked, when it is accepted; one that one person did alone, when its time is over.
    """
    if not change.open:
        return ()
    if change.kind == "break_glass":
        return break_glass.putting_back(fleet, change, "has run out.")
    if change.kind == "held":
        return ()
    return effect(fleet, change_commands.asked(change), by=change.by or "")


def needs_another(fleet: Fleet, command: commands.Command) -> bool:
    """True if a command that widens waits until another person accepts it."""
    if isinstance(command, commands.ResumeRollout):
        rollout = fleet.rollouts.get(command.rollout)
        if rollout is not None and len(rollout.approvers) < rollout.plan.approvals:
            return True  # one person began it alone
    every = fleet.policy.second_person == "every_widening"
    return every and not isinstance(command, OWN_TWO_PEOPLE)


def _check_role(direction: values.Direction, roles: frozenset[str], *, one_will_do: bool) -> None:
    needed = ONE if direction == "narrows" or one_will_do else AGREES
    if not roles & set(needed):
        raise RejectedError(
            code="forbidden",
            message=f"This command {direction}; it needs the role {needed[0]}.",
            next_step="Ask somebody who has it, or use another token.",
        )


def _check_reason(command: commands.Command) -> None:
    reason = command.reason.strip()
    if not reason:
        raise RejectedError(
            code="reason_needed", message="A reason is needed.", next_step="Give --reason."
        )
    if len(reason) > TEXT_MAX:
        raise RejectedError(
            code="too_long",
            message=f"The reason is {len(reason)} characters.",
            next_step=f"At most {TEXT_MAX}.",
        )


def _check_until(command: commands.Command, now_us: int) -> None:
    """Refuse a freeze that would be over before it began."""
    if not isinstance(command, commands.DeclareFreeze) or command.until is None:
        return
    wrong = windows.instant_problem(command.until)
    if wrong is None and windows.instant_us(command.until) <= now_us:
        wrong = "it has passed"
    if wrong is not None:
        raise RejectedError(
            code="bad_time",
            message=f"Until {command.until!r}: {wrong}.",
            next_step="Write an instant to come, such as 2027-01-04T08:00:00+01:00.",
        )


def _direction(fleet: Fleet, command: commands.Command) -> values.Direction:
    """Which way a command goes as things stand: publishing can loosen, unpinning can tighten."""
    if isinstance(command, commands.PublishIssue):
        before = break_glass.issue_before(fleet, command.issue.id)
        blocks = before is not None and before.severity == "block"
        return "widens" if blocks and before != command.issue else "narrows"
    if isinstance(command, commands.UnpinUnit):
        pin = unit_commands.find_unit(fleet, command.unit).pin
        return "narrows" if pin is not None and pin.direction == "on" else "widens"
    return direction_of(command)


def direction_of(command: commands.Command) -> values.Direction:
    """Which way a command goes by itself; for three of them it depends on what is asked."""
    observes = isinstance(command, commands.SetGateMode) and command.mode == "observe"
    pins_off = isinstance(command, commands.PinUnit) and command.direction == "off"
    confirms = isinstance(command, commands.RuleBuild) and command.ruling == "confirmed"
    return "narrows" if observes or pins_off or confirms else command.DIRECTION


def _gate(fleet: Fleet, name: str) -> policy.Gate:
    gate = fleet.gates.get(name)
    if gate is None:
        raise RejectedError(
            code="unknown_gate", message=f"No gate {name!r}.", next_step="See `smgate gate show`."
        )
    return gate


def _publish_gate(fleet: Fleet, command: commands.PublishGate, by: str) -> tuple[Event, ...]:
    policy.validate_gate(command.gate)
    for other in fleet.gates.values():
        if other.id != command.gate.id and other.architecture == command.gate.architecture:
            raise RejectedError(
                code="bad_policy",
                message=f"Gate {other.id} has architecture {other.architecture} already.",
                next_step="Two gates cannot decide for one model; replace the other.",
            )
    before = fleet.gates.get(command.gate.id)
    if before == command.gate:
        return ()
    if (
        before is not None
        and before.target != command.gate.target
        and any(unit.grants for unit in fleet.units.values())
    ):
        raise RejectedError(
            code="target_in_use",
            message=f"Units were granted {before.target} by gate {before.id}; a grant for one "
            "target is none for another.",
            next_step="Pin those units off first; each grant ends with that.",
        )
    return (rulings.GatePublished(gate=command.gate, reason=command.reason),)


def _set_mode(fleet: Fleet, command: commands.SetGateMode, by: str) -> tuple[Event, ...]:
    _gate(fleet, command.gate)
    if not policy.is_sm(command.sm):
        raise RejectedError(
            code="bad_sm", message=f"{command.sm!r} is not major.minor.", next_step="Write 10.7."
        )
    current: values.Mode = fleet.mode_of(command.gate, command.sm)
    if current == command.mode:
        return ()
    return (
        rulings.GateModeSet(
            gate=command.gate, sm=command.sm, mode=command.mode, reason=command.reason
        ),
    )


def _sms(fleet: Fleet, gate: str, sms: tuple[str, ...]) -> tuple[str, ...]:
    found = _gate(fleet, gate)
    for sm in sms:
        if sm not in found.candidate_sms + found.baseline_sms:
            raise RejectedError(
                code="bad_sm",
                message=f"SM {sm} is not in gate {gate}.",
                next_step=f"One of {', '.join(found.candidate_sms + found.baseline_sms)}.",
            )
    graduated = tuple(sm for name, sm in fleet.graduated if name == gate)
    meant = sms or found.candidate_sms + graduated
    if not meant:
        raise RejectedError(
            code="bad_sm",
            message=f"Gate {gate} has no candidate SM.",
            next_step=f"Name the SMs: one of {', '.join(found.baseline_sms)}.",
        )
    return tuple(sorted(set(meant)))


def _disable(fleet: Fleet, command: commands.DisableGate, by: str) -> tuple[Event, ...]:
    sms = _sms(fleet, command.gate, command.sms)
    new = tuple(sm for sm in sms if (command.gate, sm) not in fleet.disabled)
    if not new:
        return ()
    return (rulings.GateDisabled(gate=command.gate, sms=new, reason=command.reason),)


def _enable(fleet: Fleet, command: commands.EnableGate, by: str) -> tuple[Event, ...]:
    sms = _sms(fleet, command.gate, command.sms)
    off = tuple(sm for sm in sms if (command.gate, sm) in fleet.disabled)
    if not off:
        return ()
    return (rulings.GateEnabled(gate=command.gate, sms=off, reason=command.reason),)


def _publish_policy(fleet: Fleet, command: commands.PublishPolicy, by: str) -> tuple[Event, ...]:
    policy.validate_policy(command.policy)
    if command.policy == fleet.policy:
        return ()
    return (rulings.PolicyPublished(policy=command.policy, reason=command.reason),)


def _publish_issue(fleet: Fleet, command: commands.PublishIssue, by: str) -> tuple[Event, ...]:
    policy.validate_issue(command.issue)
    if fleet.issues.get(command.issue.id) == command.issue:
        return ()
    return (rulings.IssuePublished(issue=command.issue, reason=command.reason),)


def _withdraw_issue(fleet: Fleet, command: commands.WithdrawIssue, by: str) -> tuple[Event, ...]:
    if command.issue_id not in fleet.issues:
        raise RejectedError(
            code="unknown_issue",
            message=f"No known issue {command.issue_id!r}.",
            next_step="See `smgate issue ls`.",
        )
    return (rulings.IssueWithdrawn(issue_id=command.issue_id, reason=command.reason),)


PACKAGES: Final = (
    "sglang_version",
    "sglang_commit",
    "flashinfer_version",
    "flashinfer_commit",
    "jit_cache_version",
    "cubin_version",
    "cute_dsl_version",
    "cuda_toolkit",
    "torch_version",
    "torch_cuda",
    "image_digest",
)
"""Packages an image may announce: the fields of a build that do not depend on the node; beside
them `artifact_pins.NAME`, one for each pin digest of its FlashInfer."""


def _announce(fleet: Fleet, command: commands.AnnounceBuild, by: str) -> tuple[Event, ...]:
    unknown = sorted(
        name
        for name in command.packages
        if name not in PACKAGES and not name.startswith(announced.PIN_PREFIX)
    )
    if unknown:
        raise RejectedError(
            code="unknown_package",
            message=f"Unknown package {unknown[0]!r}.",
            next_step=f"One of {', '.join(PACKAGES)}, {announced.PIN_PREFIX}NAME.",
        )
    for needed in ("sglang_version", "flashinfer_version", "torch_cuda"):
        if needed not in command.packages:
            raise RejectedError(
                code="unknown_package",
                message=f"An announced build needs {needed}.",
                next_step="Without it no kernel key can be worked out.",
            )
    check_name("build", command.name)
    before = fleet.announced.get(command.name)
    if before is not None and before.packages == command.packages:
        return ()
    return (
        rulings.BuildAnnounced(name=command.name, packages=command.packages, reason=command.reason),
    )


def _declare_freeze(fleet: Fleet, command: commands.DeclareFreeze, by: str) -> tuple[Event, ...]:
    until = command.until
    ends_us = None if until is None else windows.instant_us(until)
    if command.id not in fleet.freezes:
        check_name("freeze", command.id)
        return (rulings.FreezeDeclared(id=command.id, reason=command.reason, until=until),)
    if ends_us == fleet.freeze_ends.get(command.id):
        return ()
    raise RejectedError(
        code="freeze_exists",
        message=f"Freeze {command.id} is in force with another end.",
        next_step="Declare one of another name beside it, or lift it first.",
    )


def _lift_freeze(fleet: Fleet, command: commands.LiftFreeze, by: str) -> tuple[Event, ...]:
    if command.id not in fleet.freezes:
        raise RejectedError(
            code="unknown_freeze",
            message=f"No freeze {command.id!r} is in force.",
            next_step="See `smgate freeze ls`.",
        )
    return (rulings.FreezeLifted(id=command.id, reason=command.reason),)


def _reset_breaker(fleet: Fleet, command: commands.ResetBreaker, by: str) -> tuple[Event, ...]:
    if fleet.breaker_position is None:
        return ()
    return (rulings.BreakerReset(reason=command.reason),)


def _accept_change(fleet: Fleet, command: commands.AcceptChange, by: str) -> tuple[Event, ...]:
    def anew(asked: commands.Command, author: str) -> tuple[Event, ...]:
        return effect(fleet, asked, by=author)

    return change_commands.accept(fleet, command, by, anew=anew)


Handler = Callable[[Fleet, Any, str], tuple[Event, ...]]

_HANDLERS: Final[dict[type, Handler]] = {
    commands.PublishGate: _publish_gate,
    commands.SetGateMode: _set_mode,
    commands.DisableGate: _disable,
    commands.EnableGate: _enable,
    commands.GraduateGate: lambda fleet, command, _: graduation.graduate(fleet, command),
    commands.PublishPolicy: _publish_policy,
    commands.PublishIssue: _publish_issue,
    commands.WithdrawIssue: _withdraw_issue,
    commands.AnnounceBuild: _announce,
    commands.DeclareFreeze: _declare_freeze,
    commands.LiftFreeze: _lift_freeze,
    commands.ResetBreaker: _reset_breaker,
    commands.AcceptChange: _accept_change,
    commands.WithdrawChange: change_commands.withdraw,
    **build_commands.HANDLERS,
    **unit_commands.HANDLERS,
    **rollout_commands.HANDLERS,
}
"""One handler per command; a test holds the keys equal to the union `commands.Command`."""
