"""Check `quantize`: FlashInfer's block quantisers and its scale layout, against plain torch.

What SGLang feeds the fused MoE with on SM107 (`mxfp8_quantize`, linear scales), what it prepares
weights with (`nvfp4_block_scale_interleave`), and the same quantiser and the FP4 one in the layouts
that other products read. A layout is always stated: with FlashInfer's defaults a round trip was seen to
be wrong by the whole value. Scales decoded in the other layout are the negative control.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import torch

from smgate_agent.probe import ending, hardware, kernel, mx, reference, results, workload

Tensor = Any
Json = dict[str, Any]

SEED = 20_260_820
QUANTIZER_SM_MIN = 100
"""Below, FlashInfer's quantising kernels are compiled to nothing (`quantization.cuh`, 0.7.2.post1): the call
succeeds and its output is whatever the memory held."""
CONTROL_TOKENS = 128
LEAST_OF_RANGE = 0.49
"""A block's largest value over the format's largest at the block's scale: above 0.5, whichever way the
scale was rounded. Below, a bit of precision is lost."""
MOST_OF_RANGE = {"mxfp8": 512 / 448, "mxfp4": 8 / 6}
"""The OCP rule takes the exponent of the largest value, which then may be cut off; rounding up gives 1."""
VALUE_MISMATCH_MAX = 0.001
"""Share of values that are not the nearest of the format at their block's scale: a reciprocal in place
of a division may move a tie. FlashInfer's own test demands its reference's bytes for MXFP8
(tests/utils/test_fp8_quantize.py at 0218dc6), at one rule for the scale; here both rules pass."""
ROUNDED = {"mxfp8": lambda values: mx.round_e4m3(values).float(), "mxfp4": mx.round_e2m1}
LARGEST = {"mxfp8": mx.E4M3_MAX, "mxfp4": max(mx.E2M1)}


class WrongError(Exception):
    """A quantiser's result is wrong, and how."""


@dataclass(frozen=True)
class Quantized:
    """What a quantiser made of `hidden`: values before scaling, and scale bytes as they lie."""

    form: str
    hidden: Tensor
    values: Tensor
    scales: Tensor
    swizzled: bool

    @property
    def name(self) -> str:
        """Format, tokens and layout, as the numbers name it."""
        layout = "layout_128x4" if self.swizzled else "layout_linear"
        return f"{self.form}.m{len(self.hidden)}.{layout}"

    def bad(self, numbers: dict[str, float], *, swizzled: bool) -> str | None:
        """What is wrong if the scales lie in this layout, or None."""
        rows, columns = len(self.hidden), self.hidden.shape[-1] // mx.BLOCK
        flat = self.scales.contiguous().view(torch.uint8).flatten()
        if flat.numel() < rows * columns or self.values.shape != self.hidden.shape:
            return "size_wrong"
        if swizzled and flat.numel() != mx.swizzled_size(rows, columns):
            return "size_wrong"
        linear = mx.unswizzle(flat, rows, columns) if swizzled else flat[: rows * columns]
        scales = mx.decode_scales(linear.reshape(rows, columns)).unsqueeze(-1)
        parts = mx.blocks(self.hidden.float())
        use = parts.abs().amax(-1, keepdim=True) / scales / LARGEST[self.form]
        inside = (use >= LEAST_OF_RANGE) & (use <= MOST_OF_RANGE[self.form])
        misplaced = 1 - inside.double().mean().item()
        nearest = ROUNDED[self.form](parts / scales)
        differing = (nearest != mx.blocks(self.values)).double().mean().item()
        numbers[f"{self.name}.scale_share_wrong"] = misplaced
        numbers[f"{self.name}.value_share_wrong"] = differing
        if misplaced:
            return "scales_wrong"
        return "values_wrong" if differing > VALUE_MISMATCH_MAX else None


def run(launch: Json) -> Json:
    """Passed if every value is the nearest one and every scale is where its layout says."""
    numbers: dict[str, float] = {}
    try:
        control = _run(launch, numbers)
    except WrongError as wrong:
        return results.result("failed", str(wrong), numbers)
    except ending.EndedError as ended:
        return results.result(ended.outcome, ended.reason, {**numbers, **ended.numbers})
    reason = "quantizers_right" if control == "caught" else "control_missed"
    return results.result("passed", reason, numbers, control=control)


def _run(launch: Json, numbers: dict[str, float]) -> str:
    shape = workload.shape(launch.get("layout") or {})
    device = hardware.devices(launch)[0]
    found = hardware.prepare(device)
    ending.import_flashinfer()
    if device != hardware.CPU:
        hardware.require_quantizers(found)
    with ending.named("reference"):
        reference.self_check(device)
    source, control = workload.Source(shape, device, SEED), "not_run"
    _interleave(shape, device)
    numbers["interleaved_scales_right"] = 1.0
    if device != hardware.CPU and found < QUANTIZER_SM_MIN:
        raise ending.EndedError("skipped", "sm_not_supported", {"sm": found / 10})
    for tokens in workload.TOKENS:
        hidden = source.batch(tokens).hidden
        for made in (*_mxfp8(hidden), *_mxfp4(hidden)):
            with ending.named("quantizer"):
                bad = made.bad(numbers, swizzled=made.swizzled)
            if bad is not None:
                raise WrongError(f"{made.form}_{bad}")
            if tokens == CONTROL_TOKENS and made.swizzled and control != "missed":
                seen = made.bad({}, swizzled=False)
                control = "missed" if seen is None else "caught"
    return control


def _mxfp8(hidden: Tensor) -> list[Quantized]:
    """In both layouts."""
    made = []
    for swizzled, alignment in ((False, hidden.shape[-1]), (True, mx.BLOCK)):
        with ending.named("quantizer"):
            values, scales = kernel.quantize_mxfp8(hidden, swizzled=swizzled, alignment=alignment)
            decoded = values.view(torch.float8_e4m3fn).float()
        made.append(Quantized("mxfp8", hidden, decoded, scales, swizzled))
    return made


def _mxfp4(hidden: Tensor) -> list[Quantized]:
    """In both layouts, if it is there: SGLang serves Kimi K3 without it."""
    made = []
    with contextlib.suppress(kernel.CallableMissingError):
        quantizer = kernel.find("mxfp4_quantize", "flashinfer")
        for layout in ("layout_linear", "layout_128x4"):
            named = kernel.find(f"SfLayout.{layout}", *kernel.ENUM_MODULES)
            with ending.named("quantizer"):
                packed, scales = quantizer(hidden, sfLayout=named)
                decoded = mx.unpack_e2m1(packed.view(torch.uint8))
            made.append(Quantized("mxfp4", hidden, decoded, scales, layout == "layout_128x4"))
    return made


def _interleave(shape: workload.Shape, device: str) -> None:
    """The layout of the weights' scales, byte for byte, in the shapes of both products."""
    interleave = kernel.find("nvfp4_block_scale_interleave", "flashinfer")
    for rows, columns in (
        (2 * shape.padded_intermediate, shape.hidden // mx.BLOCK),
        (shape.hidden, shape.padded_intermediate // mx.BLOCK),
    ):
        scales = torch.arange(rows * columns, device=device).reshape(rows, columns)
        scales = (scales * 7 // 3 % 251).to(torch.uint8)
        with ending.named("quantizer"):
            laid = interleave(scales).flatten()
            same = torch.equal(laid.view(torch.uint8), mx.swizzle(scales))
        if not same:
            raise WrongError("scale_layout_wrong")
