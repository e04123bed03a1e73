"""What one unit waits for, itself or in a plan or a wish about it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from smgate.domain import drains, waits, why_rollout
from smgate.domain.state import Fleet, Unit
from smgate.domain.state_changes import Change


def of_unit(fleet: Fleet, unit_id: str, now_us: int) -> list[dict[str, Any]]:
    """Its launch, grant, restart onto the safe value, and the open changes that name it."""
    found = _of_unit(fleet, fleet.units[unit_id], now_us)
    return [why_rollout.show_wait(fleet, wait, now_us) for wait in found]


def _of_unit(fleet: Fleet, unit: Unit, now_us: int) -> Iterator[waits.Wait]:
    yield from waits.of_unit(fleet, unit, now_us)
    need = drains.need(fleet, unit, now_us)
    needs = {} if need is None else {unit.id: need}
    named = {change.id for change in fleet.waiting_changes() if _names(change, unit)}
    for wait in waits.of_world(fleet, needs, now_us):
        if wait.subject == unit.id or wait.subject in named:
            yield wait


def _names(change: Change, unit: Unit) -> bool:
    return unit.id in change.units or change.body.get("unit") == unit.id
