"""Owns the verdict: whether a BF16 fallback would crash and where, or fit and hide, and what is left for KV.

A fallback loads packed like any other start, then converts layer by layer: it allocates w13 and w2 at
16 bits and only then frees the packed layer (SGLang's `process_weights_after_loading`, the last
`else`). So it dies minutes into loading, in the first layer whose allocation no longer fits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, Literal

from smgate.domain.errors import RejectedError
from smgate.domain.memory import parts, shape as shapes

GIB: Final = 1 << 30
CONTEXT_BYTES: Final = 3 * GIB // 5
"""What a CUDA process takes beside PyTorch: 9.32 GiB in use less 8.72 GiB by PyTorch, read on an H200.
Communication buffers of many GPUs come on top; give what `nvidia-smi` shows if it is more."""

ATTENTION_NOT_NAMED: Final = (
    "quantization_config.ignore or modules_to_not_convert does not name self_attn: attention is "
    "counted at 16 bits, the most it can take; packed, it would take less."
)

Packed = Literal["serves", "no_kv", "does_not_load"]
Outcome = Literal["hides", "crashes_at_kv", "crashes_converting", "does_not_load"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU as a server finds it."""

    memory_bytes: int
    """Total capacity as PyTorch reports it: 268 GiB of what is sold as 288 GB."""
    mem_fraction: Fraction
    """SGLang's `--mem-fraction-static`: weights and KV cache together, of what is free at the start."""
    context_bytes: int = CONTEXT_BYTES

    @property
    def free_bytes(self) -> int:
        """What is free before loading."""
        return self.memory_bytes - self.context_bytes

    @property
    def static_bytes(self) -> int:
        """The most that weights and KV cache may take together."""
        return int(self.free_bytes * self.mem_fraction)


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """Where the conversion would die."""

    layer: int
    """Of the model, from 0."""
    converted: int
    """Layers with experts that this GPU had converted before."""
    allocation_bytes: int
    """What PyTorch would say it tried to allocate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One GPU of one pipeline stage. Every number in bytes unless its name says otherwise."""

    number: int
    first_layer: int
    last_layer: int
    expert_layers: int
    experts_packed: parts.Experts
    experts_bf16: parts.Experts
    rest: parts.Rest
    packed_bytes: int
    """All weights, as they should be."""
    fallback_bytes: int
    """All weights after a fallback, if it fits."""
    packed: Packed
    packed_kv_bytes: int
    """Left for the KV cache and linear-attention state; below 0: short of that much."""
    fallback: Outcome
    fallback_kv_bytes: int
    crash: Crash | None

    @property
    def excess_bytes(self) -> int:
        """What a fallback takes more."""
        return self.fallback_bytes - self.packed_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The answer for one model, layout and GPU."""

    architecture: str
    layout: parts.Parallel
    """As SGLang resolves it: an a2a backend makes EP equal to TP."""
    gpu: Gpu
    layer: parts.ExpertLayer
    stages: tuple[Stage, ...]
    notes: tuple[str, ...] = ()
    """What the config leaves open, and how it was counted."""

    @property
    def worst(self) -> Stage:
        """The stage where a fallback leaves least: its GPUs decide whether the server lives."""
        return min(self.stages, key=lambda one: (one.fallback_kv_bytes, one.number))


def estimate(config: Mapping[str, Any], *, asked: parts.Parallel, gpu: Gpu) -> Estimate:
    """What a model takes per GPU, and what a BF16 fallback of its experts would do.

    Args:
        config: the model's `config.json`.
        asked: parallel sizes and a2a backend as in the launch flags.
        gpu: one GPU; all of a server are alike.

    Raises:
        RejectedError: `bad_model_config`, `bad_layout`, `bad_gpu`.
    """
    if not 0 < gpu.mem_fraction <= 1 or gpu.context_bytes < 0 or gpu.free_bytes <= 0:
        raise RejectedError(
            code="bad_gpu",
            message="The GPU has no free memory, or the fraction is not above 0 and at most 1.",
            next_step="Give the memory in GiB, such as 268, and a fraction such as 0.85.",
        )
    shape = shapes.read(config)
    layout = parts.resolved(asked, shape)
    layer = parts.experts_of(shape, layout)
    return Estimate(
        architecture=shape.architecture,
        layout=layout,
        gpu=gpu,
        layer=layer,
        stages=tuple(_stage(shape, layout, layer, gpu, number) for number in range(layout.pp)),
        notes=() if shape.attention_named else (ATTENTION_NOT_NAMED,),
    )


def _stage(
    shape: shapes.Shape, layout: parts.Parallel, layer: parts.ExpertLayer, gpu: Gpu, number: int
) -> Stage:
    layers = parts.stage_layers(shape, layout)[number]
    with_experts = [n for n in layers if shape.moe_layers[n]]
    count = len(with_experts)
    rest = parts.rest_of(shape, layout, number)
    packed_bytes = rest.total + layer.packed.total * count
    fallback_bytes = rest.total + layer.bf16.total * count
    outcome, crash = _fallback(rest.total, layer, with_experts, gpu)
    packed: Packed = "serves"
    if packed_bytes > gpu.free_bytes:
        packed = "does_not_load"
    elif packed_bytes >= gpu.static_bytes:
        packed = "no_kv"
    return Stage(
        number=number,
        first_layer=layers[0],
        last_layer=layers[-1],
        expert_layers=count,
        experts_packed=layer.packed.times(count),
        experts_bf16=layer.bf16.times(count),
        rest=rest,
        packed_bytes=packed_bytes,
        fallback_bytes=fallback_bytes,
        packed=packed,
        packed_kv_bytes=gpu.static_bytes - packed_bytes,
        fallback=outcome,
        fallback_kv_bytes=gpu.static_bytes - fallback_bytes,
        crash=crash,
    )


def _fallback(
    rest_bytes: int, layer: parts.ExpertLayer, with_experts: list[int], gpu: Gpu
) -> tuple[Outcome, Crash | None]:
    used = rest_bytes + layer.unresolved_loading.total * len(with_experts)
    if used > gpu.free_bytes:
        return "does_not_load", None
    for converted, number in enumerate(with_experts):
        for allocation in (layer.bf16_w13, layer.bf16_w2):
            if used + allocation > gpu.free_bytes:
                return "crashes_converting", Crash(
                    layer=number, converted=converted, allocation_bytes=allocation
                )
            used += allocation
        used -= layer.unresolved_loading.weights + layer.unresolved_loading.scales
    return ("hides" if used < gpu.static_bytes else "crashes_at_kv"), None
