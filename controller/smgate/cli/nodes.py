"""`smgate node`: the machines."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from smgate import client
from smgate.cli import asks, output, suggest, verbs

NOUN: Final = verbs.noun("node", "The machines that have an agent.")
TABLE: Final = output.Table(
    noun="nodes",
    name="node",
    columns=(
        output.Column("NODE", "node"),
        output.Column("STATE", "state"),
        output.Column("SM", "sms"),
        output.Column("GPUS", lambda row: len(row.get("gpus") or ())),
        output.Column("POOL", "pool"),
        output.Column("LAST SEEN", "last_seen_at"),
        output.Column("UNITS", "units"),
        output.Column("RACK", "rack", wide=True),
        output.Column("CHASSIS", "chassis", wide=True),
        output.Column("DRIVER", "driver_version", wide=True),
        output.Column("AGENT", "agent_version", wide=True),
        output.Column("GAPS", "log_gaps", wide=True),
    ),
)
NodeName = Annotated[str, typer.Argument(help="A node.", autocompletion=suggest.nodes)]


@verbs.reads(NOUN, "ls", watch=True, examples=["smgate node ls", "smgate node ls -o wide -w"])
def ls() -> asks.Listing:
    """List the nodes."""
    return asks.Listing(path=client.path("nodes"), table=TABLE)


@verbs.reads(NOUN, "show", watch=True, examples=["smgate node show gpu-0417 -o json"])
def show(node: NodeName) -> asks.Item:
    """Show one node."""
    return asks.Item(path=client.path("nodes", node), name=node, kind="node", table=TABLE)


@verbs.changes(
    NOUN,
    "retire",
    "node_retire",
    examples=["smgate node retire gpu-0417 --reason 'sent back to the vendor'"],
)
def retire(node: NodeName) -> asks.Change:
    """Say that a machine is gone: its units are no longer waited for. Enrolling brings it back."""
    return asks.Change(fields={"node": node}, summary=f"Node {node} is retired.")
