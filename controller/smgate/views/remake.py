"""Owns which rows are made anew: those that events since the last time concerned.

What an event concerns is the planner's question too (`domain.touches`). A test compares with all rows
made at once, after every event of every scenario.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import msgspec

from smgate.domain import touches
from smgate.domain.state import Fleet
from smgate.views import present, present_rollout
from smgate.views.shape import Row

MAKERS: Final[dict[str, Callable[[Fleet], dict[str, Row]]]] = {
    "nodes": present.nodes,
    "units": present.units,
    "builds": present_rollout.builds,
    "announced": present_rollout.announced,
    "rollouts": present_rollout.rollouts,
    "alarms": present_rollout.alarms,
    "gates": present_rollout.gates,
    "policy": present_rollout.policy,
    "issues": present_rollout.issues,
    "freezes": present_rollout.freezes,
    "expected": present_rollout.expected,
    "breaker": present_rollout.breaker,
}
"""Every view and the function that makes all its rows."""

Key = tuple[str, str]


@dataclasses.dataclass(frozen=True, slots=True)
class Made:
    """Rows that may differ from those made before: position and canonical JSON."""

    rows: dict[Key, tuple[int, bytes]]
    whole: frozenset[str]
    """Views made whole: a row of theirs that is not here is no more."""


def make(fleet: Fleet) -> Made:
    """All rows of all views."""
    found = Made({}, frozenset(MAKERS))
    for view, maker in MAKERS.items():
        _add(found, view, maker(fleet).items())
    return found


class Remaker:
    """Makes the rows of one fleet again and again. Of another fleet, or one gone back, it makes all."""

    def __init__(self) -> None:
        self._fleet: Fleet | None = None
        self._last = _Last()

    def forget(self) -> None:
        """Make all rows the next time: what was made did not get to where it belongs."""
        self._fleet = None

    def last_was(self, fleet: Fleet) -> bool:
        """True if the rows of this very fleet were the last made."""
        return fleet is self._fleet

    def make_all(self, fleet: Fleet) -> Made:
        """All rows, whatever was made before."""
        self.forget()
        return self.make(fleet)

    def make(self, fleet: Fleet) -> Made:
        """The rows that may have changed since the last time."""
        last, same = self._last, fleet is self._fleet
        units = touches.since(fleet, last.position) if same else None
        found = make(fleet) if units is None else _anew(fleet, last, units)
        self._fleet, self._last = fleet, _note(fleet, last if units is not None else _Last(), units)
        return found


@dataclasses.dataclass(slots=True)
class _Last:
    """What has to be known of the last time."""

    position: int = -1
    places: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    """The nodes of each unit."""
    granted: dict[str, int] = dataclasses.field(default_factory=dict)
    """Granted units of each kernel key."""
    open_episodes: frozenset[str] = frozenset()
    expected: tuple[int, int] = (0, 0)
    sms_noted: int = -1
    odd: frozenset[str] = frozenset()
    """Nodes of whose GPUs another node said another SM."""


def _note(fleet: Fleet, last: _Last, units: Iterable[str] | None) -> _Last:
    places = last.places
    for name in fleet.units if units is None else units:
        places[name] = present.unit_nodes(fleet.units[name])
    return _Last(
        position=fleet.position,
        places=places,
        granted=present_rollout.granted_units(fleet),
        open_episodes=frozenset(fleet.open_episodes.values()),
        expected=_expected(fleet),
        sms_noted=fleet.sms_noted,
        odd=last.odd if last.sms_noted == fleet.sms_noted else frozenset(_odd(fleet)),
    )


def _anew(fleet: Fleet, last: _Last, units: list[str]) -> Made:
    selected: dict[str, Iterator[tuple[str, Row]]] = {
        "nodes": _nodes(fleet, last, units),
        "units": ((name, present.unit_row(fleet, fleet.units[name])) for name in units),
        "builds": _builds(fleet, last),
        "alarms": _alarms(fleet, last),
    }
    if _expected(fleet) == last.expected:
        selected["expected"] = iter(())
    found = Made({}, frozenset(MAKERS) - selected.keys())
    for view, maker in MAKERS.items():
        _add(found, view, selected[view] if view in selected else maker(fleet).items())
    return found


def _nodes(fleet: Fleet, last: _Last, units: list[str]) -> Iterator[tuple[str, Row]]:
    names = set(touches.nodes_since(fleet, last.position))
    for unit in units:
        names.update(last.places.get(unit, ()))  # where it is now, a node said so itself
    if fleet.sms_noted != last.sms_noted:
        names.update(last.odd, _odd(fleet))
    for name in names & fleet.nodes.keys():
        yield name, present.node(fleet, fleet.nodes[name])


def _builds(fleet: Fleet, last: _Last) -> Iterator[tuple[str, Row]]:
    checked = fleet.checks_position > last.position
    granted = present_rollout.granted_units(fleet)
    for name, one in fleet.keys.items():
        count = granted.get(name, 0)
        if checked or one.position > last.position or count != last.granted.get(name, 0):
            yield name, present_rollout.build(fleet, one, granted_units=count)


def _alarms(fleet: Fleet, last: _Last) -> Iterator[tuple[str, Row]]:
    names = set(last.open_episodes)
    for name in reversed(fleet.episodes):
        if fleet.episodes[name].position <= last.position:
            break
        names.add(name)
    for name in names:
        yield name, present_rollout.alarm(fleet.episodes[name])


def _expected(fleet: Fleet) -> tuple[int, int]:
    """Differs whenever a row of what is expected does: between two lists, nodes only come in."""
    return fleet.inventory.position, len(fleet.inventory.without_agent)


def _odd(fleet: Fleet) -> Iterator[str]:
    for name, one in fleet.nodes.items():
        for gpu in one.reported.gpus if one.reported else ():
            if fleet.gpu_sms.get(gpu.uuid) != gpu.sm:
                yield name
                break


def _add(made: Made, view: str, rows: Iterable[tuple[str, Row]]) -> None:
    for key, row in rows:
        made.rows[view, key] = (int(row["position"]), msgspec.json.encode(row, order="sorted"))
