"""Facts that nodes report. Field for field the payloads of `smgate.wire.facts` (a test compares)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from smgate.domain.values import Build, Form, Gpu, Layout, Model, Outcome, Pair, Platform


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReported:
    """Identity and hardware of a node."""

    agent_version: str
    gpus: tuple[Gpu, ...] = ()
    driver_version: str | None = None
    rack: str | None = None
    chassis: str | None = None
    pool: bool = False
    ephemeral: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlanned:
    """The launch gate's reading of one launch of one rank."""

    launch_id: str
    platform: Platform
    argv_read: bool
    gpus: tuple[Gpu, ...] = ()
    unit_name: str | None = None
    workload: str | None = None
    rendezvous: str | None = None
    nnodes: int = 1
    node_rank: int = 0
    asked_runner: str | None = None
    asked_runner_in: Literal["argv", "config"] | None = None
    asked_a2a: str | None = None
    config_file: Literal["none", "read", "ignored", "unreadable"] = "none"
    draft_asserts_auto: bool = False
    sink: Literal["argv", "file"] = "argv"
    model_digest: str | None = None
    model: Model | None = None
    build: Build = field(default_factory=Build)
    layout: Layout = field(default_factory=Layout)
    dry_resolved: Pair | None = None
    restarter: Literal["external", "hook"] = "external"
    held_generation: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckFinished:
    """One self-test on one GPU set."""

    check: str
    outcome: Outcome
    reason: str
    sm: str | None
    gpu_uuids: tuple[str, ...]
    chassis: str | None = None
    build: Build
    layout: Layout = field(default_factory=Layout)
    a2a: str = "none"
    probe_version: str
    negative_control: Literal["caught", "missed", "not_run"] = "not_run"
    launch_id: str | None = None
    numbers: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceChanged:
    """A server changed state."""

    instance_id: str
    state: Literal["starting", "serving", "unhealthy", "exited"]
    gpu_uuids: tuple[str, ...] = ()
    launch_id: str | None = None
    unit_name: str | None = None
    workload: str | None = None
    rendezvous: str | None = None
    nnodes: int = 1
    node_rank: int = 0
    exit_code: int | None = None
    restarts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectiveSeen:
    """The pair a running rank resolved."""

    instance_id: str
    runner: str
    a2a: str
    source: Literal["server_info", "log"]
    architecture: str | None = None
    mxfp4: bool | None = None
    sglang_version: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsSeen:
    """Measured weight bytes of one rank."""

    instance_id: str
    weight_bytes: int
    expected_packed_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFallbackSeen:
    """MXFP4 experts are about to be, are, or were until the crash BF16."""

    instance_id: str
    phase: Literal["imminent", "active", "crashed"]
    excess_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFallbackCleared:
    """The instance runs packed again, or is gone."""

    instance_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFaultSeen:
    """An Xid on one GPU."""

    gpu_uuid: str
    xid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BakeInterval:
    """What one instance served in one interval."""

    instance_id: str
    interval_s: int
    requests: int
    failures: int
    restarts: int = 0
    xids: int = 0
    tokens_per_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OverrideApplied:
    """What the launch gate did with one launch."""

    launch_id: str
    form: Literal["appended", "untouched"]
    value: str | None = None
    source: Literal["directive", "local_rule"]
    code: str
    generation: int | None = None
    added_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GapNoticed:
    """The agent lost part of an outbox; `closed` follows a full report."""

    lost_outbox_id: str
    closed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainHookEnded:
    """How the drain hook of one order ended on one node."""

    order: int
    unit: str
    outcome: Literal["succeeded", "failed", "timeout", "interrupted", "no_hook"]
    exit_code: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenFinished:
    """A set of prompts with known answers was asked of a server that runs."""

    instance_id: str
    set_digest: str
    prompts: int
    mismatches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldUnit:
    """What a node was told of one unit."""

    unit: str
    form: Form
    value: str | None
    code: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectiveHeld:
    """After a restore: what the node was told by the log that it followed until then."""

    restored_as: str
    """Incarnation of the restored log that this answers."""
    incarnation: str
    """Incarnation of the log that told it."""
    generation: int
    units: tuple[HeldUnit, ...] = ()


Fact = (
    NodeReported
    | LaunchPlanned
    | CheckFinished
    | InstanceChanged
    | EffectiveSeen
    | WeightsSeen
    | MemoryFallbackSeen
    | MemoryFallbackCleared
    | GpuFaultSeen
    | BakeInterval
    | OverrideApplied
    | GapNoticed
    | DrainHookEnded
    | GoldenFinished
    | DirectiveHeld
)
