"""Owns whether a launch's routed experts fit its GPUs, from the little that a launch gate reports.

The experts are nearly all of such a model, and everything else comes on top. So what this calls too
much is too much; what it calls enough may still run out. `smgate memory estimate` has all parts.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Final, Literal

from smgate.domain.memory import parts
from smgate.domain.memory.estimate import CONTEXT_BYTES, GIB
from smgate.domain.values import Layout

SHAPES_KEPT: Final = 1024
"""Layouts whose bytes are remembered: every rank has one, and few are distinct."""

Form = Literal["packed", "bf16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """Bytes of routed experts of one GPU of the pipeline stage that has most of them."""

    packed_bytes: int
    bf16_bytes: int
    converting_bytes: int
    """The most that stands at once while a fallback converts the last layer."""


@functools.lru_cache(maxsize=SHAPES_KEPT)
def experts(layout: Layout, a2a: str) -> Experts | None:
    """What the experts of a launch take on one GPU; None where a part of the shape is unknown."""
    ep = layout.tp if a2a in parts.A2A_OVER_ALL_OF_TP else layout.ep
    shape = (layout.experts, layout.hidden_size, layout.intermediate_size, layout.expert_layers)
    if 0 in shape or layout.tp % ep:
        return None
    layer = parts.expert_layer(
        experts=layout.experts // ep,  # redundant ones, which are not reported, come on top
        hidden=layout.hidden_size,
        intermediate=layout.intermediate_size // (layout.tp // ep),
    )
    layers = -(-layout.expert_layers // layout.pp)  # the fullest stage has at least its share
    done = layer.bf16.total * (layers - 1)
    return Experts(
        packed_bytes=layer.packed.total * layers,
        bf16_bytes=layer.bf16.total * layers,
        converting_bytes=done + layer.unresolved_loading.total + layer.bf16_w13 + layer.bf16_w2,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The experts of one launch against the memory of one of its GPUs."""

    form: Form
    packed_bytes: int
    bf16_bytes: int
    free_bytes: int
    """What a GPU has for a server: its memory less a CUDA context."""
    fits: bool
    """False: it cannot come up as it would run. True: the experts alone do not prevent it."""
    fallback_fits: bool
    """False: a BF16 fallback would crash. True: it may fit, run slow, and hide."""

    @property
    def sentence(self) -> str:
        """In words, with the numbers."""
        packed, bf16 = f"{self.packed_bytes / GIB:.0f} GiB", f"{self.bf16_bytes / GIB:.0f} GiB"
        has = f"per GPU, and one has {self.free_bytes / GIB:.0f} GiB"
        if self.form == "bf16" and not self.fits:
            return f"In BF16 its experts take {bf16} {has}: it runs out of memory as it loads."
        if not self.fits:
            return f"Packed its experts take {packed} {has}: it cannot load in this layout."
        outcome = "fit, run slow, and hide" if self.fallback_fits else "run out of memory"
        return (
            f"Packed its experts take {packed} {has}; a BF16 fallback takes {bf16} and would "
            f"{outcome}."
        )


def of_launch(layout: Layout, *, a2a: str, memory_bytes: int, form: Form) -> Fit | None:
    """Whether the experts of a launch fit one of its GPUs; None where too little is known.

    Args:
        layout: as the launch gate read it.
        a2a: the a2a backend of the launch.
        memory_bytes: total memory of its smallest GPU, 0 if unknown.
        form: what the server would make of its experts.
    """
    found = experts(layout, a2a)
    if found is None or memory_bytes <= CONTEXT_BYTES:
        return None
    free_bytes = memory_bytes - CONTEXT_BYTES
    fallback_fits = found.converting_bytes <= free_bytes
    return Fit(
        form=form,
        packed_bytes=found.packed_bytes,
        bf16_bytes=found.bf16_bytes,
        free_bytes=free_bytes,
        fits=found.packed_bytes <= free_bytes if form == "packed" else fallback_fits,
        fallback_fits=fallback_fits,
    )
