"""What FlashInfer's quantisers write on this GPU, one JSON line each.

The memory that a quantiser will be given is filled with a known byte beforehand. Bytes that are
still there afterwards were not written, whatever the call returned.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import flashinfer
import torch

from smgate_agent.probe import mx

ROWS, COLUMNS = 256, 1024
SCALES = COLUMNS // mx.BLOCK
POISON = 0xA5
TIMES = 4
"""Buffers of each size to poison: a quantiser may allocate more than it returns."""


def poison(sizes: tuple[int, ...]) -> None:
    """Fill what torch's allocator will hand out next for buffers of these many bytes."""
    held = [
        torch.full((size,), POISON, dtype=torch.uint8, device="cuda")
        for size in sizes
        for _ in range(TIMES)
    ]
    torch.cuda.synchronize()
    del held


def untouched(tensor: torch.Tensor) -> float:
    """The share of bytes that still hold the poison."""
    return float((tensor.contiguous().view(torch.uint8) == POISON).float().mean())


def error(source: torch.Tensor, values: torch.Tensor, scales: torch.Tensor, layout: str) -> str:
    """The relative error of the values, decoded with their scales read in this layout."""
    flat = scales.contiguous().view(torch.uint8).flatten()
    linear = mx.unswizzle(flat, ROWS, SCALES) if layout == "128x4" else flat.reshape(ROWS, SCALES)
    back = (mx.blocks(values) * mx.decode_scales(linear).unsqueeze(-1)).flatten(-2)
    return f"{float((back - source.float()).norm() / source.float().norm()):.3g}"


def reading(name: str, layout: str, source: torch.Tensor) -> dict[str, Any]:
    """What one quantiser wrote, and read in which layout it gives the source back."""
    order = getattr(flashinfer.SfLayout, f"layout_{layout}")
    keyword = "sfLayout" if name == "mxfp4_quantize" else "sf_swizzle_layout"
    quantise, choice = getattr(flashinfer, name), {keyword: order}
    began = time.monotonic()
    quantise(source, **choice)  # compiles it, the first time
    torch.cuda.synchronize()
    first_s = time.monotonic() - began
    poison((ROWS * COLUMNS, ROWS * COLUMNS // 2, ROWS * SCALES))
    values, scales = quantise(source, **choice)
    torch.cuda.synchronize()
    packed = values.dtype == torch.uint8
    plain = mx.unpack_e2m1(values) if packed else values.float()
    return {
        "call": name,
        "layout": layout,
        "first_call_s": round(first_s, 1),
        "values": [str(values.dtype), *values.shape],
        "scales": [str(scales.dtype), *scales.shape],
        "unwritten_values": untouched(values),
        "unwritten_scales": untouched(scales),
        **{
            f"error_read_as_{one}": error(source, plain, scales, one) for one in ("128x4", "linear")
        },
    }


def main() -> None:
    """Both quantisers in both layouts that are read anywhere."""
    torch.manual_seed(7)
    powers = torch.randint(-6, 6, (ROWS, SCALES)).float()
    source = torch.randn(ROWS, COLUMNS) * torch.pow(2.0, powers).repeat_interleave(mx.BLOCK, 1)
    source = source.to(torch.bfloat16).cuda()
    for name in ("mxfp4_quantize", "mxfp8_quantize"):
        for layout in ("128x4", "linear"):
            sys.stdout.write(json.dumps(reading(name, layout, source)) + "\n")


if __name__ == "__main__":
    main()
