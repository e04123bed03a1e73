"""Which machines should exist, which are out of reach together, and which are two, folded."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class Inventory:
    """What people said should exist, what of it is missing, and what an outage took."""

    position: int = 0
    expected: dict[str, str] = field(default_factory=dict)
    """SM per machine that should exist."""
    without_agent: dict[str, str] = field(default_factory=dict)
    """Those that never enrolled or are retired."""
    unreachable: dict[str, None] = field(default_factory=dict)
    """Nodes that an outage of the fleet took and that are not back yet."""
    cloned: dict[str, int] = field(default_factory=dict)
    """Nodes as which two machines report, and when that was last seen, by the led clock."""
