"""What is kept of counts over the fleet: what each unit counts as, and how many of each there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

Kinds = tuple[Hashable, ...]


@dataclass(slots=True)
class Census:
    """Units by what they count as; `census.taken` keeps it right."""

    position: int = -1
    """Of the newest event it has taken in."""
    of_unit: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    """Units that count as nothing are left out."""
    totals: Counter[Any] = field(default_factory=Counter)
    """Kinds that nobody counts as any more are left out."""
    worked_out: dict[str, int] = field(default_factory=dict)
    """What its owner made of the totals: dropped when one of them changes."""

    def count(self, unit: str, kinds: Kinds) -> None:
        """One unit counts as these from now on."""
        before = self.of_unit.get(unit, ())
        if kinds == before:
            return
        self.worked_out.clear()
        if kinds:
            self.of_unit[unit] = kinds
        else:
            del self.of_unit[unit]
        for kind in before:
            self.totals[kind] -= 1
            if not self.totals[kind]:
                del self.totals[kind]
        self.totals.update(kinds)

    def forget(self) -> None:
        """Count everybody anew."""
        self.of_unit.clear()
        self.totals.clear()
        self.worked_out.clear()
