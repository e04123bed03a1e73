"""Owns saying what a command would change, before it is given: decided anew on a copy of the fleet."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any, Final

from smgate.domain import evolve, rules
from smgate.domain.events import Event, Recorded
from smgate.domain.state import Fleet
from smgate.service import records

CHANGES_SHOWN_MAX: Final = 200


def snapshot(fleet: Fleet) -> bytes:
    """The fleet, to be looked at later without holding it still. Much cheaper than a deep copy."""
    return pickle.dumps(fleet, protocol=pickle.HIGHEST_PROTOCOL)


def of_events(taken: bytes, events: Sequence[Event], *, by: str, now_us: int) -> dict[str, Any]:
    """Units whose decision would be another, at their next start, if these events stood.

    What a started rollout goes on to grant later is not in it: that waits for evidence and waves.
    """
    fleet: Fleet = pickle.loads(taken)  # noqa: S301  made by `snapshot` a moment ago
    units = [name for name in sorted(fleet.units) if fleet.units[name].live]
    before = {name: _decided(fleet, name, now_us) for name in units}
    for version, event in enumerate(events, start=1):
        evolve.evolve(
            fleet,
            Recorded(
                position=fleet.position + 1,
                at_us=now_us,
                occurred_at_us=now_us,
                stream=records.OPERATORS,
                version=version,
                actor=records.operator_actor(by),
                event=event,
            ),
        )
    after = {name: _decided(fleet, name, now_us) for name in units}
    changes = [
        {"unit": name, "before": before[name], "after": after[name]}
        for name in units
        if before[name] != after[name]
    ]
    return {
        "units": len(units),
        "changed_units": len(changes),
        "changes": changes[:CHANGES_SHOWN_MAX],
    }


def _decided(fleet: Fleet, unit: str, now_us: int) -> dict[str, str | None]:
    event = rules.decide_unit(fleet, unit, now_us).event
    return {"form": event.form, "value": event.value, "code": event.code}
