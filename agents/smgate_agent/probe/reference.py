"""What the fused SiTU MoE must compute, in plain torch, and the proof that this reference is right.

`self_check` compares every part with literal numbers worked out by hand. A torch whose operations
are broken is told apart from a broken kernel by it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from smgate_agent.probe import ending, mx

Tensor = Any
Activation = Callable[[Tensor, Tensor], Tensor]

SITU_BETA, SITU_LINEAR_BETA = 4.0, 25.0
"""Kimi K3's `activation_situ_beta` and `activation_situ_linear_beta`."""


@dataclass(frozen=True)
class Experts:
    """This rank's experts, packed, in the checkpoint's order: gate rows, then up rows."""

    w13: Tensor
    w13_scales: Tensor
    w2: Tensor
    w2_scales: Tensor
    offset: int
    """The number that the first of them has among all experts."""

    def __len__(self) -> int:
        return int(self.w13.shape[0])

    def scaled_by(self, w13_scales: Tensor, w2_scales: Tensor) -> Experts:
        """The same values under other scales."""
        return replace(self, w13_scales=w13_scales, w2_scales=w2_scales)


def situ(gate: Tensor, up: Tensor) -> Tensor:
    """SiTU: a soft clip of gate and up, gated by sigmoid (SGLang `SituAndMul.forward_native`)."""
    gated = SITU_BETA * torch.tanh(gate / SITU_BETA) * torch.sigmoid(gate)
    return gated * SITU_LINEAR_BETA * torch.tanh(up / SITU_LINEAR_BETA)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """What most other models use; a kernel without SiTU computes this."""
    return gate * torch.sigmoid(gate) * up


def swapped(gate: Tensor, up: Tensor) -> Tensor:
    """SiTU with its halves exchanged."""
    return situ(up, gate)


def moe(
    hidden: Tensor,
    ids: Tensor,
    weights: Tensor,
    experts: Experts,
    *,
    activation: Activation = situ,
    expert_shift: int = 0,
) -> Tensor:
    """The output of this rank, float32.

    As the kernel does, what lies between the two products is rounded to MXFP8. `expert_shift` makes a
    deliberately wrong one: each choice goes to the next expert.
    """
    output = torch.zeros(hidden.shape, dtype=torch.float32, device=hidden.device)
    chosen = ids.flatten()
    order = torch.argsort(chosen, stable=True)
    counts = torch.bincount(chosen, minlength=experts.offset + len(experts)).tolist()
    begin = sum(counts[: experts.offset])
    for local in range(len(experts)):
        count = counts[experts.offset + local]
        picks = order[begin : begin + count]
        begin += count
        if not count:
            continue
        tokens = picks // ids.shape[1]
        other = (local + expert_shift) % len(experts)
        w13 = mx.decode_mxfp4(experts.w13[other], experts.w13_scales[other])
        gate, up = (hidden[tokens] @ w13.T).chunk(2, dim=-1)
        inner = mx.decode_mxfp8(*mx.encode_mxfp8(activation(gate, up)))
        w2 = mx.decode_mxfp4(experts.w2[other], experts.w2_scales[other])
        share = weights.flatten()[picks].float().unsqueeze(-1)
        output.index_add_(0, tokens, (inner @ w2.T) * share)
    return output


def self_check(device: str) -> None:
    """Compare every part with numbers worked out by hand.

    Raises:
        EndedError: one of them differs. Nothing can be said of a kernel then.
    """
    with torch.device(device):
        _self_check()


def _self_check() -> None:
    for found, expected in (
        *_formats(),
        (situ(torch.tensor([2.0, -1.0]), torch.tensor([10.0, 50.0])), SITU_BY_HAND),
        (swiglu(torch.tensor([2.0]), torch.tensor([10.0])), [17.615942]),
        (_moe_of_one_block(), MOE_BY_HAND),
    ):
        wanted = torch.tensor(expected, dtype=torch.float32)
        if found.shape != wanted.shape or not torch.allclose(
            found.float(), wanted, rtol=1e-5, atol=1e-6, equal_nan=True
        ):
            raise ending.EndedError("error", "reference_broken")


