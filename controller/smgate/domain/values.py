"""Plain values that facts, events and decisions are made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Platform = Literal["cuda", "rocm", "npu", "xpu", "none"]
Outcome = Literal["passed", "failed", "error", "timeout", "skipped"]
Form = Literal["append", "untouched", "keep"]
Mode = Literal["observe", "enforce"]
Direction = Literal["narrows", "widens"]

TARGET_A2A = "none"
"""The target is a pair; its a2a backend is `none` (no fused function elsewhere: the server dies)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU. `sm` is "major.minor", None while the driver does not answer."""

    uuid: str
    sm: str | None = None
    name: str = ""
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """Exact versions beside a kernel; some make the kernel key, all are matched by known issues."""

    sglang_version: str | None = None
    sglang_commit: str | None = None
    flashinfer_version: str | None = None
    flashinfer_commit: str | None = None
    artifact_pins: dict[str, str] = field(default_factory=dict)
    jit_cache_version: str | None = None
    cubin_version: str | None = None
    cute_dsl_version: str | None = None
    cuda_toolkit: str | None = None
    torch_version: str | None = None
    torch_cuda: str | None = None
    driver_version: str | None = None
    image_digest: str | None = None
    autotune_cache_digest: str | None = None
    disqualifying_env: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How the experts lie over the ranks."""

    tp: int = 1
    ep: int = 1
    pp: int = 1
    dp: int = 1
    experts: int = 0
    hidden_size: int = 0
    intermediate_size: int = 0
    top_k: int = 0
    expert_layers: int = 0
    """Layers of the model with routed experts; 0 where nobody could say. No part of the kernel key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What `config.json` says of one model path and revision."""

    digest: str
    architecture: str
    quant_method: str | None = None
    format_top_level: str | None = None
    format_group: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A (runner, a2a) pair."""

    runner: str
    a2a: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenFor:
    """What a decision was made for."""

    architecture: str | None = None
    model_digest: str | None = None
    a2a: str = "none"
    sm: str | None = None
    kernel_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """What a unit's next launch is told to append, and what a plan would tell it; None is nothing."""

    unit: str
    before: str | None
    before_code: str
    after: str | None
    after_code: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A rule's answer before and after observe mode: what `would` have been done."""

    form: Form
    value: str | None
    code: str
