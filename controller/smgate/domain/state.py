"""What the log says, folded: the fleet as the controller knows it.

The state belongs to one fold. `evolve` changes it in place and returns it; nothing else writes to
it. `*_led_us` instants are on the led clock, which stands still while nobody leads.
"""

from __future__ import annotations

import bisect
import operator
from collections import Counter
from collections.abc import Collection, Hashable
from dataclasses import dataclass, field
from typing import Final, Literal

from smgate.domain.decisions import OverrideSet
from smgate.domain.facts import LaunchPlanned, OverrideApplied
from smgate.domain.matching import Blocking
from smgate.domain.memory.fit import Fit
from smgate.domain.policy import Gate, KnownIssue, Policy
from smgate.domain.rulings import BuildAnnounced, PinSet
from smgate.domain.state_alarms import Alarm, Episode
from smgate.domain.state_changes import Change
from smgate.domain.state_counts import Census
from smgate.domain.state_drains import Drain, TakenBack
from smgate.domain.state_evidence import GpuSet, KeyEvidence, UnprovenProbe, WantedCheck
from smgate.domain.state_guard import Guard
from smgate.domain.state_inventory import Inventory
from smgate.domain.state_nodes import Instance, Node
from smgate.domain.state_restore import Restore
from smgate.domain.state_rollouts import Rollout
from smgate.domain.values import GivenFor, Mode, Model

TAKEN_BACK_HERE: Final = "rolled_back_here"
"""What a person took back. Nothing went wrong, so whatever does later is remembered in its place."""
IN_SERVICE: Final = ("fault_in_service", TAKEN_BACK_HERE, "unit_disagreed_here")
"""Codes of what servers did on GPUs, or people; what a check found there has another."""


