"""`smgate change`: what waits for a person, and the answer to it."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from smgate import client
from smgate.cli import asks, change_lines, changes, output, suggest, verbs

NOUN: Final = verbs.noun("change", "What waits for another person, and what one person did alone.")
ChangeId = Annotated[
    str, typer.Argument(help="A change, such as c812.", autocompletion=suggest.changes)
]


def _by(row: output.Row) -> str:
    return output.text_of(row.get("by") or "controller")


def _state(row: output.Row) -> str:
    return output.text_of(row.get("state")).replace("_", " ")


def _impossible(body: output.Row) -> list[str]:
    """Why each of those that cannot be done any more cannot."""
    return [
        f"{output.text_of(row.get('id'))} cannot be done as things stand: "
        f"{output.text_of(row['would_refuse'])}"
        for row in output.items_of(body)
        if row.get("would_refuse")
    ]


TABLE: Final = output.Table(
    noun="changes",
    name="id",
    columns=(
        output.Column("CHANGE", "id"),
        output.Column("STATE", _state),
        output.Column("KIND", "kind"),
        output.Column("BY", _by),
        output.Column("SINCE", "since"),
        output.Column("UNTIL", "until"),
        output.Column("SAYS", "sentence"),
        output.Column("REASON", "reason", wide=True),
        output.Column("NEXT STEP", "next_step", wide=True),
    ),
)


@verbs.reads(NOUN, "ls", watch=True, examples=["smgate change ls", "smgate change ls -o wide"])
def ls() -> asks.Listing:
    """List what waits for another person, and what one person did alone for a time."""
    return asks.Listing(path=client.path("changes"), table=TABLE, notes=_impossible)


def _lines(row: output.Row) -> list[str]:
    """`change show`: what it is, and what follows in numbers."""
    told = [
        f"{output.text_of(row.get('id'))}: {_state(row)} ({output.text_of(row.get('kind'))})",
        output.text_of(row.get("sentence")),
        f"reason: {output.text_of(row.get('reason'))}",
        f"by {_by(row)}, since {output.text_of(row.get('since'))}, "
        f"until {output.text_of(row.get('until'))}",
    ]
    if row.get("would"):
        told.append(f"Accepting it: {output.text_of(row.get('would'))}")
    numbers = row.get("numbers")
    if isinstance(numbers, dict):
        told += [f"  {name}: {output.text_of(number)}" for name, number in numbers.items()]
    if row.get("units"):
        told.append(f"Units: {output.few(list(row['units']))}")
    if row.get("would_refuse"):
        told.append(f"It could not be done now: {output.text_of(row.get('would_refuse'))}")
    told += change_lines.differences(row)
    preview = row.get("preview")
    if isinstance(preview, dict):
        when = (
            "When its time is over" if row.get("kind") == "break_glass" else "When it is accepted"
        )
        told += [f"{when}:", *(f"  {line}" for line in changes.in_numbers(preview))]
    if row.get("accepted_by"):
        told.append(f"accepted by {output.text_of(row.get('accepted_by'))}")
    if row.get("next_step"):
        told.append(f"-> {output.text_of(row.get('next_step'))}")
    return told


@verbs.reads(NOUN, "show", examples=["smgate change show c812"])
def show(change: ChangeId) -> asks.Item:
    """Show one change, and in numbers what follows; also one that waits no more."""
    return asks.Item(path=client.path("changes", change), name=change, kind="change", lines=_lines)


@verbs.changes(
    NOUN,
    "accept",
    "change_accept",
    asks_first=True,
    examples=["smgate change accept c812 --reason 'looked at it too'"],
)
def accept(change: ChangeId) -> asks.Change:
    """Agree, as another person than who asked: what was asked is done."""
    return asks.Change(fields={"change": change}, summary=f"Change {change} is accepted.")


@verbs.changes(
    NOUN,
    "withdraw",
    "change_withdraw",
    examples=["smgate change withdraw c812 --reason 'not tonight'"],
)
def withdraw(change: ChangeId) -> asks.Change:
    """Take a change back: it waits no more; what one person did alone is undone."""
    return asks.Change(fields={"change": change}, summary=f"Change {change} is withdrawn.")
