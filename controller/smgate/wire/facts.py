"""What nodes report, and the batch that carries it.

A node's facts form a stream named by its outbox id; the sequence number is the version in that
stream. Equal sequence and equal content is a repeat; equal sequence and other content a conflict.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from smgate.wire.base import (
    BATCH_FACTS_MAX,
    WIRE_VERSION,
    Code,
    Count,
    Digest,
    GpuUuid,
    Message,
    Micros,
    Name,
    Positive,
    Runner,
    Sm,
    Text,
    Version,
)

Restarter = Literal["external", "hook"]
Platform = Literal["cuda", "rocm", "npu", "xpu", "none"]
Outcome = Literal["passed", "failed", "error", "timeout", "skipped"]


class Gpu(Message, frozen=True, kw_only=True):
    """One GPU as the driver names it. `sm` is None while the driver does not answer."""

    uuid: GpuUuid
    sm: Sm | None = None
    name: Text = ""
    memory_bytes: Count = 0


class Build(Message, frozen=True, kw_only=True):
    """Exact versions beside a kernel. The kernel key is made of some of them, by the controller."""

    sglang_version: Version | None = None
    sglang_commit: Digest | None = None
    flashinfer_version: Version | None = None
    flashinfer_commit: Digest | None = None
    artifact_pins: dict[Name, Digest] = msgspec.field(default_factory=dict)
    jit_cache_version: Version | None = None
    cubin_version: Version | None = None
    cute_dsl_version: Version | None = None
    cuda_toolkit: Version | None = None
    torch_version: Version | None = None
    torch_cuda: Version | None = None
    driver_version: Version | None = None
    image_digest: Digest | None = None
    autotune_cache_digest: Digest | None = None
    disqualifying_env: Annotated[tuple[Name, ...], msgspec.Meta(max_length=32)] = ()


class Layout(Message, frozen=True, kw_only=True):
    """How the experts are laid over the ranks; the per-rank shape is part of the kernel key."""

    tp: Positive = 1
    ep: Positive = 1
    pp: Positive = 1
    dp: Positive = 1
    experts: Count = 0
    hidden_size: Count = 0
    intermediate_size: Count = 0
    top_k: Count = 0
    expert_layers: Count | msgspec.UnsetType = msgspec.UNSET
    """Layers of the whole model that have routed experts; no part of the kernel key."""


class Model(Message, frozen=True, kw_only=True):
    """What `config.json` says. The path is sent only as a digest: paths can carry tokens."""

    digest: Digest
    architecture: Name
    quant_method: Name | None = None
    format_top_level: Name | None = None
    format_group: Name | None = None


class Pair(Message, frozen=True, kw_only=True):
    """A (runner, a2a) pair: never judge one without the other."""

    runner: Runner
    a2a: Runner


class NodeReported(Message, frozen=True, kw_only=True, tag="node_reported"):
    """Identity and hardware of a node; sent at start and when it changes."""

    agent_version: Version
    gpus: Annotated[tuple[Gpu, ...], msgspec.Meta(max_length=64)] = ()
    driver_version: Version | None = None
    rack: Name | None = None
    chassis: Name | None = None
    pool: bool = False
    ephemeral: bool = False


class LaunchPlanned(Message, frozen=True, kw_only=True, tag="launch_planned"):
    """The launch gate's reading of one launch of one rank, before SGLang starts.

    `asked_runner` and `asked_a2a` are what a person wrote (argv first, else the config file),
    None if nobody wrote one. `argv_read` is False when the operator's own argv or config could
    not be read before any merge: then nobody knows what they chose.
    """

    launch_id: Name
    platform: Platform
    argv_read: bool
    gpus: Annotated[tuple[Gpu, ...], msgspec.Meta(max_length=64)] = ()
    unit_name: Name | None = None
    workload: Name | None = None
    rendezvous: Name | None = None
    nnodes: Positive = 1
    node_rank: Count = 0
    asked_runner: Runner | None = None
    asked_runner_in: Literal["argv", "config"] | None = None
    asked_a2a: Runner | None = None
    config_file: Literal["none", "read", "ignored", "unreadable"] = "none"
    draft_asserts_auto: bool = False
    sink: Literal["argv", "file"] = "argv"
    model_digest: Digest | None = None
    """Digest of model path and revision, known even when its `config.json` could not be read."""
    model: Model | None = None
    build: Build = Build()
    layout: Layout = Layout()
    dry_resolved: Pair | None = None
    restarter: Restarter = "external"
    held_generation: Count | None = None


class CheckFinished(Message, frozen=True, kw_only=True, tag="check_finished"):
    """One self-test on one GPU set, in SGLang's own runtime.

    `negative_control` says whether the same output was told apart from a deliberately wrong
    reference in the same run; a numeric check counts only if it was `caught`.
    """

    check: Name
    outcome: Outcome
    reason: Code
    sm: Sm | None
    gpu_uuids: Annotated[tuple[GpuUuid, ...], msgspec.Meta(max_length=64)]
    chassis: Name | None = None
    build: Build
    layout: Layout = Layout()
    a2a: Runner = "none"
    probe_version: Version
    negative_control: Literal["caught", "missed", "not_run"] = "not_run"
    launch_id: Name | None = None
    numbers: dict[Name, float] = msgspec.field(default_factory=dict)


class InstanceChanged(Message, frozen=True, kw_only=True, tag="instance_changed"):
    """A server on this node changed state. `launch_id` is None when no launch gate was in its path."""

    instance_id: Name
    state: Literal["starting", "serving", "unhealthy", "exited"]
    gpu_uuids: Annotated[tuple[GpuUuid, ...], msgspec.Meta(max_length=64)] = ()
    launch_id: Name | None = None
    unit_name: Name | None = None
    workload: Name | None = None
    rendezvous: Name | None = None
    nnodes: Positive = 1
    node_rank: Count = 0
    exit_code: int | None = None
    restarts: Count = 0


class EffectiveSeen(Message, frozen=True, kw_only=True, tag="effective_seen"):
    """The pair a running rank resolved, and where that was read."""

    instance_id: Name
    runner: Runner
    a2a: Runner
    source: Literal["server_info", "log"]
    architecture: Name | None = None
    mxfp4: bool | None = None
    sglang_version: Version | None = None


class WeightsSeen(Message, frozen=True, kw_only=True, tag="weights_seen"):
    """Measured weight bytes of one rank, to 0.5 GiB."""

    instance_id: Name
    weight_bytes: Count
    expected_packed_bytes: Count | None = None


class MemoryFallbackSeen(Message, frozen=True, kw_only=True, tag="memory_fallback_seen"):
    """MXFP4 experts are about to be, are, or were (until the crash) BF16."""

    instance_id: Name
    phase: Literal["imminent", "active", "crashed"]
    excess_bytes: Count | None = None


class MemoryFallbackCleared(Message, frozen=True, kw_only=True, tag="memory_fallback_cleared"):
    """The instance runs packed again, or is gone."""

    instance_id: Name


class GpuFaultSeen(Message, frozen=True, kw_only=True, tag="gpu_fault_seen"):
    """An Xid on one GPU."""

    gpu_uuid: GpuUuid
    xid: Count


class BakeInterval(Message, frozen=True, kw_only=True, tag="bake_interval"):
    """What one instance served in one interval; the bake clock counts only these, with traffic."""

    instance_id: Name
    interval_s: Positive
    requests: Count
    failures: Count
    restarts: Count = 0
    xids: Count = 0
    tokens_per_s: float = 0.0


class OverrideApplied(Message, frozen=True, kw_only=True, tag="override_applied"):
    """What the launch gate did with one launch, and why."""

    launch_id: Name
    form: Literal["appended", "untouched"]
    value: Runner | None = None
    source: Literal["directive", "local_rule"]
    code: Code
    generation: Count | None = None
    added_ms: Count = 0


class GapNoticed(Message, frozen=True, kw_only=True, tag="gap_noticed"):
    """The agent lost part of an outbox. `closed` follows a full report."""

    lost_outbox_id: Name
    closed: bool = False


class DrainHookEnded(Message, frozen=True, kw_only=True, tag="drain_hook_ended"):
    """How the drain hook of one order ended here. `interrupted`: the agent ended while it ran.

    `no_hook`: the order is for an instance of this node that has none. Its output is never sent.
    """

    order: Count
    unit: Name
    outcome: Literal["succeeded", "failed", "timeout", "interrupted", "no_hook"]
    exit_code: int | None = None


class GoldenFinished(Message, frozen=True, kw_only=True, tag="golden_finished"):
    """A set of prompts with known answers, asked of a server that runs; of the answers, numbers."""

    instance_id: Name
    set_digest: Digest
    prompts: Positive
    mismatches: Count


class HeldUnit(Message, frozen=True, kw_only=True):
    """What a node was told of one unit."""

    unit: Name
    form: Literal["append", "untouched", "keep"]
    value: Runner | None = None
    code: Code


class DirectiveHeld(Message, frozen=True, kw_only=True, tag="directive_held"):
    """Asked after a restore: what the node was told by the log that it followed until then."""

    restored_as: Name
    incarnation: Name
    generation: Count
    units: tuple[HeldUnit, ...] = ()


Payload = (
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
"""Closed list of facts a node may report; the JSON key `type` tells them apart."""


class Fact(Message, frozen=True, kw_only=True):
    """One fact at its place in the outbox."""

    sequence: Positive
    occurred_at_us: Micros
    payload: Payload


class FactsBatch(Message, frozen=True, kw_only=True):
    """`POST /v1/agent/facts`. Sequences rise by one; the batch is stored whole or not at all."""

    wire_version: Literal[1] = WIRE_VERSION
    node: Name
    outbox_id: Name
    facts: Annotated[tuple[Fact, ...], msgspec.Meta(min_length=1, max_length=BATCH_FACTS_MAX)]


class ChainHead(Message, frozen=True, kw_only=True):
    """Head of the log's hash chain: keep it, and the log can be checked against it later."""

    position: Count
    chain: Digest


class Acknowledgement(Message, frozen=True, kw_only=True):
    """Everything up to `acknowledged_through` is durable; `repeated` of them were stored before."""

    wire_version: Literal[1] = WIRE_VERSION
    acknowledged_through: Count
    repeated: Count = 0
    head: ChainHead
