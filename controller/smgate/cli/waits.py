"""`smgate wait`: what the controller waits for, for whom, and until when."""

from __future__ import annotations

from typing import Final

from smgate import client
from smgate.cli import asks, output, verbs

NOUN: Final = verbs.noun("wait", "What the controller waits for.")


def _left(row: output.Row) -> str:
    left_s = row.get("remaining_s")
    return "no end" if left_s is None else output.duration(left_s)


TABLE: Final = output.Table(
    noun="waits",
    name="id",
    columns=(
        output.Column("WAIT", "code"),
        output.Column("FOR", "subject"),
        output.Column("OWNER", "owner"),
        output.Column("SINCE", "since"),
        output.Column("LEFT", _left),
        output.Column("SAYS", "sentence"),
        output.Column("NEXT STEP", "next_step", wide=True),
    ),
)


@verbs.reads(NOUN, "ls", watch=True, examples=["smgate wait ls"])
def ls() -> asks.Listing:
    """List what the controller waits for: each has an owner, a timer and an end."""
    return asks.Listing(path=client.path("waits"), table=TABLE)
