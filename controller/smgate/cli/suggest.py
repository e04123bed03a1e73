"""Owns names: what was probably meant, and what the shell can complete."""

from __future__ import annotations

import difflib
import sys
from typing import Final

from smgate import client, clock as clocks
from smgate.cli import failures, output, settings

LISTS: Final = {
    "unit": "units",
    "node": "nodes",
    "rollout": "rollouts",
    "build": "builds",
    "gate": "gates",
    "issue": "issues",
    "freeze": "freezes",
    "change": "changes",
}
"""Where the names of each kind are listed."""
_NAME_KEYS: Final = ("id", "name", "node", "key", "kernel_key")
COMPLETION_TIMEOUT_S: Final = 1.0
"""A person waits with a finger on the tab key."""
SHOWN_MAX: Final = 3
NEAR: Final = 0.75
"""Fleet names are much alike; less than this would suggest every neighbour."""


def names(connection: client.Client, kind: str) -> list[str]:
    """Every name of a kind, as the controller lists them."""
    rows = output.items_of(connection.get(client.path(LISTS[kind])).body)
    found = (next((row[key] for key in _NAME_KEYS if key in row), None) for row in rows)
    return [name for name in found if isinstance(name, str)]


def not_found(connection: client.Client, error: client.ApiError, kind: str, name: str) -> str:
    """The hint for a name that the controller does not know."""
    try:
        known = names(connection, kind)
    except (client.ApiError, client.UnreachableError):
        return error.next_step
    if name in known:
        return "It is known now, but was not yet at that moment."
    return near(name, known) or error.next_step or f"See: smgate {kind} ls"


def near(name: str, known: list[str]) -> str:
    """Which of the known names was probably meant; empty if none is near."""
    folded = {one.casefold(): one for one in known}
    found = difflib.get_close_matches(name.casefold(), folded, n=SHOWN_MAX, cutoff=NEAR)
    found += [one for one in folded if name.casefold() in one and one not in found]
    if not found:
        return ""
    return f"Did you mean {' or '.join(folded[one] for one in found[:SHOWN_MAX])}?"


def _completed(kind: str, incomplete: str) -> list[str]:
    """Names for the shell; none at all rather than late or an error."""
    environ = settings.environment()
    try:
        found = settings.resolve(settings.Connection(), environ, asked=sys.stdin)
        connection = client.Client(
            url=found.url,
            token=found.token,
            timeout_s=COMPLETION_TIMEOUT_S,
            clock=clocks.SystemClock(),
            attempts_max=1,
        )
        try:
            known = names(connection, kind)
        finally:
            connection.close()
    except (failures.CliError, client.ApiError, client.UnreachableError, OSError):
        return []
    return [name for name in known if name.startswith(incomplete)]


def units(incomplete: str) -> list[str]:
    """Complete a unit."""
    return _completed("unit", incomplete)


def nodes(incomplete: str) -> list[str]:
    """Complete a node."""
    return _completed("node", incomplete)


def rollouts(incomplete: str) -> list[str]:
    """Complete a rollout."""
    return _completed("rollout", incomplete)


def builds(incomplete: str) -> list[str]:
    """Complete a kernel key."""
    return _completed("build", incomplete)


def gates(incomplete: str) -> list[str]:
    """Complete a gate."""
    return _completed("gate", incomplete)


def issues(incomplete: str) -> list[str]:
    """Complete a known issue."""
    return _completed("issue", incomplete)


def freezes(incomplete: str) -> list[str]:
    """Complete a freeze."""
    return _completed("freeze", incomplete)


def changes(incomplete: str) -> list[str]:
    """Complete a change that waits."""
    return _completed("change", incomplete)