SITU_BY_HAND = [15.465117, -6.349931]
"""4 tanh(2/4) s(2) 25 tanh(10/25) and 4 tanh(-1/4) s(-1) 25 tanh(50/25), s the sigmoid."""
MOE_BY_HAND = [[4.5, 0.0, 0.0, 5.625], [18.0, 0.0, 0.0, 0.0]]
"""The first four columns of both tokens of `_moe_of_one_block`.

Gate and up of expert 4 are 2 and 10 for both tokens: SiTU 15.465, at a scale of 2^-4 the FP8 value
247.4, rounded to 240: 15. Times 1.5 at a scale of 1/2 and a weight of 0.5: 5.625. Of expert 5 they are
-1 and 40: SiTU -6.071, at 2^-6 the value -388.6, rounded to -384: -6. Times -3: 18, and 4.5 at a weight
of 0.25. Choice 6 is another rank's expert.
"""


def _formats() -> tuple[tuple[Tensor, list[Any]], ...]:
    nibbles = torch.tensor([[16 * (2 * n + 1) + 2 * n for n in range(8)] * 2], dtype=torch.uint8)
    one = torch.tensor([[128]], dtype=torch.uint8)
    scales = torch.tensor([1, 120, 127, 128, 254, 255], dtype=torch.uint8)
    largest = torch.tensor([448.0, 449.0, 224.0, 7.0, 0.0])
    fours = torch.tensor([0.25, 0.26, -0.75, 1.25, 2.5, 3.5, 5.0, 5.1, 99.0])
    eights = torch.tensor([1.06, 1.0626, 17.0, 19.0, 500.0, -0.001])
    tile = mx.swizzle(torch.arange(160 * 5, dtype=torch.int32).view(160, 5))
    picked = tile[torch.tensor([0, 3, 4, 8, 12, 16, 512, 513, 1024, 1028])]
    return (
        (mx.decode_mxfp4(nibbles, one), [[2 * value for value in mx.E2M1] * 2]),
        (mx.round_e2m1(fours), [0.0, 0.5, -1.0, 1.0, 2.0, 4.0, 4.0, 6.0, 6.0]),
        (mx.round_e4m3(eights), [1.0, 1.125, 16.0, 20.0, 448.0, -0.001953125]),
        (mx.decode_scales(scales), [2.0**-126, 2.0**-7, 1.0, 2.0, 2.0**127, float("nan")]),
        (mx.encode_scales(largest, 448.0), [127.0, 128.0, 126.0, 121.0, 0.0]),
        (picked, [0.0, 3.0, 160.0, 320.0, 480.0, 5.0, 4.0, 0.0, 640.0, 0.0]),
    )


def _moe_of_one_block() -> Tensor:
    """Two tokens, two local experts, one block of 32: few weights are not zero."""
    w13 = torch.zeros(2, 64, 16, dtype=torch.uint8)
    w2 = torch.zeros(2, 32, 16, dtype=torch.uint8)
    w13_scales = torch.full((2, 64, 1), 127, dtype=torch.uint8)
    w2_scales = torch.full((2, 32, 1), 127, dtype=torch.uint8)
    w13[0, 0, 0], w13[0, 32, 0], w13_scales[0, 32] = 0x02, 0x40, 128
    w13[1, 1, 0], w13[1, 33, 0], w13_scales[1, 33] = 0x09, 0x60, 129
    w2[0, 3, 0], w2_scales[0, 3] = 0x03, 126
    w2[1, 0, 0] = 0xD0
    hidden = torch.zeros(2, 32)
    hidden[:, 0], hidden[:, 1] = 2.0, 2.5
    experts = Experts(w13, w13_scales, w2, w2_scales, offset=4)
    ids = torch.tensor([[4, 5], [5, 6]])
    weights = torch.tensor([[0.5, 0.25], [1.0, 2.0]], dtype=torch.bfloat16)
    return moe(hidden, ids, weights, experts)[:, :4]
