"""What the controller decided. Decisions are folded, never re-derived."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from smgate.domain.values import Difference, Form, GivenFor, Pair, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadershipTaken:
    """A leader took over. `away_us` is how long nobody led: clocks did not run."""

    epoch: int
    holder: str
    away_us: int
    rules_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RulesChanged:
    """The rules that decide are others than those of the leader before."""

    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRestored:
    """The log was restored from a backup: what was recorded after that is lost."""

    before: str
    """Incarnation of the log that the backup is of."""
    incarnation: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OpeningRecorded:
    """A part of what was folded up to a position, recorded before the log is cut there.

    It changes nothing: a fold of a log that was cut begins with it.
    """

    floor: int
    chain: str
    """The log's chain there, in hexadecimal digits."""
    state_version: int
    """Of what all parts together hold, which has upcasters of its own."""
    part: int
    parts: int
    sha256: str
    """Of all parts together, in hexadecimal digits."""
    data: str
    """Base64 of the part; all parts together are compressed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeWentSilent:
    """No contact for longer than the policy allows."""

    node: str
    last_contact_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReturned:
    """In contact again."""

    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetUnreachable:
    """Most of the nodes that were in contact are so no more: one outage, not as many silent nodes."""

    nodes: tuple[str, ...]
    known_nodes: int
    """Nodes that were in contact until then, these among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetReachable:
    """Nodes that an outage took are in contact again; so many of them are not yet."""

    nodes: tuple[str, ...]
    unreachable_nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfTestWanted:
    """These checks are asked of this GPU set."""

    kernel_key: str
    node: str
    gpu_uuids: tuple[str, ...]
    launch_id: str
    checks: tuple[str, ...]
    purpose: Literal["qualify", "confirm", "prove"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildQualified:
    """Enough distinct GPU sets passed and nothing is unresolved."""

    kernel_key: str
    gpu_sets: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildSuspected:
    """A first failure: no new grant for this key."""

    kernel_key: str
    gpu_uuids: tuple[str, ...]
    check: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildFailed:
    """A second failure in another chassis."""

    kernel_key: str
    chassis: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildCleared:
    """The failure was one node's: enough others passed since."""

    kernel_key: str
    node_fault_gpu_uuids: tuple[str, ...]
    passed_gpu_sets: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """The recorded permission of one unit to run the target on these kernel keys."""

    unit: str
    kernel_keys: tuple[str, ...]
    rollout: str | None
    wave: int | None
    code: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantEnded:
    """A keep rule ended the grant."""

    unit: str
    kernel_keys: tuple[str, ...]
    gpu_uuids: tuple[str, ...]
    code: str
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetFaulted:
    """A server crashed over and over or hung on the target, and had no grant that could end."""

    unit: str
    kernel_keys: tuple[str, ...]
    gpu_uuids: tuple[str, ...]
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WaveOpened:
    """The members of one wave, frozen."""

    rollout: str
    wave: int
    units: tuple[str, ...]
    eligible: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WaveJoined:
    """Units that a rollout could not take when its open wave opened, and takes into it now."""

    rollout: str
    wave: int
    units: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WaveJudged:
    """How a wave ended."""

    rollout: str
    wave: int
    verdict: Literal["passed", "failed", "inconclusive"]
    good: tuple[str, ...]
    bad: tuple[str, ...]
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutCompleted:
    """The last wave passed. The keys it ran are those that late units may have."""

    rollout: str
    kernel_keys: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OverrideSet:
    """The decision for a unit: the only thing a node is ever told."""

    unit: str
    form: Form
    value: str | None
    code: str
    sentence: str
    would: Verdict | None
    also: tuple[str, ...]
    facts: tuple[int, ...]
    launch_ids: tuple[str, ...]
    given_for: GivenFor
    nodes: tuple[str, ...]
    no_safe_value: bool
    as_of_position: int
    now_us: int
    rules_version: str
    lease_s: int | None = None
    """The target has not baked here: without the controller it holds this long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerTripped:
    """Too much went bad at once: nothing widens until a person resets it."""

    units: tuple[str, ...]
    window_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeOpened:
    """One alarm per (gate, SM, cause)."""

    episode: str
    gate: str
    sm: str
    cause: str
    units: tuple[str, ...]
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeUpdated:
    """The units of an open alarm changed."""

    episode: str
    units: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeClosed:
    """The cause was absent for the quiet time."""

    episode: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitTimedOut:
    """A waiting state lasted longer than its timer."""

    wait: str
    code: str
    subject: str
    owner: str
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted:
    """First seen already on the target with no grant, and not ruled on."""

    unit: str
    kernel_key: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitDisagreed:
    """Ranks of one launch resolved differently."""

    unit: str
    launch_ids: tuple[str, ...]
    gpu_uuids: tuple[str, ...]
    kernel_keys: tuple[str, ...]
    pairs: tuple[Pair, ...] = field(default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeHeld:
    """What the controller would do next needs a person: it waits for `change accept`."""

    code: str
    """Why it is held, such as `drain`, `change_limit`, `no_cause`."""
    subject: str
    """What it is about, such as a kernel key."""
    units: tuple[str, ...]
    sentence: str
    would: str
    """What accepting it costs, as a sentence."""
    numbers: dict[str, float]
    """The same in numbers, by name."""
    timeout_s: int
    """How long it may wait before that is said."""
    differences: tuple[Difference, ...] = ()
    """What it would tell units. Until a person accepts, they keep what they were told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainOrdered:
    """Restart this unit onto the safe value: told to all its nodes at once, never to a part."""

    unit: str
    code: str
    sentence: str
    launch_ids: tuple[str, ...]
    nodes: tuple[str, ...]
    timeout_s: int
    deadline_us: int
    """After this, by the node's own clock, no hook is run for it any more."""
    instances: dict[str, dict[str, int]] = field(default_factory=dict)
    """By node, its servers of that launch with their count of restarts: a server that was started
    again since is another, also where the agent cannot tell which launch it came from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainFinished:
    """An order has ended: the unit serves the safe value, or needs no restart any more."""

    unit: str
    order: int
    code: Literal["safe", "reason_lifted", "gone"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainFailed:
    """An order did not bring the unit onto the safe value. It is never given again by itself."""

    unit: str
    order: int
    code: str
    sentence: str


Decision = (
    LeadershipTaken
    | RulesChanged
    | LogRestored
    | OpeningRecorded
    | NodeWentSilent
    | NodeReturned
    | FleetUnreachable
    | FleetReachable
    | SelfTestWanted
    | BuildQualified
    | BuildSuspected
    | BuildFailed
    | BuildCleared
    | Granted
    | GrantEnded
    | WaveOpened
    | WaveJoined
    | WaveJudged
    | RolloutCompleted
    | OverrideSet
    | BreakerTripped
    | EpisodeOpened
    | EpisodeUpdated
    | EpisodeClosed
    | WaitTimedOut
    | Adopted
    | UnitDisagreed
    | TargetFaulted
    | ChangeHeld
    | DrainOrdered
    | DrainFinished
    | DrainFailed
)
