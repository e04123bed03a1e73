"""What must hold of every restart onto the safe value: of whom, by whom, and never of too many at once."""

from __future__ import annotations

from smgate.domain import decisions, drain_budget, exposure, readings
from smgate.domain.state import Fleet


def drained_onto_the_safe_value(fleet: Fleet, event: decisions.DrainOrdered) -> str | None:
    """A server is restarted off the target, onto the safe value, whole, and by nodes that hear it."""
    unit = fleet.units[event.unit]
    told, launch = unit.override, unit.launch
    if event.unit in fleet.drains or told is None or not exposure.is_safe_value(fleet, told):
        return f"{event.unit} was drained twice at once, or is not told the safe value"
    if launch is None or event.launch_ids != launch.launch_ids:
        return f"{event.unit} was drained for another launch than it runs"
    if not any(readings.on_target(fleet, one) for one in unit.live_instances()):
        return f"{event.unit} was drained and does not run the target"
    ranks = {rank.node for rank in launch.ranks.values()}
    if not ranks <= set(event.nodes) or any(fleet.nodes[n].silent for n in event.nodes):
        return f"{event.unit} was drained in part, or by a node that nobody hears"
    return None


def drains_within_the_budget(fleet: Fleet, event: decisions.DrainOrdered) -> str | None:
    """Never more servers of an SM are down for a drain than the policy allows."""
    unit, policy = fleet.units[event.unit], fleet.policy
    sm = exposure.unit_sm(fleet, unit)
    ordered = [u for u in fleet.drains if exposure.unit_sm(fleet, fleet.units[u]) == sm]
    if len(ordered) >= policy.max_units_down:
        return f"{event.unit} is the {len(ordered) + 1}th drain on SM {sm}"
    if not drain_budget.serves(fleet, unit):
        return None  # it is down already
    live = [
        one
        for one in fleet.units.values()
        if one.live and not one.excluded and not one.released
        if exposure.unit_sm(fleet, one) == sm
        if any(readings.target_of(fleet, instance) for instance in one.instances.values())
    ]
    down = [one for one in live if one.id in ordered or not drain_budget.serves(fleet, one)]
    left = len(live) - len(down) - 1
    if len(down) >= policy.max_units_down or left < policy.min_serving_share * len(live):
        return f"{event.unit} was drained with {len(down)} of {len(live)} down on SM {sm}"
    return None
