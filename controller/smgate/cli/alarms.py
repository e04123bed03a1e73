"""`smgate alarm`: what is wrong now, one line per episode."""

from __future__ import annotations

from typing import Final

from smgate import client
from smgate.cli import asks, output, verbs

NOUN: Final = verbs.noun("alarm", "What is wrong: one episode per gate, SM and cause.")


def _state(row: output.Row) -> str:
    if not row.get("open", True):
        return "closed"
    return "quiet" if row.get("quiet") else "open"


def _which(row: output.Row) -> str:
    """The first of them by name: what a person types next is `unit why` with it."""
    first, *others = row.get("units") or ["-"]
    return f"{first} +{len(others)}" if others else str(first)


TABLE: Final = output.Table(
    noun="alarms",
    name="id",
    columns=(
        output.Column("CAUSE", "cause"),
        output.Column("SM", "sm"),
        output.Column("STATE", _state),
        output.Column("UNITS", "unit_count"),
        output.Column("WHICH", _which),
        output.Column("SINCE", "opened_at"),
        output.Column("SAYS", "sentence"),
        output.Column("ALARM", "id", wide=True),
        output.Column("GATE", "gate", wide=True),
        output.Column("CLOSED", "closed_at", wide=True),
        output.Column("ALL", "units", wide=True),
    ),
)


@verbs.reads(NOUN, "ls", watch=True, examples=["smgate alarm ls", "smgate alarm ls -w"])
def ls() -> asks.Listing:
    """List the alarms, one line per episode."""
    return asks.Listing(path=client.path("alarms"), table=TABLE)
