"""Fold of taking back: whose decision became the safe value, and the orders to restart onto it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from smgate.domain import decisions, exposure, facts
from smgate.domain.events import Recorded
from smgate.domain.state import Fleet, Unit
from smgate.domain.state_drains import Drain, TakenBack

Handler = Callable[[Fleet, Recorded, Any], None]


def note_taken_back(fleet: Fleet, unit: Unit, recorded: Recorded) -> None:
    """Remember from when on a unit has run the target against a decision for the safe value."""
    if not exposure.is_safe_value(fleet, unit.override):
        unit.taken_back = None
    elif unit.taken_back is None and exposure.runs_target(fleet, unit):
        unit.taken_back = TakenBack(
            position=recorded.position, since_led_us=fleet.led_us(recorded.at_us)
        )


def stop_clocks(fleet: Fleet, led_us: int) -> None:
    """What was reported while nobody led begins now: the led clock stood still."""
    for unit in fleet.units.values():
        if unit.taken_back is not None:
            unit.taken_back.since_led_us = min(unit.taken_back.since_led_us, led_us)


def _ordered(fleet: Fleet, recorded: Recorded, event: decisions.DrainOrdered) -> None:
    fleet.drains[event.unit] = Drain(
        order=recorded.position,
        code=event.code,
        launch_ids=event.launch_ids,
        nodes=event.nodes,
        since_led_us=fleet.led_us(recorded.at_us),
        timeout_s=event.timeout_s,
    )


def _finished(fleet: Fleet, recorded: Recorded, event: decisions.DrainFinished) -> None:
    del fleet.drains[event.unit]


def _failed(fleet: Fleet, recorded: Recorded, event: decisions.DrainFailed) -> None:
    drain = fleet.drains[event.unit]
    drain.failed = event.code
    drain.failed_led_us = fleet.led_us(recorded.at_us)
    drain.failed_position = recorded.position


def note_hook(fleet: Fleet, node: str, fact: facts.DrainHookEnded) -> None:
    """A node tells how the drain hook of an order ended there."""
    drain = fleet.drains.get(fact.unit)
    if drain is None or drain.order != fact.order or node not in drain.nodes:
        return  # of an order that has ended
    if drain.hook in (None, "succeeded"):  # of several nodes' the first that went wrong
        drain.hook, drain.hook_exit_code = fact.outcome, fact.exit_code


HANDLERS: dict[type, Handler] = {
    decisions.DrainOrdered: _ordered,
    decisions.DrainFinished: _finished,
    decisions.DrainFailed: _failed,
}
