"""What units wait for that are restarted onto the safe value, or must be. `make` makes one wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from smgate.domain import drain_budget, drains
from smgate.domain.state import Fleet

W = TypeVar("W")


def ordered(fleet: Fleet, make: Callable[..., W]) -> Iterator[W]:
    """Orders that have not ended, and those that failed."""
    for name, drain in sorted(fleet.drains.items()):
        if drain.failed is None:
            yield make(
                code="drain",
                subject=name,
                owner="node",
                since_led_us=drain.since_led_us,
                position=drain.order,
                timeout_s=drain.timeout_s,
                sentence=f"Ordered to restart onto the safe value ({drain.code}); its drain hook "
                + ("was run." if drain.hook else "has not ended yet."),
                next_step="Nothing: it ends when the server serves the safe value, or fails.",
            )
        else:
            yield make(
                code="drain_failed",
                subject=name,
                owner="unit owner",
                since_led_us=drain.failed_led_us,
                position=drain.failed_position,
                timeout_s=drain.timeout_s,
                sentence=f"Its restart onto the safe value failed ({drain.failed}). It is not ordered "
                "again, and it uses up the drain budget of its SM.",
                next_step="Restart it yourself: it starts on the safe value. "
                f"smgate drain ls; smgate unit history {name}",
            )


def before(fleet: Fleet, needs: Mapping[str, drains.Need], make: Callable[..., W]) -> Iterator[W]:
    """Units that must be restarted onto the safe value and are not ordered to: for whom they wait."""
    budgets: dict[str, drain_budget.Budget] = {}
    for name, need in needs.items():
        unit = fleet.units[name]
        stands = drains.stands(fleet, unit, need, budgets)
        if stands is None or unit.taken_back is None:
            continue
        yield make(
            code="drain_waits",
            subject=name,
            owner=stands.owner,
            since_led_us=unit.taken_back.since_led_us,
            position=unit.taken_back.position,
            timeout_s=fleet.policy.grant_timeout_s,
            sentence=f"Runs the target, must come onto the safe value ({need.code}), and is not "
            f"restarted yet: {stands.sentence}",
            next_step=stands.next_step,
        )
