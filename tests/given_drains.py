"""The language of `tests.given` for servers that are restarted onto the safe value."""

from __future__ import annotations

from tests import given

from smgate.domain import commands, decisions, facts

HOUR_S = 3600


def fleet_on_target(*nodes, **numbers):
    """Servers that a hook restarts, all granted the target and serving on it."""
    fleet = given.Fleet(**numbers).enforce().qualified()
    fleet.node(*nodes)
    for node in nodes:
        fleet.launch(node)
    fleet.rollout()
    for node in nodes:
        fleet.restarts(node, restarter="hook")
    return fleet


def pin_off(fleet, *units):
    for unit in units:
        fleet.orders(commands.PinUnit(unit=unit, direction="off", reason="it answers nonsense"))


def orders(fleet):
    """The units that were ordered to restart, in order."""
    return [event.unit.partition(":")[0] for event in fleet.seen(decisions.DrainOrdered)]


def ended(fleet):
    """How orders ended."""
    kinds = decisions.DrainFinished | decisions.DrainFailed
    found = [r.event for r in fleet.history if isinstance(r.event, kinds)]
    return [(event.unit.partition(":")[0], event.code) for event in found]


def waiting(fleet, code="drain_waits"):
    """For each unit that waits so: for whom."""
    return {w.subject.partition(":")[0]: w.owner for w in fleet.waits if w.code == code}


def hook_ends(fleet, node, outcome="succeeded", exit_code=None):
    unit = fleet.id(node)
    order = fleet.state.drains[unit].order
    ending = facts.DrainHookEnded(order=order, unit=unit, outcome=outcome, exit_code=exit_code)
    fleet.says(node, ending)
