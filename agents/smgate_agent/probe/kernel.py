"""FlashInfer, called with the names, keywords and layouts that SGLang uses for Kimi K3 on SM10x.

Read from SGLang 0.5.23: `layers/quantization/mxfp4.py` (`process_weights_after_loading`,
`_prepare_flashinfer_mxfp8_activations`) and `layers/moe/moe_runner/flashinfer_trtllm.py`
(`_fused_experts_flashinfer_mxfp4_sm100_trtllm_gen`).
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
from typing import TYPE_CHECKING, Any

import torch

from smgate_agent.probe import ending, judge, mx, reference

if TYPE_CHECKING:
    from smgate_agent.probe.workload import Batch, Shape

Tensor = Any
Part = Any
"""Whatever FlashInfer has under a name."""

ENUM_MODULES = ("flashinfer.tllm_enums", "flashinfer.fused_moe", "flashinfer")
EPILOGUE_TILE_ROWS = 128
PDL_TOKENS_MAX = 8192
"""SGLang's `SGLANG_TRTLLM_MOE_PDL_MAX_TOKENS`."""
PACKED_TOKENS_MAX = 64
"""Up to here SGLang 0.5.23 packs choice and weight into one int32 (`moe_route_quant_fused`); above, it
passes a pair of tensors. Older versions always pack."""


class CallableMissingError(ending.EndedError):
    """This FlashInfer has no callable or enum member of a name that SGLang uses."""

    def __init__(self, name: str) -> None:
        super().__init__("failed", f"callable_missing:{name}".lower())


def find(name: str, *modules: str) -> Part:
    """What `name` is in the first module that has it; `A.B` is a member of A.

    Raises:
        CallableMissingError: none has it.
    """
    for module in modules:
        with contextlib.suppress(ImportError, AttributeError):
            found: Part = importlib.import_module(module)
            for part in name.split("."):
                found = getattr(found, part)
            return found
    raise CallableMissingError(name)


def accepted(function: Part, given: dict[str, Any]) -> dict[str, Any]:
    """The keywords that this version's function has: SGLang versions pass different ones."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return given
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values()):
        return given
    return {name: value for name, value in given.items() if name in parameters}


def quantize_mxfp8(hidden: Tensor, *, swizzled: bool, alignment: int) -> tuple[Tensor, Tensor]:
    """`flashinfer.mxfp8_quantize` as SGLang's `flashinfer_mxfp8_quantize` calls it."""
    function = find("mxfp8_quantize", "flashinfer")
    given: dict[str, Any] = {
        "is_sf_swizzled_layout": swizzled,
        "alignment": alignment,
        "backend": "cute-dsl",
    }
    with contextlib.suppress(CallableMissingError):
        layout = "layout_128x4" if swizzled else "layout_linear"
        given["sf_swizzle_layout"] = find(f"SfLayout.{layout}", *ENUM_MODULES)
    values, scales = function(hidden, **accepted(function, given))
    return values, scales


def activations(hidden: Tensor, *, by_flashinfer: bool) -> tuple[Tensor, Tensor]:
    """FP8 rows and linear scale bytes [tokens, blocks].

    SM107 uses FlashInfer's quantiser; SM100 and SM103 use SGLang's own, whose rule is the
    reference's.
    """
    if not by_flashinfer:
        return mx.encode_mxfp8(hidden)
    values, scales = quantize_mxfp8(hidden, swizzled=False, alignment=hidden.shape[-1])
    return values.view(torch.float8_e4m3fn), scales.view(torch.uint8).reshape(len(hidden), -1)


