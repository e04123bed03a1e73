"""`smgate fleet`: which machines should exist, so that one without an agent is missed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

import typer

from smgate import client
from smgate.cli import asks, output, session as sessions, verbs

NOUN: Final = verbs.noun("fleet", "The machines that should exist.")
TABLE: Final = output.Table(
    noun="expected nodes",
    name="node",
    columns=(
        output.Column("NODE", "node"),
        output.Column("SM", "sm"),
        output.Column("AGENT", "agent"),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine of the inventory."""

    name: str
    sm: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """What stands in the file."""

    nodes: tuple[Machine, ...]


@verbs.reads(
    NOUN, "ls", watch=True, examples=["smgate fleet ls", "smgate fleet ls --missing -o name"]
)
def ls(
    missing: Annotated[
        bool, typer.Option("--missing", help="Only those without an agent.")
    ] = False,
) -> asks.Listing:
    """List the machines that should exist, and whether each has an agent."""
    return asks.Listing(
        path=client.path("expected"),
        table=TABLE,
        where=(lambda row: row.get("agent") is False) if missing else None,
    )


@verbs.changes(
    NOUN,
    "expect",
    "fleet_expect",
    examples=["smgate fleet expect inventory.yaml --reason 'inventory of May 4'"],
)
def expect(
    session: sessions.Session,
    file: Annotated[
        str, typer.Argument(help="YAML or JSON, `nodes: [{name, sm}]`; - for standard input.")
    ],
) -> asks.Change:
    """Say which machines should exist, in place of what was said before."""
    from smgate.cli import files

    nodes = files.load(file, Inventory, asked=session.console.asked)["nodes"]
    return asks.Change(
        fields={"nodes": nodes},
        summary=f"{len(nodes)} machines should exist; those without an agent are alarmed.",
    )
