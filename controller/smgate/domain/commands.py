"""What people ask for. Imperative; stamped with who asks by the service.

Narrowing needs one person; widening needs a second one, who accepts it. A rollout has two of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from smgate.domain import fleet_asks, revocation
from smgate.domain.policy import Gate, KnownIssue, Policy, RolloutPlan
from smgate.domain.values import Direction, Mode


@dataclass(frozen=True, slots=True, kw_only=True)
class RetireNode:
    """Say that a machine is gone. Enrolling it again brings it back."""

    DIRECTION: ClassVar[Direction] = "narrows"
    node: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishGate:
    """Publish or replace a gate."""

    DIRECTION: ClassVar[Direction] = "widens"
    gate: Gate
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SetGateMode:
    """Observe or enforce one SM. Enforcing widens, observing narrows."""

    DIRECTION: ClassVar[Direction] = "widens"
    gate: str
    sm: str
    mode: Mode
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DisableGate:
    """The kill switch. No SMs given: all candidates."""

    DIRECTION: ClassVar[Direction] = "narrows"
    gate: str
    sms: tuple[str, ...] = ()
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EnableGate:
    """Lift the kill switch."""

    DIRECTION: ClassVar[Direction] = "widens"
    gate: str
    sms: tuple[str, ...] = ()
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GraduateGate:
    """Decide an SM as a baseline from now on: the gate has done its work there."""

    DIRECTION: ClassVar[Direction] = "widens"
    gate: str
    sm: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishPolicy:
    """Replace the policy."""

    DIRECTION: ClassVar[Direction] = "widens"
    policy: Policy
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishIssue:
    """Publish or replace a known issue."""

    DIRECTION: ClassVar[Direction] = "narrows"
    issue: KnownIssue
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WithdrawIssue:
    """A known issue no longer holds."""

    DIRECTION: ClassVar[Direction] = "widens"
    issue_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnounceBuild:
    """Say which packages an image has before any node runs it."""

    DIRECTION: ClassVar[Direction] = "narrows"
    name: str
    packages: dict[str, str]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleBuild:
    """Rule on a GPU set's failed or flaky result. Give the GPU set, or the node if it has one.

    `confirmed` narrows; `node_fault` and `cleared` widen.
    """

    DIRECTION: ClassVar[Direction] = "widens"
    kernel_key: str
    ruling: Literal["node_fault", "confirmed", "cleared"]
    node: str | None = None
    gpu_uuids: tuple[str, ...] = ()
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptBuild:
    """Accept that a kernel key is like a qualified one that differs in little."""

    DIRECTION: ClassVar[Direction] = "widens"
    kernel_key: str
    like: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExcludeUnit:
    """Hands off this unit."""

    DIRECTION: ClassVar[Direction] = "narrows"
    unit: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IncludeUnit:
    """Lift an exclusion or a release."""

    DIRECTION: ClassVar[Direction] = "widens"
    unit: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PinUnit:
    """`off`: the safe value; `on`: the target, with `break_glass` past a known issue and memory."""

    DIRECTION: ClassVar[Direction] = "widens"
    unit: str
    direction: Literal["on", "off"]
    break_glass: bool = False
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpinUnit:
    """Remove the pin."""

    DIRECTION: ClassVar[Direction] = "widens"
    unit: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptFlag:
    """The runner written in this unit's recipe is smgate's to replace."""

    DIRECTION: ClassVar[Direction] = "widens"
    unit: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptUnit:
    """Accept an adopted unit: it is granted the kernel key it runs."""

    DIRECTION: ClassVar[Direction] = "widens"
    unit: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeBackUnit:
    """Take an adopted unit back: the safe value at its next start."""

    DIRECTION: ClassVar[Direction] = "narrows"
    unit: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseUnit:
    """Give a unit back to SGLang: nothing is appended any more."""

    DIRECTION: ClassVar[Direction] = "widens"
    unit: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClearMemory:
    """Forget what went wrong in service on a unit's GPUs: they were repaired."""

    DIRECTION: ClassVar[Direction] = "widens"
    unit: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclareFreeze:
    """Start nothing until it is lifted, or until an instant: `2027-01-04T08:00:00+01:00`."""

    DIRECTION: ClassVar[Direction] = "narrows"
    id: str
    until: str | None = None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LiftFreeze:
    """End a freeze."""

    DIRECTION: ClassVar[Direction] = "widens"
    id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetBreaker:
    """Close the breaker after looking."""

    DIRECTION: ClassVar[Direction] = "widens"
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposeRollout:
    """Put a plan forward."""

    DIRECTION: ClassVar[Direction] = "narrows"
    plan: RolloutPlan
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfRollout:
    rollout: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ApproveRollout(_OfRollout):
    """Agree, as another person than the author."""

    DIRECTION: ClassVar[Direction] = "widens"


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRollout(_OfRollout):
    """Let the first wave open."""

    DIRECTION: ClassVar[Direction] = "widens"


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseRollout(_OfRollout):
    """Open nothing new for now."""

    DIRECTION: ClassVar[Direction] = "narrows"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeRollout(_OfRollout):
    """Go on after a pause."""

    DIRECTION: ClassVar[Direction] = "widens"


