"""Fold: one event into the state. Never refuses, never has effects: it already happened."""

from __future__ import annotations

from collections.abc import Iterable

from smgate.domain import (
    evolve_changes,
    evolve_decisions,
    evolve_drains,
    evolve_facts,
    evolve_rulings,
    named,
    touches,
)
from smgate.domain.events import Recorded
from smgate.domain.facts import CheckFinished
from smgate.domain.redaction import Erased, FactRedacted
from smgate.domain.state import Fleet

_HANDLERS = {
    **evolve_facts.HANDLERS,
    **evolve_rulings.HANDLERS,
    **evolve_decisions.HANDLERS,
    **evolve_changes.HANDLERS,
    **evolve_drains.HANDLERS,
    # What was erased, and the order to, leave nothing: as if it had never been reported.
    Erased: lambda *_: None,
    FactRedacted: lambda *_: None,
}
"""One handler per event class; a test holds the keys equal to the union `events.Event`."""


def evolve(fleet: Fleet, recorded: Recorded) -> Fleet:
    """Take one event in. Changes `fleet` in place and returns it.

    Positions at or below the fleet's are ignored, so overlapping reads do no harm.
    """
    if recorded.position <= fleet.position:
        return fleet
    fleet.position = recorded.position
    if recorded.at_us > fleet.now_us:
        fleet.now_us = recorded.at_us
    event, moves = recorded.event, fleet.moves
    kind = type(event)
    fleet.events_total[kind.__name__] += 1
    if kind in named.SPEAKS and not named.take(fleet, recorded):
        fleet.world_position = recorded.position
        return fleet
    before = touches.concerned(fleet, recorded)
    if fleet.open_changes:
        evolve_changes.watch(fleet, recorded)
    _HANDLERS[kind](fleet, recorded, event)
    moved = fleet.moves != moves or kind is CheckFinished
    touches.mark(fleet, recorded, before, touches.concerned(fleet, recorded) if moved else before)
    return fleet


def fold(history: Iterable[Recorded], fleet: Fleet | None = None) -> Fleet:
    """Fold a history, from nothing or onto a state."""
    state = Fleet() if fleet is None else fleet
    for recorded in history:
        evolve(state, recorded)
    return state
