"""What the change guard remembers, folded: which changes are held, and how many were made."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A change of one unit's override that waits for a person."""

    change: str
    after: str | None
    after_code: str
    code: str
    """Why: `no_cause`, `change_limit`; `restore`, where what the unit was told stands against all
    that is less careful."""


@dataclass(slots=True, kw_only=True)
class Guard:
    """The change guard's memory."""

    rules_version: str = ""
    """Of the leader that took over last; empty before anybody led."""
    held: dict[str, Held] = field(default_factory=dict)
    """By unit."""
    let_through: set[str] = field(default_factory=set)
    """Units whose held change a person accepted and that were not told it yet: no limit for them."""
    made: list[tuple[int, str]] = field(default_factory=list)
    """(led time, unit) of the standing overrides that were changed within the last window."""