@dataclass(frozen=True, slots=True, kw_only=True)
class HaltRollout(_OfRollout):
    """End it because of a bad sign."""

    DIRECTION: ClassVar[Direction] = "narrows"


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortRollout(_OfRollout):
    """End it because it is no longer wanted."""

    DIRECTION: ClassVar[Direction] = "narrows"


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptChange:
    """Agree to a change that waits, as another person than who asked."""

    DIRECTION: ClassVar[Direction] = "widens"
    change: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WithdrawChange:
    """A change that waits is not wanted; a break-glass in force is undone."""

    DIRECTION: ClassVar[Direction] = "narrows"
    change: str
    reason: str


Command = (
    RetireNode
    | fleet_asks.ExpectFleet
    | fleet_asks.FinishRestore
    | PublishGate
    | SetGateMode
    | DisableGate
    | EnableGate
    | GraduateGate
    | PublishPolicy
    | PublishIssue
    | WithdrawIssue
    | AnnounceBuild
    | RuleBuild
    | AcceptBuild
    | ExcludeUnit
    | IncludeUnit
    | PinUnit
    | UnpinUnit
    | AdoptFlag
    | ClearMemory
    | AcceptUnit
    | TakeBackUnit
    | ReleaseUnit
    | DeclareFreeze
    | LiftFreeze
    | ResetBreaker
    | ProposeRollout
    | ApproveRollout
    | StartRollout
    | PauseRollout
    | ResumeRollout
    | HaltRollout
    | AbortRollout
    | revocation.RevokeGrants
    | AcceptChange
    | WithdrawChange
)

NAMES: Final[dict[str, type]] = {
    "node_retire": RetireNode,
    "fleet_expect": fleet_asks.ExpectFleet,
    "db_restore_finish": fleet_asks.FinishRestore,
    "gate_publish": PublishGate,
    "gate_mode": SetGateMode,
    "gate_disable": DisableGate,
    "gate_enable": EnableGate,
    "gate_graduate": GraduateGate,
    "policy_publish": PublishPolicy,
    "issue_publish": PublishIssue,
    "issue_withdraw": WithdrawIssue,
    "build_announce": AnnounceBuild,
    "build_rule": RuleBuild,
    "build_accept": AcceptBuild,
    "unit_exclude": ExcludeUnit,
    "unit_include": IncludeUnit,
    "unit_pin": PinUnit,
    "unit_unpin": UnpinUnit,
    "unit_adopt_flag": AdoptFlag,
    "unit_accept": AcceptUnit,
    "unit_take_back": TakeBackUnit,
    "unit_release": ReleaseUnit,
    "unit_clear_memory": ClearMemory,
    "freeze_declare": DeclareFreeze,
    "freeze_lift": LiftFreeze,
    "breaker_reset": ResetBreaker,
    "rollout_propose": ProposeRollout,
    "rollout_approve": ApproveRollout,
    "rollout_start": StartRollout,
    "rollout_pause": PauseRollout,
    "rollout_resume": ResumeRollout,
    "rollout_halt": HaltRollout,
    "rollout_abort": AbortRollout,
    "rollout_revoke": revocation.RevokeGrants,
    "change_accept": AcceptChange,
    "change_withdraw": WithdrawChange,
}
"""Public name of each command: the CLI's noun and verb, the API's `type`, the scenario's key."""
