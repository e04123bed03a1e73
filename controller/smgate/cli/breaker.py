"""`smgate breaker`: it opened because too much went bad at once; a person closes it."""

from __future__ import annotations

from typing import Final

from smgate import client
from smgate.cli import asks, reach, verbs

NOUN: Final = verbs.noun("breaker", "Stops all widening when too much goes bad at once.")


@verbs.reads(NOUN, "show", examples=["smgate breaker show"])
def show() -> asks.Item:
    """Show whether the breaker is open, since when, and which units opened it."""
    return asks.Item(path=client.path("breaker"), name="breaker")


@verbs.changes(
    NOUN,
    "reset",
    "breaker_reset",
    asks_first=True,
    alone=True,
    examples=["smgate breaker reset --reason 'one bad rack, drained'"],
)
def reset() -> asks.Change:
    """Close the breaker after looking: widening goes on."""
    return asks.Change(
        fields={},
        summary="The breaker is closed: widening goes on.",
        consequence=reach.of_waiting(),
    )
