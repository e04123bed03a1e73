"""What an event speaks of though nothing before it in the log told of that.

A log that is whole may hold such events: another release wrote them, or what told of it came from a log
that was put back. A unit that is named is a unit. A rollout, a wave, a kernel key, a gate, an alarm or a
drain cannot be made from its name: what is said of one that nobody told of leaves nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Final, get_args

from smgate.domain import decisions, revocation, rulings
from smgate.domain.events import Recorded
from smgate.domain.evolve_launches import unit_of
from smgate.domain.state import Fleet

OF_A_ROLLOUT = (
    rulings.RolloutApproved
    | rulings.RolloutStarted
    | rulings.RolloutPaused
    | rulings.RolloutResumed
    | rulings.RolloutHalted
    | rulings.RolloutAborted
    | revocation.GrantRevoked
    | decisions.RolloutCompleted
)
OF_A_WAVE = decisions.WaveJoined | decisions.WaveJudged
OF_A_KEY = (
    decisions.BuildQualified
    | decisions.BuildSuspected
    | decisions.BuildFailed
    | decisions.BuildCleared
)
OF_AN_ALARM = decisions.EpisodeUpdated | decisions.EpisodeClosed
OF_A_DRAIN = decisions.DrainFinished | decisions.DrainFailed
OF_UNITS = revocation.GrantRevoked | decisions.WaveOpened | decisions.WaveJoined
"""What lists units of an alarm or a change may list kernel keys too, and only says their names."""

_Known = Callable[[Fleet, Any], bool]


def _wave(fleet: Fleet, event: OF_A_WAVE) -> bool:
    found = fleet.rollouts.get(event.rollout)
    return found is not None and 0 <= event.wave < len(found.waves)


def _next_wave(fleet: Fleet, event: decisions.WaveOpened) -> bool:
    found = fleet.rollouts.get(event.rollout)
    return found is not None and len(found.waves) == event.wave < len(found.plan.waves)


_KNOWN: Final[Mapping[type, _Known]] = {
    **dict.fromkeys(get_args(OF_A_ROLLOUT), lambda fleet, event: event.rollout in fleet.rollouts),
    **dict.fromkeys(get_args(OF_A_WAVE), _wave),
    **dict.fromkeys(get_args(OF_A_KEY), lambda fleet, event: event.kernel_key in fleet.keys),
    **dict.fromkeys(get_args(OF_AN_ALARM), lambda fleet, event: event.episode in fleet.episodes),
    **dict.fromkeys(get_args(OF_A_DRAIN), lambda fleet, event: event.unit in fleet.drains),
    decisions.WaveOpened: _next_wave,
    # Waves and grants are of the first of that name.
    rulings.RolloutProposed: lambda fleet, event: event.plan.id not in fleet.rollouts,
    rulings.GateGraduated: lambda fleet, event: event.gate in fleet.gates,
    # A permission of a rollout that nobody proposed is none.
    decisions.Granted: lambda fleet, event: (
        event.rollout is None or event.rollout in fleet.rollouts
    ),
}


def _of(kind: type) -> tuple[bool, bool, _Known | None] | None:
    fields = {field.name for field in dataclasses.fields(kind)}
    known = _KNOWN.get(kind)
    one, several = "unit" in fields, kind in get_args(OF_UNITS)
    return (one, several, known) if one or several or known is not None else None


SPEAKS: Final = {
    kind: found
    for kind in (*get_args(rulings.Ruling), *get_args(decisions.Decision))
    if (found := _of(kind)) is not None
}
"""Of each ruling and decision that names any: whether one unit, several, and what must be known.
Facts are not here: what a node speaks of is there from then on."""


def take(fleet: Fleet, recorded: Recorded) -> bool:
    """Make sure of the units that an event names; False if it speaks of what nobody told of."""
    event: Any = recorded.event
    one, several, known = SPEAKS[type(event)]
    if one:
        unit_of(fleet, event.unit, recorded.position)
    for name in event.units if several else ():
        unit_of(fleet, name, recorded.position)
    return known is None or known(fleet, event)
