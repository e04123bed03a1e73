"""Owns counts over the fleet that stay right without counting the fleet again.

A census knows what each unit counts as. Asked for, it works that out again only for the units that
an event concerned since it was last asked (`touches`), so a count costs what has changed. What a
unit counts as may rest on the state alone, never on the time. `planner.plan` forgets every census
first: the reference counts anew.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from smgate.domain import touches
from smgate.domain.state import Fleet
from smgate.domain.state_counts import Census, Kinds


def taken(
    fleet: Fleet, name: tuple[str, ...], among: Collection[str], kinds_of: Callable[[str], Kinds]
) -> Census:
    """A census as of now.

    Args:
        fleet: the folded log.
        name: of the census, and of what it is about.
        among: the units that count; they may become more, never fewer.
        kinds_of: what one of them counts as: any number of things, or nothing.
    """
    census = fleet.censuses.get(name)
    if census is None:
        census = fleet.censuses[name] = Census()
    if census.position == fleet.position:
        return census
    concerned: Collection[str] | None = touches.since(fleet, census.position)
    if concerned is None:
        census.forget()
        concerned = among
    for unit in concerned:
        if unit in among:
            census.count(unit, kinds_of(unit))
    census.position = fleet.position
    return census
