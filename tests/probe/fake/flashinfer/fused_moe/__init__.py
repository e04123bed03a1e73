"""The names SGLang imports from here."""

from flashinfer.fused_moe.core import (
    get_w2_permute_indices_with_cache,
    trtllm_fp4_block_scale_routed_moe,
)

__all__ = ["get_w2_permute_indices_with_cache", "trtllm_fp4_block_scale_routed_moe"]
