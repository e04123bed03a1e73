"""How far a unit's decision has come: applied, effective, refused, or it waits for a restart.

The value is a launch argument, so a decision that changes while a server runs reaches it at its next
start. What a start was given is what its launch gate said (`override_applied`), and what came of it is
what the server attests. Where nobody said, nothing is said here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from smgate.domain.facts import OverrideApplied
from smgate.domain.state import Unit
from smgate.domain.state_nodes import Instance

State = Literal["refused", "awaiting_restart", "applied", "effective"]

NEXT_STEPS: Final[dict[State, str]] = {
    "refused": "smgate unit why {unit}; smgate-agent doctor on that node says what is in the way.",
    "awaiting_restart": "Restart it when it suits its owner; smgate drain ls says if a restart is ordered.",
    "applied": "Wait until it has loaded and says what it runs.",
    "effective": "Nothing.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """Where the standing decision stands on one server of a unit."""

    state: State
    node: str
    sentence: str
    next_step: str


def of_unit(unit: Unit) -> Delivery | None:
    """That of the server that is least far; None if there is nothing to deliver, or nobody said."""
    found = [one for one in (_of(unit, each) for each in unit.live_instances()) if one is not None]
    if not found:
        return None
    states = list(NEXT_STEPS)
    least = min(found, key=lambda one: (states.index(one[0]), one[1].node, one[1].id))
    state, instance, sentence = least
    return Delivery(
        state=state,
        node=instance.node,
        sentence=sentence,
        next_step=NEXT_STEPS[state].format(unit=unit.id),
    )


def _of(unit: Unit, instance: Instance) -> tuple[State, Instance, str] | None:
    override, given = unit.override, _given(unit, instance)
    if override is None or given is None:
        return None
    wanted, started = override.value, given.value if given.form == "appended" else None
    if wanted == started:
        return None if wanted is None else _came_of(instance, wanted)
    now, then = _named(wanted), _named(started)
    if wanted is not None and (given.generation or 0) >= unit.override_position:
        return "refused", instance, f"Told {now}, its launch gate gave it {then}: {given.code}."
    return (
        "awaiting_restart",
        instance,
        f"It started with {then} before {now} was decided, which holds from its next start.",
    )


def _came_of(instance: Instance, wanted: str) -> tuple[State, Instance, str]:
    if instance.effective is None:
        return "applied", instance, f"It was started with {wanted} and has not said what it runs."
    runs = instance.effective.runner
    if runs != wanted:
        return "refused", instance, f"It was started with {wanted}, and SGLang resolved {runs}."
    return "effective", instance, f"It runs {wanted}, as decided."


def _given(unit: Unit, instance: Instance) -> OverrideApplied | None:
    """What the launch gate did at the start of this server."""
    for rank in unit.launch.ranks.values() if unit.launch is not None else ():
        if rank.planned.launch_id == instance.launch_id:
            return rank.applied
    return None


def _named(value: str | None) -> str:
    return value or "nothing appended"
