"""What people ask of the fleet as a whole; the other commands are in `commands`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from smgate.domain.rulings import ExpectedNode
from smgate.domain.values import Direction


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectFleet:
    """Say which machines should exist; those without an agent are alarmed."""

    DIRECTION: ClassVar[Direction] = "narrows"
    nodes: tuple[ExpectedNode, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishRestore:
    """Let widening go on after a restore. What nodes held more carefully waits for `change accept`."""

    DIRECTION: ClassVar[Direction] = "widens"
    reason: str
