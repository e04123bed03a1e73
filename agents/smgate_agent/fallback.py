"""Decide whether MXFP4 experts are about to be, are, or were BF16.

Pure. Three answers, never two: a phase, fine, or unknown. Unknown neither raises nor clears.

An architecture that a gate names is judged by its resolved value also where nobody could read the
weights' format: it is served packed, and an alarm for nothing costs less than a silent fallback.
Whoever serves it in another format declares that, or lets the agent read the model's config.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from smgate_agent import sglang_names

Phase = Literal["imminent", "active", "crashed"]
Stage = Literal["loading", "loaded"]

EXCESS_RATIO: Final = 2
"""BF16 experts weigh 3.76 times packed ones; twice the most a packed rank may weigh is no noise."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What is known of one rank. None: not known."""

    stage: Stage
    architecture: str | None
    mxfp4: bool | None
    runner: str | None
    a2a: str | None
    weight_bytes: int | None
    expected_packed_bytes: int | None
    upcast_ran_out_of_memory: bool


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """`phase` None and `known` says that the experts are packed."""

    phase: Phase | None
    known: bool
    excess_bytes: int | None = None


UNKNOWN: Final = Verdict(phase=None, known=False)
PACKED: Final = Verdict(phase=None, known=True)


def judge(seen: Evidence, architectures: frozenset[str]) -> Verdict:
    """Judge one rank.

    Args:
        seen: The evidence.
        architectures: Those judged by the resolved value; any other MXFP4 model is judged by its
            measured bytes alone.
    """
    if seen.upcast_ran_out_of_memory:
        return Verdict(phase="crashed", known=True)
    if seen.mxfp4 is None and seen.architecture not in architectures:
        return UNKNOWN
    if seen.mxfp4 is False:
        return PACKED
    excess = _excess_bytes(seen)
    if excess is not None and _weighs_too_much(seen):
        return Verdict(phase="active", known=True, excess_bytes=excess)
    if seen.architecture is not None and seen.architecture not in architectures:
        return UNKNOWN if excess is None else PACKED
    return _by_value(seen, excess)


def _by_value(seen: Evidence, excess: int | None) -> Verdict:
    """By the resolved pair; one that is not known, or has no name here, cannot be judged."""
    unnamed = {None, sglang_names.OTHER}
    if seen.architecture is None or seen.runner in unnamed or seen.a2a in unnamed:
        return UNKNOWN
    if seen.runner not in sglang_names.UPCAST_RUNNERS or seen.a2a in sglang_names.MEGAMOE_A2A:
        return PACKED
    if seen.stage == "loading":
        return Verdict(phase="imminent", known=True)
    return Verdict(phase="active", known=True, excess_bytes=excess)


def _weighs_too_much(seen: Evidence) -> bool:
    assert seen.weight_bytes is not None
    assert seen.expected_packed_bytes is not None
    return seen.weight_bytes >= EXCESS_RATIO * seen.expected_packed_bytes


def _excess_bytes(seen: Evidence) -> int | None:
    if seen.weight_bytes is None or not seen.expected_packed_bytes:
        return None
    return max(0, seen.weight_bytes - seen.expected_packed_bytes)
