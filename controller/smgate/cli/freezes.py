"""`smgate freeze`: start nothing until it is lifted."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from smgate import client
from smgate.cli import asks, output, reach, suggest, verbs

NOUN: Final = verbs.noun("freeze", "Times in which nothing new is started.")
TABLE: Final = output.Table(
    noun="freezes",
    name="id",
    columns=(
        output.Column("FREEZE", "id"),
        output.Column("UNTIL", "until"),
        output.Column("REASON", "reason"),
    ),
)


@verbs.reads(NOUN, "ls", watch=True, examples=["smgate freeze ls"])
def ls() -> asks.Listing:
    """List the freezes in force."""
    return asks.Listing(path=client.path("freezes"), table=TABLE)


@verbs.changes(
    NOUN,
    "declare",
    "freeze_declare",
    examples=[
        "smgate freeze declare incident --reason 'nobody knows yet what it is'",
        "smgate freeze declare year-end --until 2027-01-04T08:00:00+01:00 --reason holidays",
    ],
)
def declare(
    freeze: Annotated[str, typer.Argument(help="A name for it.")],
    until: Annotated[
        str | None, typer.Option("--until", help="When it ends: 2027-01-04T08:00:00+01:00.")
    ] = None,
) -> asks.Change:
    """Start nothing new until it is lifted, or until an instant. What stands, stands."""
    fields = {"id": freeze} if until is None else {"id": freeze, "until": until}
    end = "it is lifted" if until is None else until
    return asks.Change(fields=fields, summary=f"Freeze {freeze} is declared, until {end}.")


@verbs.changes(
    NOUN,
    "lift",
    "freeze_lift",
    asks_first=True,
    alone=True,
    examples=["smgate freeze lift year-end --reason 'over'"],
)
def lift(
    freeze: Annotated[str, typer.Argument(help="A freeze.", autocompletion=suggest.freezes)],
) -> asks.Change:
    """End a freeze: what waited for it may start."""
    return asks.Change(
        fields={"id": freeze},
        summary=f"Freeze {freeze} is lifted: what waited may start.",
        consequence=reach.of_waiting(),
    )
