"""What people decided: one event per kind of ruling, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from smgate.domain import redaction, revocation
from smgate.domain.policy import Gate, KnownIssue, Policy, RolloutPlan
from smgate.domain.values import Mode


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEnrolled:
    """A machine got its own credential."""

    node: str
    machine_id: str
    agent_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRetired:
    """The machine is gone: said by a person, or by the leader of an ephemeral one long silent."""

    node: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedNode:
    """A machine that should have an agent."""

    name: str
    sm: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetExpected:
    """Which machines should exist; replaces what was said before."""

    nodes: tuple[ExpectedNode, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreFinished:
    """A person said that enough nodes have told what they held: widening goes on."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GatePublished:
    """A gate was published or replaced."""

    gate: Gate
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GateModeSet:
    """Observe or enforce, per gate and SM."""

    gate: str
    sm: str
    mode: Mode
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GateDisabled:
    """The kill switch: grants on these SMs are suspended at the next start."""

    gate: str
    sms: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GateEnabled:
    """The kill switch was lifted; suspended grants count again."""

    gate: str
    sms: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GateGraduated:
    """The gate has ended for an SM: from here on it is decided as a baseline. Grants stay."""

    gate: str
    sm: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyPublished:
    """The policy was replaced."""

    policy: Policy
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuePublished:
    """A known issue was published or replaced."""

    issue: KnownIssue
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IssueWithdrawn:
    """A known issue no longer holds; what it suspended counts again."""

    issue_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildAnnounced:
    """An image's packages, before any node runs them."""

    name: str
    packages: dict[str, str]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRuled:
    """A person ruled on one GPU set's failed or flaky result for a kernel key.

    `node_fault`: the failure was this node's own. `confirmed`: it is the build's; the key has
    failed. `cleared`: the result is forgotten and must be measured anew.
    """

    kernel_key: str
    gpu_uuids: tuple[str, ...]
    ruling: Literal["node_fault", "confirmed", "cleared"]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildAccepted:
    """A person accepted that a kernel key is like a qualified one, though these fields differ."""

    kernel_key: str
    like: str
    differs: dict[str, tuple[str, str]]
    """Field to its value in `kernel_key` and in `like`."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitExcluded:
    """Hands off this unit."""

    unit: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitIncluded:
    """The exclusion or release was lifted."""

    unit: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PinSet:
    """A person decided for one unit. `off` is the safe value, `on` the target."""

    unit: str
    direction: Literal["on", "off"]
    break_glass: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PinRemoved:
    """The pin no longer holds."""

    unit: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagAdopted:
    """The runner written in this unit's recipe is smgate's to replace."""

    unit: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCleared:
    """What went wrong in service on these GPUs with these kernel keys is forgotten."""

    unit: str
    gpu_uuids: tuple[str, ...]
    kernel_keys: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptionDecided:
    """A person ruled on a unit that was first seen already on the target."""

    unit: str
    ruling: Literal["accepted", "taken_back"]
    kernel_key: str | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OverrideReleased:
    """The unit was given back: nothing is appended any more, not even what was before."""

    unit: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FreezeDeclared:
    """Nothing starts until it is lifted, or until an instant. It ends nothing."""

    id: str
    reason: str
    until: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FreezeLifted:
    """The freeze is over: said by a person, or by the leader at its end."""

    id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerReset:
    """A person looked and closed the breaker."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutProposed:
    """A plan and its author."""

    plan: RolloutPlan
    author: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutApproved:
    """Another person agreed."""

    rollout: str
    approver: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutStarted:
    """The first wave may open. One that supersedes another goes on with the keys carried over."""

    rollout: str
    reason: str
    carried_keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutPaused:
    """Nothing new opens. Failures are still taken in."""

    rollout: str
    code: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutResumed:
    """It goes on; the open wave's timer starts again."""

    rollout: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutHalted:
    """Ended by a bad sign or a person; grants that stand keep standing."""

    rollout: str
    code: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutAborted:
    """Ended by a person; grants that stand keep standing.

    The code `superseded` says that another rollout took them over.
    """

    rollout: str
    reason: str
    code: str = "by_person"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeAsked:
    """A person asked for a widening command. It takes effect when another person accepts it."""

    command: str
    body: dict[str, Any]
    """The command's fields but its reason."""
    by: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeAccepted:
    """Another person agreed; what follows from it is recorded with it. No `author`: the controller's."""

    change: str
    author: str | None
    accepted_by: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeWithdrawn:
    """It is not wanted any more. A break-glass in force is undone with it."""

    change: str
    reason: str
    code: str = "by_person"


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakGlassUsed:
    """One person widens alone, for a time. The next `events` events are what that came to."""

    command: str
    body: dict[str, Any]
    """The command's fields but its reason."""
    by: str
    reason: str
    expires_s: int
    events: int
    undo: str
    """What happens when the time runs out and nobody else has accepted it."""


Ruling = (
    NodeEnrolled
    | NodeRetired
    | FleetExpected
    | RestoreFinished
    | redaction.FactRedacted
    | GatePublished
    | GateModeSet
    | GateDisabled
    | GateEnabled
    | GateGraduated
    | PolicyPublished
    | IssuePublished
    | IssueWithdrawn
    | BuildAnnounced
    | CheckRuled
    | BuildAccepted
    | UnitExcluded
    | UnitIncluded
    | PinSet
    | PinRemoved
    | FlagAdopted
    | MemoryCleared
    | AdoptionDecided
    | OverrideReleased
    | FreezeDeclared
    | FreezeLifted
    | BreakerReset
    | RolloutProposed
    | RolloutApproved
    | RolloutStarted
    | RolloutPaused
    | RolloutResumed
    | RolloutHalted
    | RolloutAborted
    | revocation.GrantRevoked
    | ChangeAsked
    | ChangeAccepted
    | ChangeWithdrawn
    | BreakGlassUsed
)
