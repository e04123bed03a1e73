"""A package in FlashInfer's place: the callables SGLang uses, on the CPU, and ways to be wrong.

`SMGATE_FAKE_FLASHINFER` names the fault; without one it is right. It shares no code with the probe and
follows FlashInfer 0.7.2.post1's own documentation of layouts, so that the two check each other.
"""

import os

FAULT = os.environ.get("SMGATE_FAKE_FLASHINFER", "")

if FAULT == "import_error":
    raise ImportError("libcudart.so.13: cannot open shared object file")

from flashinfer import ending

ending.at_import(FAULT)

from flashinfer.fused_moe import trtllm_fp4_block_scale_routed_moe
from flashinfer.quantization import (
    mxfp4_quantize,
    mxfp8_quantize,
    nvfp4_block_scale_interleave,
)
from flashinfer.tllm_enums import SfLayout

__all__ = [
    "SfLayout",
    "mxfp4_quantize",
    "mxfp8_quantize",
    "nvfp4_block_scale_interleave",
    "trtllm_fp4_block_scale_routed_moe",
]
