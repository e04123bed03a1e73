"""What the log says of kernel keys, folded: results per GPU set, and what was asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from smgate.domain.facts import CheckFinished
from smgate.domain.values import Build, Layout

Standing = Literal["unknown", "qualified", "suspect", "failed"]
GpuSet = tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class Unproven:
    """A result that counts for nothing: its control missed, or its probe version is not proven."""

    fact: CheckFinished
    position: int
    at_us: int
    since_led_us: int
    lacks: Literal["negative_control", "baseline_proof"]


@dataclass(slots=True, kw_only=True)
class UnprovenProbe:
    """A probe version whose results are held until it has passed on a baseline SM."""

    position: int
    since_led_us: int


@dataclass(slots=True, kw_only=True)
class SetEvidence:
    """Worst result per check of one GPU set for one kernel key."""

    node: str
    chassis: str
    rack: str | None
    pool: bool
    worst: dict[str, CheckFinished] = field(default_factory=dict)
    passed: dict[str, int] = field(default_factory=dict)
    """Check -> where in the log it passed last: a failure is confirmed by what ran after it."""
    at_us: int = 0
    flaky: set[str] = field(default_factory=set)
    """Checks that passed after a failure: a failure until a person rules."""
    flaky_led_us: int = 0
    flaky_position: int = 0
    unproven: dict[tuple[str, str], Unproven] = field(default_factory=dict)
    """(check, probe version) -> what was measured and counts for nothing, as yet."""


@dataclass(slots=True, kw_only=True)
class KeyEvidence:
    """Everything known of one kernel key."""

    key: str
    sm: str
    build: Build
    layout: Layout
    a2a: str
    position: int
    standing: Standing = "unknown"
    suspect_led_us: int = 0
    suspect_position: int = 0
    qualified_at_us: int = 0
    qualified_position: int = 0
    accepted_like: str | None = None
    """The key whose evidence a person accepted for this one."""
    sets: dict[GpuSet, SetEvidence] = field(default_factory=dict)
    faulty_sets: set[GpuSet] = field(default_factory=set)
    """GPU sets whose failure is the node's own: enough others passed since, or a person said so."""
    confirmed_sets: set[GpuSet] = field(default_factory=set)
    """GPU sets whose failure a person called the build's."""


@dataclass(slots=True, kw_only=True)
class WantedCheck:
    """Checks asked of one launch."""

    kernel_key: str
    launch_id: str
    node: str
    gpu_uuids: GpuSet
    checks: tuple[str, ...]
    purpose: Literal["qualify", "confirm", "prove"]
    position: int
    since_led_us: int
    finished: set[str] = field(default_factory=set)
    abandoned: bool = False

    @property
    def open(self) -> bool:
        """True while a check of it has no result and its timer runs."""
        return not self.abandoned and not self.finished.issuperset(self.checks)
