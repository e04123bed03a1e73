"""The inputs of the kernel checks: a rank's real shapes, and numbers that show every kind of error.

Gate and up have different sizes (an exchange shows), both reach into the bends of SiTU, scales differ
from block to block (a wrong layout shows), and routing weights do not add up to one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from smgate_agent.probe import ending, mx, reference

Tensor = Any
Json = dict[str, Any]

ALIGNMENT = 128
"""SGLang pads both sizes of the fused kernel to this (`Mxfp4MoEMethod.create_weights`, 0.5.23)."""
TOKENS = (1, 16, 128, 1024, 6144, 8192)
"""One and few tokens decode; FlashInfer issue 4588 showed NaN only from 6144 tokens on."""
GATE_SIZE, UP_SIZE, INNER_SIZE = 2.5, 12.0, 1.0
"""Standard deviations aimed at: SiTU bends near 4 for the gate and near 25 for the up half."""
E2M1_SIZE = 2.93
"""Standard deviation of a uniform choice among the FP4 values."""
SCALE_SPREAD = (-2, 2)
"""Scale exponents are drawn from this half-open range around the one aimed at."""
ROUTING_SUM = 2.5
"""SGLang multiplies K3's renormalised weights by `routed_scaling_factor`; any sum but 1 shows it."""


@dataclass(frozen=True)
class Shape:
    """What one rank's fused call is given."""

    experts: int
    local_experts: int
    offset: int
    hidden: int
    intermediate: int
    padded_intermediate: int
    top_k: int


def shape(layout: Json) -> Shape:
    """The shape of the last rank: its experts have the largest offset.

    Raises:
        EndedError: skipped, the launch does not say how its experts are shaped.
    """
    experts, hidden, full, top_k = (
        int(layout.get(name) or 0)
        for name in ("experts", "hidden_size", "intermediate_size", "top_k")
    )
    if not (experts and hidden and full and 0 < top_k <= experts):
        raise ending.EndedError("skipped", "layout_unknown")
    ep = min(int(layout.get("ep") or 1), experts)
    shards = max(1, int(layout.get("tp") or 1) // ep)
    local = experts // ep
    intermediate = full // shards
    return Shape(
        experts=experts,
        local_experts=local,
        offset=local * (ep - 1),
        hidden=_padded(hidden),
        intermediate=intermediate,
        padded_intermediate=_padded(intermediate),
        top_k=top_k,
    )


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class Batch:
    """Tokens, the experts chosen for them (numbered among all), and how much each counts."""

    hidden: Tensor
    ids: Tensor
    weights: Tensor

    def __len__(self) -> int:
        return int(self.hidden.shape[0])

    def reversed(self) -> Batch:
        """The same tokens in reverse order: another input whose right output is known."""
        return Batch(self.hidden.flip(0), self.ids.flip(0), self.weights.flip(0))


class Source:
    """Draws inputs, the same ones for the same seed on the same kind of device."""

    def __init__(self, shape: Shape, device: str, seed: int) -> None:
        self.shape, self.device = shape, device
        self._generator = torch.Generator(device=device)
        self._generator.manual_seed(seed)

    def _bytes(self, low: int, high: int, *sizes: int) -> Tensor:
        return torch.randint(
            low, high, sizes, dtype=torch.uint8, device=self.device, generator=self._generator
        )

    def _scales(self, size: float, summands: int, *sizes: int) -> Tensor:
        """Scales under which a sum of so many products with unit inputs has this deviation."""
        wanted = math.log2(size / (E2M1_SIZE * math.sqrt(summands))) + 0.5
        middle = mx.SCALE_BIAS + math.floor(wanted)
        return self._bytes(middle + SCALE_SPREAD[0], middle + SCALE_SPREAD[1], *sizes)

    def experts(self) -> reference.Experts:
        """Random experts. What SGLang pads is zero under a neutral scale, as it is there."""
        shape = self.shape
        count, inner, hidden = shape.local_experts, shape.padded_intermediate, shape.hidden
        w13 = self._bytes(0, 256, count, 2, inner, hidden // 2)
        gate = self._scales(GATE_SIZE, hidden, count, inner, hidden // mx.BLOCK)
        up = self._scales(UP_SIZE, hidden, count, inner, hidden // mx.BLOCK)
        w13_scales = torch.stack((gate, up), dim=1)
        w2 = self._bytes(0, 256, count, hidden, inner // 2)
        w2_scales = self._scales(
            INNER_SIZE / (GATE_SIZE * UP_SIZE / 2), inner, count, hidden, inner // mx.BLOCK
        )
        w13[:, :, shape.intermediate :] = 0
        w13_scales[:, :, shape.intermediate :] = mx.SCALE_BIAS
        w2[:, :, shape.intermediate // 2 :] = 0
        return reference.Experts(
            w13=w13.flatten(1, 2),
            w13_scales=w13_scales.flatten(1, 2),
            w2=w2,
            w2_scales=w2_scales,
            offset=shape.offset,
        )

    def batch(self, tokens: int) -> Batch:
        """Random tokens. Of several ranks' experts every second choice is one of this rank's."""
        shape = self.shape
        hidden = torch.randn(
            tokens, shape.hidden, device=self.device, generator=self._generator
        ).to(torch.bfloat16)
        liking = torch.rand(tokens, shape.experts, device=self.device, generator=self._generator)
        own = slice(shape.offset, shape.offset + shape.local_experts)
        if shape.local_experts < shape.experts:
            liking[:, own] += torch.rand(tokens, 1, device=self.device, generator=self._generator)
            liking[:, shape.offset] += 1
        score, ids = liking.topk(shape.top_k, dim=-1)
        score = torch.sigmoid(2 * score - 2)
        weights = (score / score.sum(-1, keepdim=True) * ROUTING_SUM).to(torch.bfloat16)
        return Batch(hidden, ids.to(torch.int32), weights)
