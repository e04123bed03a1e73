"""Owns matching known issues against what was read of a launch: once per distinct build and layout.

Rules ask for every unit of the fleet, several times per decision, and a fleet has few distinct builds;
so the verdicts are kept, per set of issues. What is kept depends on nothing but what was asked.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Final, Literal

from smgate.domain.policy import MATCH_FIELDS, KnownIssue

Match = Literal["yes", "no", "unknown"]
Values = tuple[str, ...] | None
"""What was read of one field; None where nothing was."""
Reading = tuple[Values, ...]
"""One launch: the values of every field of MATCH_FIELDS, in that order."""

KEPT_MAX: Final = 4096
"""Distinct readings kept; a node that reports another build at every turn cannot fill the memory."""

_PLACES: Final = {name: place for place, name in enumerate(MATCH_FIELDS)}


def fits(pattern: str, value: str) -> bool:
    """Equality, or a prefix when the pattern ends in an asterisk."""
    if pattern.endswith("*"):
        return value.startswith(pattern[:-1])
    return value == pattern


def verdict(issue: KnownIssue, reading: Reading) -> Match:
    """Whether an issue holds for a reading. `unknown`: a field it names was not read."""
    found: Match = "yes"
    for name, patterns in issue.match.items():
        place = _PLACES.get(name)
        known = None if place is None else reading[place]
        if known is None:
            found = "unknown"
        elif not any(fits(pattern, value) for pattern in patterns for value in known):
            return "no"
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdicts:
    """What the blocking issues say of one reading: ids, in their order."""

    matching: tuple[str, ...]
    unknown: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Blocking:
    """The issues in force that block. Made anew whenever one is published or withdrawn."""

    issues: tuple[KnownIssue, ...] = ()
    _kept: dict[Hashable, Verdicts] = field(default_factory=dict, compare=False, repr=False)

    def verdicts(self, read: Hashable, reading_of: Callable[[], Reading]) -> Verdicts:
        """What they say of a reading. `read` stands for it: equal ones have equal readings."""
        kept = self._kept.get(read)
        if kept is not None:
            return kept
        reading = reading_of()
        said = {issue.id: verdict(issue, reading) for issue in self.issues}
        made = Verdicts(
            matching=tuple(name for name, one in said.items() if one == "yes"),
            unknown=tuple(name for name, one in said.items() if one == "unknown"),
        )
        if len(self._kept) >= KEPT_MAX:
            self._kept.clear()
        self._kept[read] = made
        return made


def blocking(issues: Iterable[KnownIssue]) -> Blocking:
    """Those that block, in the order of their ids."""
    blocks = (issue for issue in issues if issue.severity == "block")
    return Blocking(tuple(sorted(blocks, key=lambda issue: issue.id)))
