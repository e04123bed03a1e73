"""`smgate wait`: what the controller waits for, for whom, and until when."""

from __future__ import annotations

from typing import Final

from smgate import client
from smgate.cli import asks, output, verbs

NOUN: Final = verbs.noun("wait", "What the controller waits for.")


def _until(row: output.Row) -> str:
    until = row.get("until")
    if until is None:
        return "a person acts"
    return f"{output.text_of(until)}{' OVERDUE' if row.get('overdue') else ''}"


TABLE: Final = output.Table(
    noun="waits",
    name="id",
    columns=(
        output.Column("WAIT", "code"),
        output.Column("FOR", "subject"),
        output.Column("OWNER", "owner"),
        output.Column("SINCE", "since"),
        output.Column("UNTIL", _until),
        output.Column("SAYS", "sentence"),
        output.Column("NEXT STEP", "next_step", wide=True),
    ),
)


@verbs.reads(NOUN, "ls", watch=True, examples=["smgate wait ls"])
def ls() -> asks.Listing:
    """List what the controller waits for: each has an owner, a timer and an end."""
    return asks.Listing(path=client.path("waits"), table=TABLE)
