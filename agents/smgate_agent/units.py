"""Byte quantities as the agent reports them."""

from __future__ import annotations

from typing import Final

GIB: Final = 1 << 30
STEP: Final = GIB // 2
"""Weights are reported to half a GiB, so that noise in a reading is not a new fact."""


def gib_to_bytes(gib: float) -> int:
    """SGLang's "GB" is a GiB; the nearest half of one, in bytes."""
    return round(gib * 2) * STEP


def to_step(byte_count: float) -> int:
    """The nearest half GiB."""
    return round(byte_count / STEP) * STEP
