"""Owns saying what a command would change, before it is given: decided anew on a copy of the fleet."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Final

from smgate.domain import evolve, rules
from smgate.domain.events import Event, Recorded
from smgate.domain.state import Fleet
from smgate.service import records

CHANGES_SHOWN_MAX: Final = 200


def of_events(fleet: Fleet, events: Sequence[Event], *, by: str, now_us: int) -> dict[str, Any]:
    """Units whose decision would be another, at their next start, if these events stood.

    What a started rollout goes on to grant later is not in it: that waits for evidence and waves.
    """
    after = copy.deepcopy(fleet)
    for offset, event in enumerate(events, start=1):
        evolve.evolve(
            after,
            Recorded(
                position=fleet.position + offset,
                at_us=now_us,
                occurred_at_us=now_us,
                stream=records.OPERATORS,
                version=offset,
                actor=records.operator_actor(by),
                event=event,
            ),
        )
    changes = []
    for name in sorted(fleet.units):
        if not fleet.units[name].live:
            continue
        before, then = (_decided(one, name, now_us) for one in (fleet, after))
        if before != then:
            changes.append({"unit": name, "before": before, "after": then})
    return {
        "units": sum(unit.live for unit in fleet.units.values()),
        "changed_units": len(changes),
        "changes": changes[:CHANGES_SHOWN_MAX],
    }


def _decided(fleet: Fleet, unit: str, now_us: int) -> dict[str, str | None]:
    event = rules.decide_unit(fleet, unit, now_us).event
    return {"form": event.form, "value": event.value, "code": event.code}
