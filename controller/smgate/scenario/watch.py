"""Reads a log beside the controller, in a fold of its own, and asks every invariant of it."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

from smgate.domain import decisions, evolve, planner
from smgate.domain.events import Recorded
from smgate.domain.state import Fleet
from smgate.scenario import invariants

VIOLATIONS_MAX: Final = 20
"""Kept of one run; the first is the one to look at."""


@dataclass(frozen=True, slots=True)
class Violation:
    """An invariant that did not hold: which, at which position, and how."""

    invariant: str
    position: int
    sentence: str


class Watch:
    """Counts what was checked, and keeps what did not hold."""

    def __init__(self) -> None:
        self.fleet = Fleet()
        self.checks: Final[Counter[str]] = Counter()
        self.violations: Final[list[Violation]] = []
        self._standing: invariants.Standing = {}
        self._recomputed = 0

    def take(self, recorded: Sequence[Recorded]) -> None:
        """Read on: every event is judged by the fleet before it, and then folded."""
        for index, one in enumerate(recorded):
            if isinstance(one.event, decisions.OverrideSet) and one.position > self._recomputed:
                self._recompute(recorded[index:])
            for name, wrong in invariants.of_event(self.fleet, one.event):
                self._note(name, wrong)
            evolve.evolve(self.fleet, one)
            wrong = invariants.grants_end_only_by_name(self._standing, self.fleet, one.event)
            self._note("grants_end_only_by_name", wrong)
            self._standing = invariants.standing(self.fleet)

    def _recompute(self, ahead: Sequence[Recorded]) -> None:
        """Decisions of one plan were made of one state: the one before the first of them."""
        for one in takewhile(lambda r: isinstance(r.event, decisions.OverrideSet), ahead):
            assert isinstance(one.event, decisions.OverrideSet)
            if one.event.as_of_position != self.fleet.position:
                if one is ahead[0]:
                    self._note("recomputes", invariants.recomputes(self.fleet, one.event))
                return
            self._note("recomputes", invariants.recomputes(self.fleet, one.event))
            self._recomputed = one.position

    def settled(self, now_us: int) -> None:
        """The leader has nothing more to do now: what waits is kept, and a whole plan agrees."""
        self._note("waits_are_kept", invariants.waits_are_kept(self.fleet, now_us))
        found = [type(e).__name__ for e in planner.plan(self.fleet, now_us).events]
        wrong = f"a plan of everything still gives {found[:5]}" if found else None
        self._note("nothing_is_forgotten", wrong)

    def snapshot(self) -> None:
        """Go on from the bytes of a snapshot, as a new process would."""
        self.fleet = pickle.loads(pickle.dumps(self.fleet))  # noqa: S301  our own bytes

    def same_as(self, other: Fleet) -> None:
        """The controller's own fold, made in other batches, came to the same state."""
        wrong = None if self.fleet == other else "the two folds of one log differ"
        self._note("replays", wrong)

    def _note(self, name: str, wrong: str | None) -> None:
        self.checks[name] += 1
        if wrong is not None and len(self.violations) < VIOLATIONS_MAX:
            self.violations.append(Violation(name, self.fleet.position, wrong))
