"""What time alone turns: evidence that grows old, windows that begin and end, freezes that are over."""

from __future__ import annotations

from smgate.domain import rulings, windows
from smgate.domain.events import Event
from smgate.domain.state import Fleet
from smgate.domain.windows import SECOND_US


def thaw(fleet: Fleet, now_us: int) -> list[Event]:
    """Freezes whose end has come."""
    return [
        rulings.FreezeLifted(id=name, reason="Its end has come.")
        for name, at_us in sorted(fleet.freeze_ends.items())
        if at_us <= now_us
    ]


def next_us(fleet: Fleet, now_us: int) -> int | None:
    """When time alone changes what many units may do: evidence grows old, a window begins or ends."""
    age_us = fleet.policy.evidence_max_age_s * SECOND_US + 1
    ends = (k.qualified_at_us + age_us for k in fleet.keys.values() if k.standing == "qualified")
    turns = [end for end in ends if end > now_us]
    for rollout in fleet.rollouts.values():
        if rollout.phase not in ("halted", "aborted"):
            edge_us = windows.next_edge_us(rollout.plan.freeze_windows, now_us)
            turns += [edge_us] if edge_us is not None else []
    return min(turns, default=None)