@dataclass(slots=True, kw_only=True)
class Rank:
    """One rank of a unit launch, as its launch gate read it."""

    node: str
    planned: LaunchPlanned
    position: int
    applied: OverrideApplied | None = None
    keys: dict[str | None, str | None] = field(default_factory=dict, compare=False, repr=False)
    """Kernel key by SM, worked out once: hashing it is most of what a decision costs."""
    fits: dict[str, Fit | None] = field(default_factory=dict, compare=False, repr=False)
    """Whether its experts fit by runner, worked out once where its launch gate read all it takes."""
    kind: object | None = field(default=None, compare=False, repr=False)
    """Of `Fleet.kinds`, as long as `Fleet.sms_read` is `sms_read`."""
    gpu_uuids: GpuSet = ()
    """The visible GPUs in their one order. Who passes it knows it of an earlier launch on them."""
    sms: tuple[str | None, ...] = field(default=(), compare=False, repr=False)
    """What `readings.rank_sms` found, as long as `Fleet.sms_read` is `sms_read`."""
    sms_read: int = field(default=-1, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.gpu_uuids:
            self.gpu_uuids = tuple(sorted([gpu.uuid for gpu in self.planned.gpus]))


@dataclass(slots=True, kw_only=True)
class UnitLaunch:
    """All ranks of one start of one server."""

    nnodes: int
    opened_led_us: int
    opened_position: int
    ranks: dict[int, Rank] = field(default_factory=dict)
    decided: OverrideSet | None = None
    decided_position: int = 0

    launch_ids: tuple[str, ...] = ()
    """Launch ids of the ranks known so far, in rank order."""

    def take(self, number: int, rank: Rank) -> None:
        """A rank of this launch has reported."""
        self.ranks[number] = rank
        self.launch_ids = tuple([self.ranks[one].planned.launch_id for one in sorted(self.ranks)])

    @property
    def complete(self) -> bool:
        """True when every rank has reported."""
        return len(self.ranks) >= self.nnodes


@dataclass(slots=True, kw_only=True)
class Grant:
    """Permission of one unit to run the target on these kernel keys."""

    kernel_keys: tuple[str, ...]
    rollout: str | None
    wave: int | None
    position: int
    since_led_us: int
    standing: bool = False  # a completed rollout gave it: its unit came later, in no wave
    launched: bool = False
    baked_s: dict[str, int] = field(default_factory=dict)
    """Serving seconds with traffic, per instance; the longest counts."""
    golden: dict[str, int] = field(default_factory=dict)
    """Wrong answers to golden prompts on the target, per set of prompts: the most there ever were."""

    @property
    def bake_s(self) -> int:
        """Seconds of reported traffic on the target."""
        return max(self.baked_s.values(), default=0)

    @property
    def golden_mismatches(self) -> int | None:
        """The most wrong answers to any set of golden prompts; None if none was asked."""
        return max(self.golden.values(), default=None)


@dataclass(slots=True, kw_only=True)
class Unit:
    """All ranks of one server, wherever they run."""

    id: str
    position: int
    launch: UnitLaunch | None = None
    known_ranks: dict[int, Rank] = field(default_factory=dict)
    """Last reading of each rank: what is known of one that has not reported this launch yet."""
    instances: dict[str, Instance] = field(default_factory=dict)
    excluded: bool = False
    released: bool = False
    hands_off_position: int = 0
    """Of the exclusion or release that is in force."""
    superseded: bool = False
    pin: PinSet | None = None
    pin_position: int = 0
    flag_adopted: bool = False
    adoption: Literal["adopted", "accepted", "taken_back"] | None = None
    adopted_led_us: int = 0
    adopted_position: int = 0
    grant: Grant | None = None
    former_grants: list[Grant] = field(default_factory=list)
    """Grants for other kernel keys, from before `grant`: they stand too, for who goes back."""
    ever_granted: bool = False
    override: OverrideSet | None = None
    override_position: int = 0
    appended_value: str | None = None
    appended_for: GivenFor | None = None
    disagreed_launch_ids: tuple[str, ...] = ()
    taken_back: TakenBack | None = None
    """Set while the decision is the safe value and the unit ran the target under it."""

    @property
    def live(self) -> bool:
        """Live units are the denominators: a superseded one is gone."""
        return not self.superseded

    @property
    def taken_out(self) -> bool:
        """A person excluded, released or pinned it off: it neither passes a wave nor blocks it."""
        pinned_off = self.pin is not None and self.pin.direction == "off"
        return self.excluded or self.released or pinned_off

    @property
    def grants(self) -> list[Grant]:
        """Every grant that stands, the newest first."""
        return ([] if self.grant is None else [self.grant]) + self.former_grants[::-1]

    def grant_for(self, kernel_keys: Collection[str]) -> Grant | None:
        """The newest grant that covers all these kernel keys; none covers no key at all."""
        if not kernel_keys:
            return None
        if self.grant is None:
            return None
        wanted = set(kernel_keys)
        return next((g for g in self.grants if wanted.issubset(g.kernel_keys)), None)

    def take_grant(self, grant: Grant) -> None:
        """A new grant; one for the same keys is replaced, one for other keys stands beside it."""
        self.drop_grant(grant.kernel_keys)
        if self.grant is not None:
            self.former_grants.append(self.grant)
        self.grant = grant
        self.ever_granted = True

    def drop_grant(self, kernel_keys: tuple[str, ...]) -> Grant | None:
        """Remove the grant for exactly these keys."""
        found = next((g for g in self.grants if g.kernel_keys == kernel_keys), None)
        kept = [g for g in self.grants[::-1] if g is not found]
        self.grant = kept.pop() if kept else None
        self.former_grants = kept
        return found

    def drop_grants(self) -> None:
        """Remove every grant."""
        self.grant = None
        self.former_grants = []

    def live_instances(self) -> list[Instance]:
        """Instances that have not exited, in the order of their names."""
        if len(self.instances) > 1:
            return [one for _, one in sorted(self.instances.items()) if one.live]
        return [one for one in self.instances.values() if one.live]

    @property
    def ranks(self) -> dict[int, Rank]:
        """The ranks of the launch; for one that has not reported it yet, its last reading."""
        known = self.known_ranks
        if self.launch is None or self.launch.ranks.keys() <= known.keys():
            return known  # a rank's last reading is the launch's, if it has one
        return {**known, **self.launch.ranks}


@dataclass(slots=True, kw_only=True)
class Fleet:
    """The whole state of one fold."""

    position: int = 0
    now_us: int = 0
    """Recorded time of the newest event."""
    away_us: int = 0
    aways: list[tuple[int, int]] = field(default_factory=list)
    """(led instant, `away_us` until then) of every time that nobody led, in order."""
    epoch: int = 0
    policy: Policy = field(default_factory=Policy)
    gates: dict[str, Gate] = field(default_factory=dict)
    gate_by_architecture: dict[str | None, Gate] = field(default_factory=dict)
    candidate_sms: frozenset[str] = frozenset()
    targets: frozenset[str] = frozenset()
    """Of all gates; `take_gate` keeps these."""
    modes: dict[tuple[str, str], Mode] = field(default_factory=dict)
    disabled: dict[tuple[str, str], int] = field(default_factory=dict)
    graduated: dict[tuple[str, str], int] = field(default_factory=dict)
    """(gate, SM) that a person graduated, and where: it is among the gate's baselines."""
    issues: dict[str, KnownIssue] = field(default_factory=dict)
    issue_positions: dict[str, int] = field(default_factory=dict)
    blocking: Blocking = field(default_factory=Blocking)
    """Those of `issues` that block, made ready for matching."""
    announced: dict[str, BuildAnnounced] = field(default_factory=dict)
    freezes: dict[str, int] = field(default_factory=dict)
    freeze_reasons: dict[str, str] = field(default_factory=dict)
    freeze_led_us: dict[str, int] = field(default_factory=dict)
    freeze_ends: dict[str, int] = field(default_factory=dict)
    """Wall-clock instants at which freezes end by themselves."""
    breaker_position: int | None = None
    breaker_led_us: int = 0
    breaker_units: tuple[str, ...] = ()
    bad_signs: list[tuple[int, str]] = field(default_factory=list)
    """(led time, unit) of recent bad signs; cleared when the breaker is reset."""
    nodes: dict[str, Node] = field(default_factory=dict)
    restore: Restore = field(default_factory=Restore)
    guard: Guard = field(default_factory=Guard)
    inventory: Inventory = field(default_factory=Inventory)
    units: dict[str, Unit] = field(default_factory=dict)
    node_units: dict[str, frozenset[str]] = field(default_factory=dict)
    """Units that have or had a rank or a server on a node."""
    sms_read: int = field(default=0, compare=False)
    """Raised whenever the SM of a GPU that a unit holds is read anew and differs."""
    kinds: dict[Hashable, object] = field(default_factory=dict, compare=False, repr=False)
    """One object for each kind of launch, which stands for all its fields (`alike`)."""
    sms_noted: int = field(default=0, compare=False)
    """Raised whenever the SM of any GPU is read anew and differs."""
    moves: int = field(default=0, compare=False)
    """Raised whenever a node, a launch or a GPU gets to be another unit's."""
    touched: dict[str, int] = field(default_factory=dict)
    """Position of the last event that concerned a unit; the most recent stand last."""
    touched_nodes: dict[str, int] = field(default_factory=dict)
    """Position of the last event about a node itself; the most recent stand last."""
    world_position: int = 0
    """Position of the last event that may concern every unit."""
    checks_position: int = 0
    """Position of the last event that may change which checks are asked, and of whom."""
    instances: dict[tuple[str, str], Instance] = field(default_factory=dict)
    launch_units: dict[str, str] = field(default_factory=dict)
    models: dict[str, Model] = field(default_factory=dict)
    """Last reading per model path and revision."""
    gpu_sms: dict[str, str] = field(default_factory=dict)
    """Last known SM per GPU UUID: a driver hiccup does not erase it."""
    gpu_units: dict[str, frozenset[str]] = field(default_factory=dict)
    """Units that hold or held a GPU."""
    contested: set[str] = field(default_factory=set)
    """GPUs of which that is more than one."""
    gpu_memory: dict[tuple[str, str], tuple[str, int]] = field(default_factory=dict)
    failed_exits: dict[tuple[str, str], list[int]] = field(
        default_factory=dict
    )  # unit, key: led us
    """(GPU UUID, kernel key) -> (code, position): what went wrong on these GPUs is remembered."""
    keys: dict[str, KeyEvidence] = field(default_factory=dict)
    baseline_passes: set[tuple[str, str, str]] = field(default_factory=set)
    """(baseline SM, probe version, check) that passed there with its control caught."""
    unproven_probes: dict[str, UnprovenProbe] = field(default_factory=dict)
    """Probe versions with results that wait for a baseline's."""
    wanted: dict[tuple[str, str], WantedCheck] = field(default_factory=dict)
    launch_wants: dict[str, list[WantedCheck]] = field(default_factory=dict)
    rollouts: dict[str, Rollout] = field(default_factory=dict)
    changes: dict[str, Change] = field(default_factory=dict)
    """Changes that wait for a person, and those that did, by id."""
    open_changes: set[str] = field(default_factory=set)
    """Ids of those that wait."""
    drains: dict[str, Drain] = field(default_factory=dict)
    """The order of each unit that is being restarted onto the safe value, or was and failed."""
    episodes: dict[str, Episode] = field(default_factory=dict)
    open_episodes: dict[Alarm, str] = field(default_factory=dict)
    """The ids of those that are not closed."""
    timed_out: set[str] = field(default_factory=set)
    fallbacks_total: Counter[tuple[str, str]] = field(default_factory=Counter)
    events_total: Counter[str] = field(default_factory=Counter)
    censuses: dict[tuple[str, ...], Census] = field(default_factory=dict, compare=False, repr=False)
    """Counts over the fleet, kept right by `census`."""

    def take_gate(self, gate: Gate) -> None:
        """A gate is published, or published anew."""
        self.gates[gate.id] = gate
        gates = sorted(self.gates.values(), key=lambda one: one.id, reverse=True)
        self.gate_by_architecture = {one.architecture: one for one in gates}
        self.candidate_sms = frozenset(sm for one in gates for sm in one.candidate_sms)
        self.targets = frozenset(one.target for one in gates)

    def remember(self, uuid: str, kernel_key: str, code: str, position: int) -> None:
        """Keep that something went wrong on a GPU with a kernel key: the first that did stays."""
        before = self.gpu_memory.get((uuid, kernel_key))
        if before is None or before[0] == TAKEN_BACK_HERE:
            self.gpu_memory[uuid, kernel_key] = (code, position)

    def waiting_changes(self) -> list[Change]:
        """The changes that wait for a person, the oldest first."""
        found = (self.changes[name] for name in self.open_changes)
        return sorted(found, key=lambda change: change.position)

    def led_us(self, at_us: int) -> int:
        """An instant on the led clock."""
        return at_us - self.away_us

    def wall_us(self, led_us: int) -> int:
        """When the led clock showed this; the end of the time in which it stood there, if it did."""
        after = bisect.bisect_right(self.aways, led_us, key=operator.itemgetter(0))
        return led_us + (self.aways[after][1] if after < len(self.aways) else self.away_us)

    def model_of(self, planned: LaunchPlanned) -> Model | None:
        """What is known of the model a launch names: its own reading, else the last one."""
        if planned.model is not None:
            return planned.model
        return self.models.get(planned.model_digest or "")

    def sm_of(self, uuid: str) -> str | None:
        """Last known SM of a GPU."""
        return self.gpu_sms.get(uuid)

    def gate_of(self, architecture: str | None) -> Gate | None:
        """The gate of a model architecture."""
        return self.gate_by_architecture.get(architecture)

    def mode_of(self, gate: str, sm: str) -> Mode:
        """Observe unless a person said enforce."""
        return self.modes.get((gate, sm), "observe")
