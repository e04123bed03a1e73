"""Check `api_boundary`: the callables, keywords and numbers SGLang uses are in this FlashInfer.

It needs no GPU. It is necessary and far from sufficient: enum, signature and name are all there on
builds whose kernels are not, so nothing is qualified by this check alone.
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any

MOE_KEYWORDS = [
    "routing_bias",
    "hidden_states",
    "hidden_states_scale",
    "gemm1_weights",
    "gemm1_weights_scale",
    "gemm1_bias",
    "gemm1_alpha",
    "gemm1_beta",
    "gemm1_clamp_limit",
    "gemm2_weights",
    "gemm2_weights_scale",
    "gemm2_bias",
    "output1_scale_scalar",
    "output1_scale_gate_scalar",
    "output2_scale_scalar",
    "num_experts",
    "top_k",
    "n_group",
    "topk_group",
    "intermediate_size",
    "local_expert_offset",
    "local_num_experts",
    "routed_scaling_factor",
    "routing_method_type",
    "do_finalize",
    "enable_pdl",
    "activation_type",
    "output",
    "tune_max_num_tokens",
]

CALLABLES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        "flashinfer.fused_moe",
        "trtllm_fp4_block_scale_routed_moe",
        ("topk_ids", *MOE_KEYWORDS),
    ),
    (
        "flashinfer",
        "trtllm_fp4_block_scale_moe",
        ("routing_logits", "norm_topk_prob", *MOE_KEYWORDS),
    ),
    ("flashinfer", "mxfp8_quantize", ("input", "is_sf_swizzled_layout", "alignment")),
    ("flashinfer", "nvfp4_block_scale_interleave", ()),
    ("flashinfer.fused_moe.core", "get_w2_permute_indices_with_cache", ()),
)
"""Module, callable and the keywords SGLang passes to it for this model."""

MEMBERS: tuple[tuple[str, str, int], ...] = (
    ("ActivationType", "Situ", 10),
    ("RoutingMethodType", "DeepSeekV3", 2),
    ("RoutingMethodType", "TopK", 5),
)
"""Enum members SGLang passes by value, all of `flashinfer.tllm_enums`."""


def run(_launch: dict[str, Any]) -> dict[str, Any]:
    """Passed if nothing SGLang uses is missing; the reason names the first thing that is."""
    try:
        importlib.import_module("flashinfer")
    except ImportError as exc:
        missing = getattr(exc, "name", None) == "flashinfer"
        return _result("error", "flashinfer_missing" if missing else "flashinfer_import_failed")
    except Exception:
        return _result("error", "flashinfer_import_failed")
    problems = [
        problem
        for module, name, keywords in CALLABLES
        for problem in _callable_problems(module, name, keywords)
    ]
    problems += [
        problem
        for enum, member, value in MEMBERS
        for problem in _member_problems(enum, member, value)
    ]
    numbers = {
        "callables": float(len(CALLABLES)),
        "members": float(len(MEMBERS)),
        "problems": float(len(problems)),
    }
    if problems:
        return _result("failed", problems[0][:80].lower(), numbers)
    return _result("passed", "api_as_expected", numbers)


def _callable_problems(module: str, name: str, keywords: tuple[str, ...]) -> list[str]:
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        return [f"callable_missing:{name}"]
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return [f"signature_unreadable:{name}"]
    if any(item.kind is inspect.Parameter.VAR_KEYWORD for item in parameters.values()):
        return []
    return [f"keyword_missing:{name}.{key}" for key in keywords if key not in parameters]


def _member_problems(enum: str, member: str, value: int) -> list[str]:
    for module in ("flashinfer.tllm_enums", "flashinfer.fused_moe", "flashinfer"):
        try:
            found = getattr(getattr(importlib.import_module(module), enum), member)
        except (ImportError, AttributeError):
            continue
        return [] if int(found) == value else [f"member_value:{enum}.{member}"]
    return [f"member_missing:{enum}.{member}"]


def _result(outcome: str, reason: str, numbers: dict[str, float] | None = None) -> dict[str, Any]:
    return {"outcome": outcome, "reason": reason, "numbers": numbers or {}}
