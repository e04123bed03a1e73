"""What the log says of taking back, folded: whose decision became the safe value, and restarts onto it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class TakenBack:
    """The decision became the safe value while the unit ran the target."""

    position: int
    since_led_us: int


@dataclass(slots=True, kw_only=True)
class Drain:
    """One order to restart a unit onto the safe value, until it serves that or the order ends."""

    order: int
    """Position of the order: its name."""
    code: str
    launch_ids: tuple[str, ...]
    """The launch it was ordered for; a restart is a launch with other ids."""
    nodes: tuple[str, ...]
    since_led_us: int
    timeout_s: int
    hook: str | None = None
    """How the drain hook ended, as its node reported it; None while none has."""
    hook_exit_code: int | None = None
    failed: str | None = None
    """Why it failed. A failed one stays until the unit serves the safe value or needs it no more."""
    failed_led_us: int = 0
    failed_position: int = 0
