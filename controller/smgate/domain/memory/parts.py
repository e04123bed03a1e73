"""Owns the bytes of one GPU, part by part: SGLang's padding, its sharding, and what it replicates.

Read from SGLang 0.5.23: `Mxfp4MoEMethod.create_weights` and `process_weights_after_loading`
(srt/layers/quantization/mxfp4.py), `FusedMoE.__init__` (srt/layers/moe/fused_moe_triton/layer.py),
`get_pp_indices` (srt/distributed/utils.py), `KimiK3MoE` (srt/models/kimi_k3.py). A test compares the
experts with the parameters that the real method makes. Norms, sinks and the biases of routers and of
attention are left out: together they stay below 0.1 % of every model looked at.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Final

from smgate.domain.errors import RejectedError
from smgate.domain.memory import shape as shapes

PACKED_INTERMEDIATE_ALIGN: Final = 128
PACKED_HIDDEN_ALIGN: Final = 256
"""trtllm-gen (`flashinfer_mxfp4` on SM10x) and marlin: the intermediate size of each partition is
padded to 128, the hidden size to 256."""
FALLBACK_INTERMEDIATE_ALIGN: Final = 64
"""An unresolved runner pads for triton_kernels, which its upcast is from; the hidden size stays."""
VOCABULARY_ALIGN: Final = 64
MXFP4_BLOCK: Final = 32

A2A_OVER_ALL_OF_TP: Final = frozenset(
    {
        *("megamoe", "flashinfer_megamoe", "deepep", "deepep_v2", "mooncake", "nixl"),
        *("ascend_fuseep", "flashinfer", "mori", "pplx"),
    }
)
"""With these SGLang sets EP to TP, whatever was asked (`_A2A_EP_SPANNING_BACKENDS`)."""
A2A_REPLICATES_SHARED: Final = frozenset(
    {"megamoe", "flashinfer_megamoe", "deepep", "mooncake", "ascend_fuseep", "mori"}
)
"""With these every GPU of K3 has the shared experts whole (`_uses_ep_a2a` of kimi_k3.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel:
    """How one server is spread."""

    tp: int = 1
    ep: int = 1
    pp: int = 1
    a2a: str = "none"
    dp_attention: int = 1
    """`--dp-size` with `--enable-dp-attention`: attention and embedding are sharded over tp / this."""
    redundant_experts: int = 0
    """`--ep-num-redundant-experts`: copies of experts, kept beside the model's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """Bytes of routed experts: `weights` are nibbles or 16-bit numbers, `scales` a byte per 32."""

    weights: int
    scales: int
    bias: int

    @property
    def total(self) -> int:
        """All three."""
        return self.weights + self.scales + self.bias

    def times(self, layers: int) -> Experts:
        """The same of several layers."""
        return Experts(
            weights=self.weights * layers, scales=self.scales * layers, bias=self.bias * layers
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertLayer:
    """The routed experts of one layer on one GPU, in each form they take. All in bytes."""

    local_experts: int
    intermediate_per_partition: int
    """As the model has it, before any padding."""
    packed: Experts
    """Ready to serve with `flashinfer_mxfp4`, whose biases are FP32; marlin keeps them at 16 bits."""
    unresolved_loading: Experts
    """As loaded by an unresolved runner: packed, biases BF16."""
    bf16: Experts
    """After the fallback."""
    bf16_w13: int
    """The first of the fallback's two allocations of a layer."""
    bf16_w2: int

    @property
    def ratio(self) -> float:
        """BF16 to packed, weights and scales alone."""
        return self.bf16.weights / (self.packed.weights + self.packed.scales)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """Bytes of one GPU that are the same on every path."""

    shared_experts: int
    router: int
    latent_projections: int
    dense_mlp: int
    attention: int
    embedding_and_head: int
    vision: int

    @property
    def total(self) -> int:
        """All of them."""
        return sum(int(getattr(self, one.name)) for one in dataclasses.fields(self))


def round_up(value: int, multiple: int) -> int:
    """The next multiple."""
    return -(-value // multiple) * multiple


def packed(*, experts: int, hidden: int, intermediate: int, bias_bytes: int) -> Experts:
    """MXFP4 in these very sizes: a nibble per value, a scale byte per 32, biases of both halves."""
    values = 3 * experts * hidden * intermediate
    return Experts(
        weights=values // 2,
        scales=values // MXFP4_BLOCK,
        bias=experts * (2 * intermediate + hidden) * bias_bytes,
    )


def bf16(*, experts: int, hidden: int, intermediate: int) -> Experts:
    """16-bit in these very sizes; the biases that were loaded stay."""
    return Experts(
        weights=3 * experts * hidden * intermediate * shapes.HALF_BYTES,
        scales=0,
        bias=experts * (2 * intermediate + hidden) * shapes.HALF_BYTES,
    )


def expert_layer(*, experts: int, hidden: int, intermediate: int) -> ExpertLayer:
    """The routed experts that one GPU has of one layer, with SGLang's padding.

    Args:
        experts: experts of this GPU.
        hidden: width in which they work.
        intermediate: intermediate size of this partition, unpadded.
    """
    wide, padded = (
        round_up(hidden, PACKED_HIDDEN_ALIGN),
        round_up(intermediate, PACKED_INTERMEDIATE_ALIGN),
    )
    loose = round_up(intermediate, FALLBACK_INTERMEDIATE_ALIGN)
    half = shapes.HALF_BYTES
    return ExpertLayer(
        local_experts=experts,
        intermediate_per_partition=intermediate,
        packed=packed(
            experts=experts, hidden=wide, intermediate=padded, bias_bytes=shapes.FLOAT_BYTES
        ),
        unresolved_loading=packed(
            experts=experts, hidden=hidden, intermediate=loose, bias_bytes=half
        ),
        bf16=bf16(experts=experts, hidden=hidden, intermediate=loose),
        bf16_w13=experts * 2 * loose * hidden * half,
        bf16_w2=experts * hidden * loose * half,
    )


def resolved(asked: Parallel, shape: shapes.Shape) -> Parallel:
    """The layout SGLang really makes of what was asked.

    Raises:
        RejectedError: `bad_layout`: SGLang could not start like this, or it is not modelled.
    """
    _known(asked, shape)
    ep = asked.ep if asked.a2a == "none" else asked.tp
    _divided(asked, shape, ep)
    return dataclasses.replace(asked, ep=ep)


def _known(asked: Parallel, shape: shapes.Shape) -> None:
    if asked.a2a != "none" and asked.a2a not in A2A_OVER_ALL_OF_TP:
        raise _bad("a2a", f"{asked.a2a!r} is not known.")
    if asked.a2a != "none" and shape.model_type != shapes.KIMI_K3 and shape.shared_experts_bytes:
        raise _bad(
            "a2a", f"shared experts of {shape.model_type} with {asked.a2a} are not modelled."
        )
    for name in ("tp", "ep", "pp", "dp_attention"):
        if getattr(asked, name) < 1:
            raise _bad(name, "is not at least 1.")
    if asked.redundant_experts < 0:
        raise _bad("redundant experts", "are below 0.")


def _divided(asked: Parallel, shape: shapes.Shape, ep: int) -> None:
    """What SGLang asserts: nothing is left over when it shares out."""
    if asked.tp % ep:
        raise _bad("ep", f"{ep} does not divide tp {asked.tp}; EP is within TP.")
    if (shape.experts + asked.redundant_experts) % ep:
        short = -(shape.experts + asked.redundant_experts) % ep
        raise _bad(
            "ep",
            f"{ep} does not divide {shape.experts + asked.redundant_experts} experts; "
            f"{short} more redundant experts would make it.",
        )
    if shape.expert_intermediate % (asked.tp // ep):
        raise _bad("tp", f"expert width {shape.expert_intermediate} is not divided by tp / ep.")
    if asked.tp % asked.dp_attention:
        raise _bad("dp_attention", f"{asked.dp_attention} does not divide tp {asked.tp}.")
    ranks = asked.tp // asked.dp_attention
    for heads in sorted({one.heads for one in shape.attention}):
        if heads % ranks:
            raise _bad("tp", f"{heads} attention heads cannot be divided among {ranks} GPUs.")
    if asked.pp > len(shape.moe_layers):
        raise _bad("pp", f"{asked.pp} stages for {len(shape.moe_layers)} layers.")


def _bad(name: str, why: str) -> RejectedError:
    return RejectedError(
        code="bad_layout",
        message=f"{name}: {why}",
        next_step="Give the flags of a launch that SGLang can make.",
    )


def experts_of(shape: shapes.Shape, layout: Parallel) -> ExpertLayer:
    """One layer's routed experts on one GPU of a resolved layout."""
    return expert_layer(
        experts=(shape.experts + layout.redundant_experts) // layout.ep,
        hidden=shape.expert_hidden,
        intermediate=shape.expert_intermediate // (layout.tp // layout.ep),
    )


def stage_layers(shape: shapes.Shape, layout: Parallel) -> tuple[range, ...]:
    """The layers of each pipeline stage, from 0; the last stages get the extra ones."""
    base, extra = divmod(len(shape.moe_layers), layout.pp)
    stages, first = [], 0
    for number in range(layout.pp):
        count = base + (1 if number >= layout.pp - extra else 0)
        stages.append(range(first, first + count))
        first += count
    return tuple(stages)


def rest_of(shape: shapes.Shape, layout: Parallel, stage: int) -> Rest:
    """Everything but the routed experts, on one GPU of one pipeline stage."""
    layers = stage_layers(shape, layout)[stage]
    moe = sum(shape.moe_layers[n] for n in layers)
    replicated = layout.a2a in A2A_REPLICATES_SHARED
    first, last = stage == 0, stage == layout.pp - 1
    rows = round_up(shape.vocabulary, VOCABULARY_ALIGN)
    attention_ranks = layout.tp // layout.dp_attention
    embedding = shape.embedding_bytes * rows // shape.vocabulary if first else 0
    head = shape.head_bytes * rows // shape.vocabulary if last else 0
    return Rest(
        shared_experts=moe * _part(shape.shared_experts_bytes, 1 if replicated else layout.tp),
        router=moe * shape.router_bytes,
        latent_projections=moe * shape.latent_bytes,
        dense_mlp=(len(layers) - moe) * _part(shape.dense_bytes, layout.tp),
        attention=sum(_attention(shape.attention[n], attention_ranks) for n in layers),
        embedding_and_head=_part(embedding, attention_ranks) + _part(head, layout.tp),
        vision=shape.vision_bytes,
    )


def _attention(one: shapes.Attention, tp: int) -> int:
    key_and_value = _part(one.kv_bytes, min(tp, one.kv_heads))
    return _part(one.sharded_bytes, tp) + key_and_value + one.replicated_bytes


def _part(whole: int, ranks: int) -> int:
    """One rank's share, rounded up: of two the larger counts."""
    return -(-whole // ranks)
