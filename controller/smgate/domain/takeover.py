"""What a rollout takes over from the one it supersedes: grants, and the kernel keys that had baked."""

from __future__ import annotations

from collections.abc import Iterable

from smgate.domain import exposure, readings
from smgate.domain.state import Fleet
from smgate.domain.state_rollouts import Rollout, Wave


def baked_keys(fleet: Fleet, before: Rollout) -> tuple[str, ...]:
    """Kernel keys that a unit of this rollout has baked: a successor goes on with them."""
    found: set[str] = set()
    for unit in fleet.units.values():
        if exposure.good(fleet, unit, before):
            found |= readings.launch_keys(fleet, unit) or set()
    return tuple(sorted(found))


def carry_over(fleet: Fleet, before: Rollout, rollout: Rollout, *, baked: Iterable[str]) -> None:
    """The grants of a superseded rollout are from now on its successor's: none starts anew."""
    taken: dict[str, None] = {}
    for name, unit in sorted(fleet.units.items()):
        for grant in unit.grants:
            if grant.rollout == before.plan.id:
                grant.rollout = rollout.plan.id
                taken[name] = None
    rollout.carried_keys = frozenset(baked)
    rollout.carried = Wave(
        number=-1,
        units=tuple(taken),
        eligible=len(taken),
        position=rollout.phase_position,
        since_led_us=rollout.since_led_us,
        verdict="passed",
    )