class FusedMoe:
    """The fused SiTU MoE over one rank's experts, prepared once as SGLang does after loading."""

    def __init__(self, experts: reference.Experts, shape: Shape) -> None:
        self._shape = shape
        self._function = find(
            "trtllm_fp4_block_scale_routed_moe", "flashinfer.fused_moe", "flashinfer"
        )
        self._activation = int(find("ActivationType.Situ", *ENUM_MODULES))
        self._routing = int(find("RoutingMethodType.TopK", *ENUM_MODULES))
        self._permutations: dict[Any, Any] = {}
        self._pairs = _up_gate_pairs(experts.w13.shape[1]).to(experts.w13.device)
        self._w13, self._w13_scales = self._shuffled(
            experts.w13[:, self._pairs], experts.w13_scales[:, self._pairs]
        )
        self._w2, self._w2_scales = self._shuffled(experts.w2, experts.w2_scales)
        local = len(experts)
        self._beta, self._linear_beta = (
            torch.full((local,), value, dtype=torch.float32, device=experts.w13.device)
            for value in (reference.SITU_BETA, reference.SITU_LINEAR_BETA)
        )

    def _shuffled(self, weights: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
        """Rows and scales in the kernel's order."""
        interleave = find("nvfp4_block_scale_interleave", "flashinfer")
        rows, scale_rows = self._row_orders(weights, scales)
        moved = torch.stack([one[rows].contiguous() for one in weights])
        laid = torch.stack([interleave(one[scale_rows].contiguous()) for one in scales])
        return moved, laid.reshape(scales.shape).view(torch.float8_e4m3fn)

    def misread(self, experts: reference.Experts) -> reference.Experts:
        """The experts as the kernel sees them if their scales were not interleaved."""
        w13 = self._misread(experts.w13[:, self._pairs], experts.w13_scales[:, self._pairs])
        w2 = self._misread(experts.w2, experts.w2_scales)
        unpaired = torch.empty_like(w13)
        unpaired[:, self._pairs] = w13
        return experts.scaled_by(unpaired, w2)

    def _misread(self, weights: Tensor, scales: Tensor) -> Tensor:
        rows, _ = self._row_orders(weights, scales)
        plain = scales[:, rows]
        read = torch.stack([mx.unswizzle(one.flatten(), *one.shape) for one in plain])
        seen = torch.empty_like(scales)
        seen[:, rows] = read
        return seen

    def _row_orders(self, weights: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
        """The row orders of one expert's weights and of its scales."""
        order = find(
            "get_w2_permute_indices_with_cache", "flashinfer.fused_moe.core", "flashinfer.fused_moe"
        )
        rows = order(self._permutations, weights[0], EPILOGUE_TILE_ROWS)
        scale_rows = order(self._permutations, scales[0], EPILOGUE_TILE_ROWS, num_elts_per_sf=16)
        return rows.to(weights.device), scale_rows.to(weights.device)

    def __call__(self, batch: Batch, quantized: tuple[Tensor, Tensor], *, packed: bool) -> Tensor:
        """One call into a poisoned buffer; the buffer is what SGLang goes on with."""
        values, scales = quantized
        shape, tokens = self._shape, len(batch)
        output = judge.poisoned(tokens, shape.hidden, values.device)
        self._function(
            topk_ids=routing(batch, packed=packed),
            routing_bias=None,
            hidden_states=values,
            hidden_states_scale=scales.view(torch.float8_e4m3fn),
            gemm1_weights=self._w13,
            gemm1_weights_scale=self._w13_scales,
            gemm1_bias=None,
            gemm1_alpha=self._beta,
            gemm1_beta=self._linear_beta,
            gemm1_clamp_limit=None,
            gemm2_weights=self._w2,
            gemm2_weights_scale=self._w2_scales,
            gemm2_bias=None,
            output1_scale_scalar=None,
            output1_scale_gate_scalar=None,
            output2_scale_scalar=None,
            num_experts=shape.experts,
            top_k=shape.top_k,
            n_group=None,
            topk_group=None,
            intermediate_size=shape.padded_intermediate,
            local_expert_offset=shape.offset,
            local_num_experts=shape.local_experts,
            routed_scaling_factor=None,
            routing_method_type=self._routing,
            activation_type=self._activation,
            tune_max_num_tokens=1 << (tokens - 1).bit_length(),
            output=output,
            do_finalize=True,
            enable_pdl=tokens <= PDL_TOKENS_MAX,
        )
        return output


def routing(batch: Batch, *, packed: bool) -> Tensor | tuple[Tensor, Tensor]:
    """Chosen experts and weights: `(id << 16) | bf16 weight` in one int32, or a pair of tensors."""
    if not packed:
        return batch.ids.contiguous(), batch.weights.float().contiguous()
    bits = batch.weights.contiguous().view(torch.int16).to(torch.int32) & 0xFFFF
    return (batch.ids << 16) | bits


def _up_gate_pairs(rows: int) -> Tensor:
    """The kernel wants rows in pairs (up i, gate i); the checkpoint has all gate, then all up."""
    half = rows // 2
    order = torch.empty(rows, dtype=torch.long)
    order[0::2] = torch.arange(half) + half
    order[1::2] = torch.arange(half)
    return order


def tuning() -> Part:
    """The context in which FlashInfer tries its tactics and remembers the fastest.

    Raises:
        CallableMissingError: there is no autotuner.
    """
    return find("autotune", "flashinfer.autotuner", "flashinfer")(True)  # noqa: FBT003 (as SGLang)
