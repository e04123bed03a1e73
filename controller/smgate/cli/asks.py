"""What a command wants done, as data: the verbs describe, the runner does."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from smgate import client
from smgate.cli import output


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Show a list."""

    path: str
    table: output.Table
    parameters: client.Parameters = dataclasses.field(default_factory=dict)
    only: str | None = None
    """Show this one alone; it is an error if it is not in the list."""
    where: Callable[[output.Row], bool] | None = None
    """Show only these rows."""
    notes: Callable[[output.Row], list[str]] | None = None
    """More to say beside a table."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """Show one thing."""

    path: str
    name: str
    kind: str | None = None
    """What `name` names (unit, rollout, ...), to suggest others when it is not found."""
    parameters: client.Parameters = dataclasses.field(default_factory=dict)
    lines: Callable[[output.Row], list[str]] | None = None
    wide_lines: Callable[[output.Row], list[str]] | None = None
    """With -o wide, if that shows more."""
    table: output.Table | None = None
    """How one line of it looks, for --watch without a terminal."""
    ended: Callable[[output.Row], int | None] | None = None
    """The exit code once there is nothing more to watch."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Send a command."""

    fields: dict[str, Any]
    summary: str
    """What it does, as a sentence a person is asked to agree to."""
    consequence: Callable[[client.Client], list[str]] | None = None
    """More to say before asking, from the controller."""
    typed_name: str | None = None
    """What must be typed to agree, where a y is too easily given."""
    follows: Callable[[client.Client, list[dict[str, Any]]], list[str]] | None = None
    """What to say of the events, once they are written or on a dry run."""
    ask: bool = True
    """False where this use of an asking verb changes too little to ask."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ChangeFlags:
    """The flags of every changing verb."""

    reason: str
    dry_run: bool
    yes: bool
    at_position: int | None
    idempotency_key: str | None
    break_glass_s: int | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WatchFlags:
    """The flags of every watching verb."""

    watch: bool = False
    interval_s: float = 2.0
    timeout_s: float | None = None
