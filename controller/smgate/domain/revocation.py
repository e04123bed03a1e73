"""Taking back what a rollout granted, as data: what a person asks, and what the log keeps of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from smgate.domain.values import Direction


@dataclass(frozen=True, slots=True, kw_only=True)
class RevokeGrants:
    """End what a rollout granted: to all, to one unit, or to the members of one wave."""

    DIRECTION: ClassVar[Direction] = "narrows"
    rollout: str
    unit: str | None = None
    wave: int | None = None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantRevoked:
    """A person took back what a rollout had granted to these units. Nothing went wrong by itself."""

    units: tuple[str, ...]
    rollout: str
    wave: int | None
    """The wave whose members they are, if one was named."""
    reason: str
