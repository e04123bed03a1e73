"""Judges an output against a reference. Each measure that is bad has its own reason code.

The projects' own tests are too loose to stand guard: an error of ten percent passes every one of
them. Beside each bound stands what they allow. FlashInfer's tests are read at its commit fb28d7242; SGLang 0.5.23 has no numeric test of this kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

Tensor = Any

POISON_BITS = 0x7FEB
"""A BF16 NaN that no arithmetic makes: what still has it was never written."""
ZERO_SHARE_MAX = 0.001
"""Zeros where the reference is away from zero. FlashInfer's `check_accuracy`
(tests/moe/trtllm_gen_fused_moe_utils.py:964) counts elements, and up to 8 percent may be anything, zero
too."""
NEAR_ZERO_SHARE = 0.05
"""Of the reference's root mean square: below it a right output may be zero, since BF16 parts of a sum
cancel. SGLang's `marlin` on an H200 gave 2 exact zeros in the 3,584 elements of one token, half of what
the bound allows. All of an output that is zero has 96 percent of its elements above this."""
COSINE_MIN = 0.999
"""No test upstream looks at direction. Reports of outputs good enough to serve quote 0.973 against
BF16; against a reference that rounds as the kernel does, rounding alone leaves 0.9999."""
RELATIVE_ERROR_MAX = 0.03
"""Norm of the difference over norm of the reference. FP8's own rounding between the two products is
0.027 by itself, and the reference shares it. FlashInfer allows 0.85 of each of 92 percent of the
elements (the same `check_accuracy`), or 0.5 of 97 percent (tests/moe/utils.py:965); vLLM 0.3 of 80
percent (tests/kernels/moe/test_ocp_mx_moe.py)."""
ELEMENT_ERROR_MAX = 0.5
"""The largest single difference over the reference's root mean square: one wrong row or column in a
million elements shows. FlashInfer allows 8 percent of the elements to be anything."""
CONTROL_SHARE = 0.9
"""A reference off by ten percent: the smallest error that the control must see."""


@dataclass(frozen=True)
class Measures:
    """What was measured of one output. Shares are of all its elements."""

    unwritten_share: float
    nan_share: float
    zero_share: float
    cosine: float
    relative_error: float
    element_error: float

    def bad(self) -> str | None:
        """The reason code of the first measure out of bounds, or None."""
        within = {
            "output_not_written": self.unwritten_share == 0,
            "output_nan": self.nan_share == 0,
            "output_zero": self.zero_share <= ZERO_SHARE_MAX,
            "cosine_low": self.cosine >= COSINE_MIN,
            "relative_error_high": self.relative_error <= RELATIVE_ERROR_MAX,
            "element_error_high": self.element_error <= ELEMENT_ERROR_MAX,
        }
        return next((reason for reason, holds in within.items() if not holds), None)


def poisoned(rows: int, columns: int, device: str) -> Tensor:
    """An output buffer full of NaN."""
    bits = torch.full((rows, columns), POISON_BITS, dtype=torch.int16, device=device)
    return bits.view(torch.bfloat16)


def measure(output: Tensor, expected: Tensor) -> Measures:
    """Compare a BF16 output with a float32 reference."""
    unwritten = (output.view(torch.int16) == POISON_BITS).double().mean().item()
    values = output.float()
    wrong = ~torch.isfinite(values)
    away = expected.abs() > NEAR_ZERO_SHARE * expected.double().square().mean().sqrt()
    zeros = ((values == 0) & away).double().mean().item()
    nan_share = wrong.double().mean().item()
    values = torch.where(wrong, torch.zeros_like(values), values).double()
    wanted = expected.double()
    difference = values - wanted
    size = wanted.norm().clamp_min(1e-30)
    return Measures(
        unwritten_share=unwritten,
        nan_share=nan_share,
        zero_share=zeros,
        cosine=((values * wanted).sum() / (values.norm().clamp_min(1e-30) * size)).item(),
        relative_error=(difference.norm() / size).item(),
        element_error=(difference.abs().max() / (size / wanted.numel() ** 0.5)).item(),
    )


def is_scaled(output: Tensor, expected: Tensor) -> bool:
    """Whether the output is right but for one factor."""
    values, wanted = output.double(), expected.double()
    factor = (values * wanted).sum() / (wanted * wanted).sum()
    return measure((output.double() / factor).to(torch.bfloat16), expected).bad() is None


def tells_apart(output: Tensor, references: list[Tensor]) -> bool:
    """The negative control. Of references that exclude each other at most one may be accepted.

    The right one is among them: beside it no deliberately wrong one may pass. It holds for a wrong
    output too, which may well be what one of the wrong references gives. A judge that refuses all
    is told by the positive control, which the controller asks of a baseline GPU.
    """
    accepted = [one for one in references if measure(output, one).bad() is None]
    return len(accepted) <= 1
