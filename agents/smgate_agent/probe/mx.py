"""The OCP microscaling formats in plain torch: FP4, FP8, their block scales, and how scales lie.

Written from the OCP MX specification 1.0 and the layout that FlashInfer documents (`SfLayout`), not
from FlashInfer's code, so that an error there is not repeated here.
"""

from __future__ import annotations

from typing import Any

import torch

Tensor = Any

BLOCK = 32
"""Elements that share one scale."""
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""FP4 by nibble."""
E2M1_BOUNDS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
"""Halfway between neighbours; a tie goes to the even nibble."""
E4M3_MAX = 448.0
SCALE_BIAS, SCALE_NAN = 127, 255
TILE_ROWS, TILE_COLUMNS = 128, 4
"""Scales of 128 rows and 4 blocks are kept together, as the tensor cores read them."""


def decode_scales(scales: Tensor) -> Tensor:
    """UE8M0 bytes to float32: 2 to the power of (byte - 127), exactly; 255 is NaN."""
    bits = scales.view(torch.uint8).to(torch.int32)
    values = (bits << 23).view(torch.float32)
    values = torch.where(bits == 0, torch.full_like(values, 2.0**-127), values)
    return torch.where(bits == SCALE_NAN, torch.full_like(values, float("nan")), values)


def encode_scales(largest: Tensor, format_max: float) -> Tensor:
    """The smallest power of two that keeps `largest` within the format, as UE8M0 bytes."""
    mantissa, exponent = torch.frexp(largest.float() / format_max)
    exponent = torch.where(mantissa == 0.5, exponent - 1, exponent)  # noqa: PLR2004 (frexp's 2**-1)
    exponent = torch.where(largest == 0, torch.full_like(exponent, -SCALE_BIAS), exponent)
    return (exponent + SCALE_BIAS).clamp(0, SCALE_NAN - 1).to(torch.uint8)


def blocks(values: Tensor) -> Tensor:
    """The last dimension in blocks that share a scale."""
    return values.reshape(*values.shape[:-1], -1, BLOCK)


def unpack_e2m1(packed: Tensor) -> Tensor:
    """Two FP4 values of each byte, the low nibble first, to float32."""
    table = torch.tensor(E2M1, dtype=torch.float32, device=packed.device)
    codes = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2).int()
    return table[codes]


def decode_mxfp4(packed: Tensor, scales: Tensor) -> Tensor:
    """Packed FP4 and linear UE8M0 scales to float32."""
    return (blocks(unpack_e2m1(packed)) * decode_scales(scales).unsqueeze(-1)).flatten(-2)


def round_e2m1(values: Tensor) -> Tensor:
    """The nearest FP4 values, saturated, ties to even."""
    size = values.abs()
    code = torch.zeros_like(size, dtype=torch.int32)
    for lower, bound in enumerate(E2M1_BOUNDS):
        above = size >= bound if lower % 2 else size > bound
        code = code + above.int()
    table = torch.tensor(E2M1, dtype=torch.float32, device=values.device)
    return torch.copysign(table[code], values)


def encode_mxfp8(values: Tensor) -> tuple[Tensor, Tensor]:
    """E4M3 values and linear UE8M0 scale bytes, the scale rounded up so that nothing saturates."""
    parts = blocks(values.float())
    scales = encode_scales(parts.abs().amax(-1), E4M3_MAX)
    return round_e4m3(parts / decode_scales(scales).unsqueeze(-1)).flatten(-2), scales


def round_e4m3(values: Tensor) -> Tensor:
    """The nearest FP8 E4M3 values, saturated."""
    return values.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)


def decode_mxfp8(values: Tensor, scales: Tensor) -> Tensor:
    """E4M3 values and linear scales to float32."""
    return (blocks(values.float()) * decode_scales(scales).unsqueeze(-1)).flatten(-2)


def _padded(rows: int, columns: int) -> tuple[int, int]:
    return -(-rows // TILE_ROWS) * TILE_ROWS, -(-columns // TILE_COLUMNS) * TILE_COLUMNS


def swizzled_size(rows: int, columns: int) -> int:
    """How many scales the 128x4 layout has, its padding included."""
    tall, wide = _padded(rows, columns)
    return tall * wide


def swizzle(scales: Tensor) -> Tensor:
    """Linear scales [rows, blocks] to the flat 128x4 layout, padded with zeros.

    Within a tile the rows r, r+32, r+64 and r+96 lie side by side: 32 x 4 rows x 4 blocks.
    """
    rows, columns = scales.shape
    padded = torch.zeros(*_padded(rows, columns), dtype=scales.dtype, device=scales.device)
    padded[:rows, :columns] = scales
    tiles = padded.view(-1, 4, 32, padded.shape[1] // TILE_COLUMNS, TILE_COLUMNS)
    return tiles.permute(0, 3, 2, 1, 4).contiguous().flatten()


def unswizzle(flat: Tensor, rows: int, columns: int) -> Tensor:
    """The linear scales [rows, blocks] of a flat 128x4 layout."""
    tiles_across = -(-columns // TILE_COLUMNS)
    tiles = flat.reshape(-1, tiles_across, 32, 4, TILE_COLUMNS)
    linear = tiles.permute(0, 3, 2, 1, 4).reshape(-1, tiles_across * TILE_COLUMNS)
    return linear[:rows, :columns]
