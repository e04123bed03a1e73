"""An alarm that was raised, folded."""

from __future__ import annotations

from dataclasses import dataclass

Alarm = tuple[str, str, str]
"""What an episode is of: (gate, SM, cause)."""


@dataclass(slots=True, kw_only=True)
class Episode:
    """One alarm."""

    id: str
    gate: str
    sm: str
    cause: str
    units: tuple[str, ...]
    sentence: str
    opened_us: int
    position: int
    absent_led_us: int | None = None
    closed_us: int | None = None
