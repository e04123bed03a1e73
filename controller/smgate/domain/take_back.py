"""How far taking back has come: decided, told, safe. Three numbers that are never merged.

A unit is being taken back while its decision is the safe value and it ran the target under it: until
it is given the target again, or nobody steers it any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from smgate.domain import drain_asks, drain_budget, drains, exposure, why
from smgate.domain.state import Fleet, Unit


@dataclass(slots=True, kw_only=True)
class Stages:
    """Units of one SM: each number counts for itself."""

    decided: int = 0
    """Units whose decision became the safe value while they ran the target."""
    told: int = 0
    """Of those, whose nodes all hold that decision."""
    safe: int = 0
    """Of those, whose ranks all attested the safe value. A server that is down attests nothing."""


def held_by_facts(unit: Unit) -> dict[str, int]:
    """The newest directive each node is known to hold, from facts alone."""
    held: dict[str, int] = {}
    for rank in unit.launch.ranks.values() if unit.launch else ():
        applied = rank.applied.generation if rank.applied else None
        for generation in (rank.planned.held_generation, applied):
            if generation is not None:
                held[rank.node] = max(generation, held.get(rank.node, 0))
    return held


def is_told(unit: Unit, held: Mapping[str, int]) -> bool:
    """True if every node of a unit's decision is known to hold it.

    Args:
        unit: the unit.
        held: by node, the generation that its last heartbeat said it holds.
    """
    if unit.override is None or not unit.override.nodes:
        return False
    known = held_by_facts(unit)
    return all(
        max(known.get(name, 0), held.get(name, 0)) >= unit.override_position
        for name in unit.override.nodes
    )


def stages(fleet: Fleet, held: Mapping[str, int]) -> dict[str, Stages]:
    """The three numbers, by SM."""
    found: dict[str, Stages] = {}
    for unit in _units(fleet):
        one = found.setdefault(exposure.unit_sm(fleet, unit) or "unknown", Stages())
        one.decided += 1
        one.told += is_told(unit, held)
        one.safe += drain_budget.is_safe(fleet, unit)
    return found


def rows(fleet: Fleet, held: Mapping[str, int], now_us: int) -> list[dict[str, Any]]:
    """Every unit that is being taken back, those that are not safe yet first, the longest waiting first."""
    budgets: dict[str, drain_budget.Budget] = {}
    found = [_row(fleet, unit, held, now_us, budgets) for unit in _units(fleet)]
    return sorted(found, key=lambda row: (row["safe"], row["position"], row["unit"]))


def _units(fleet: Fleet) -> Iterator[Unit]:
    for name in sorted(fleet.units):
        unit = fleet.units[name]
        if unit.live and unit.taken_back is not None:
            yield unit


def _row(
    fleet: Fleet,
    unit: Unit,
    held: Mapping[str, int],
    now_us: int,
    budgets: dict[str, drain_budget.Budget],
) -> dict[str, Any]:
    assert unit.taken_back is not None
    assert unit.override is not None
    since_led_us = min(unit.taken_back.since_led_us, fleet.led_us(now_us))
    return {
        "unit": unit.id,
        "sm": exposure.unit_sm(fleet, unit),
        "code": unit.override.code,
        "position": unit.taken_back.position,
        "since": why.iso(fleet.wall_us(since_led_us)),
        "decided": True,
        "told": is_told(unit, held),
        "safe": drain_budget.is_safe(fleet, unit),
        **_restart(fleet, unit, now_us, budgets),
    }


def _restart(
    fleet: Fleet, unit: Unit, now_us: int, budgets: dict[str, drain_budget.Budget]
) -> dict[str, Any]:
    """Where its restart stands, whose move it is, and what to do."""
    drain = fleet.drains.get(unit.id)
    if drain is not None:
        failed = drain.failed is not None
        return {
            "restart": f"failed: {drain.failed}" if failed else "ordered",
            "order": drain.order,
            "owner": "unit owner" if failed else "node",
            "next_step": "Restart it yourself: it starts on the safe value." if failed else "",
        }
    need = drains.need(fleet, unit, now_us)
    if need is None:
        runs = exposure.runs_target(fleet, unit)
        return {
            "restart": "next start" if runs else "none",
            "order": None,
            "owner": "unit owner" if runs else None,
            "next_step": "Restart it when it suits its owner." if runs else "",
        }
    stands = drains.stands(fleet, unit, need, budgets)
    change = drain_asks.of_key(fleet, need.kernel_key or "")
    if stands is None:
        name = "" if change is None else change.id
        return {
            "restart": "asked",
            "order": None,
            "owner": "approver",
            "next_step": f"smgate change show {name}",
        }
    return {
        "restart": f"waits: {stands.code}",
        "order": None,
        "owner": stands.owner,
        "next_step": stands.next_step,
    }
