"""Models and GPUs that tests of the memory model ask about."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

from smgate.domain.memory import estimate, parts

GIB = estimate.GIB
FIXTURES = Path(__file__).resolve().parent / "fixtures" / "sglang"


def k3(**text: Any) -> dict[str, Any]:
    """K3's config.json with the full-rank gate that its checkpoint has."""
    config: dict[str, Any] = json.loads((FIXTURES / "k3_config.json").read_text())
    config["text_config"]["linear_attn_config"]["use_full_rank_gate"] = True
    config["text_config"].update(text)
    return config


def gpt_oss(*, layers: int, experts: int) -> dict[str, Any]:
    return {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "attention_bias": True,
        "experts_per_token": 4,
        "head_dim": 64,
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "layer_types": ["sliding_attention", "full_attention"] * (layers // 2),
        "num_attention_heads": 64,
        "num_experts_per_tok": 4,
        "num_hidden_layers": layers,
        "num_key_value_heads": 8,
        "num_local_experts": experts,
        "quantization_config": {
            "modules_to_not_convert": [
                "model.layers.*.self_attn",
                "model.layers.*.mlp.router",
                "model.embed_tokens",
                "lm_head",
            ],
            "quant_method": "mxfp4",
        },
        "router_aux_loss_coef": 0.9,
        "tie_word_embeddings": False,
        "vocab_size": 201088,
    }


def gpu(gib: float = 268, fraction: str = "0.85") -> estimate.Gpu:
    return estimate.Gpu(memory_bytes=int(gib * GIB), mem_fraction=Fraction(fraction))


def of(config: dict[str, Any], *, on: estimate.Gpu | None = None, **layout: Any) -> Any:
    return estimate.estimate(config, asked=parts.Parallel(**layout), gpu=on or gpu())


def gib(size: int) -> float:
    return size / GIB


def deepseek_like() -> dict[str, Any]:
    """The same kind of fields under DeepSeek's names."""
    return {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "first_k_dense_replace": 3,
        "moe_layer_freq": 1,
        "num_hidden_layers": 61,
        "num_attention_heads": 128,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "vocab_size": 129280,
        "tie_word_embeddings": False,
        "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["self_attn"]},
    }
