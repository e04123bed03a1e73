"""`smgate drain`: servers that are taken back from the target, and how far that has come."""

from __future__ import annotations

from typing import Final

from smgate import client
from smgate.cli import asks, output, verbs

NOUN: Final = verbs.noun("drain", "Servers that are taken back from the target.")

TABLE: Final = output.Table(
    noun="units taken back",
    name="unit",
    columns=(
        output.Column("UNIT", "unit"),
        output.Column("SM", "sm"),
        output.Column("CODE", "code"),
        output.Column("TOLD", "told"),
        output.Column("SAFE", "safe"),
        output.Column("RESTART", "restart"),
        output.Column("OWNER", "owner"),
        output.Column("SINCE", "since"),
        output.Column("NEXT STEP", "next_step"),
        output.Column("ORDER", "order", wide=True),
    ),
)


def _numbers(body: output.Row) -> list[str]:
    """The three numbers of each SM, never one of them alone."""
    sms = body.get("sms")
    return [
        f"SM {sm}: decided {one.get('decided')}, told {one.get('told')}, safe {one.get('safe')}."
        for sm, one in (sms.items() if isinstance(sms, dict) else ())
    ]


@verbs.reads(NOUN, "ls", watch=True, examples=["smgate drain ls", "smgate drain ls --watch"])
def ls() -> asks.Listing:
    """List the servers whose decision became the safe value while they ran the target."""
    return asks.Listing(path=client.path("drains"), table=TABLE, notes=_numbers)
