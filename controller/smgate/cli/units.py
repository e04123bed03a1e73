"""`smgate unit`: what each server gets, why, and how a person overrules it."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import typer

from smgate import client
from smgate.cli import asks, options, output, reach, suggest, unit_rows, verbs, why as telling

NOUN: Final = verbs.noun("unit", "The servers: all ranks of each, wherever they run.")
UnitName = Annotated[
    str,
    typer.Argument(help="A unit, or a beginning that only it has.", autocompletion=suggest.units),
]


@verbs.reads(
    NOUN,
    "ls",
    watch=True,
    examples=[
        "smgate unit ls",
        "smgate unit ls --sm 10.7 --code wave_not_open -o wide",
        "smgate unit ls --flag exposed -w -o jsonl",
    ],
)
def ls(
    sm: Annotated[str | None, typer.Option("--sm", help="Only this SM, such as 10.7.")] = None,
    code: Annotated[str | None, typer.Option("--code", help="Only decided by this code.")] = None,
    flag: Annotated[
        str | None,
        typer.Option("--flag", help="Only with this flag: exposed, uncontrolled, BF16, adopted..."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Those that are gone too.")] = False,
) -> asks.Listing:
    """List the units: what is decided, what they were told, what they run."""

    def where(row: output.Row) -> bool:
        return (
            (everything or bool(row.get("live", True)))
            and sm in (None, row.get("sm"))
            and code in (None, output.pick(row, "override.code"))
            and (flag is None or any(one.startswith(flag) for one in unit_rows.words(row)))
        )

    return asks.Listing(path=client.path("units"), table=unit_rows.TABLE, where=where)


@verbs.reads(NOUN, "show", watch=True, examples=["smgate unit show k3-prod-07 -o yaml"])
def show(unit: UnitName) -> asks.Item:
    """Show one unit."""
    return asks.Item(path=client.path("units", unit), name=unit, kind="unit", table=unit_rows.TABLE)


@verbs.reads(
    NOUN,
    "why",
    examples=[
        "smgate unit why k3-prod-07",
        "smgate unit why k3-prod-07 --rules",
        "smgate unit why k3-prod-07 --at 2027-03-01T03:12:00Z",
        "smgate unit why k3-prod-07 --at 81244 -o json",
    ],
)
def why(
    unit: UnitName,
    at: options.At = None,
    rules: Annotated[
        bool,
        typer.Option("--rules", help="Every rule and why it does not apply; as -o wide."),
    ] = False,
) -> asks.Item:
    """Say why a unit gets what it gets, what to do, and which rule would decide next."""
    return asks.Item(
        path=client.path("units", unit, "why"),
        name=unit,
        kind="unit",
        parameters={"at": at},
        lines=telling.whole_lines if rules else telling.lines,
        wide_lines=telling.whole_lines,
    )


@verbs.reads(
    NOUN,
    "history",
    examples=[
        "smgate unit history k3-prod-07",
        "smgate unit history k3-prod-07 --since 2027-03-01T00:00:00Z --limit 500",
        "smgate unit history k3-prod-07 --since 81244 -o jsonl",
    ],
)
def history(
    unit: UnitName,
    since: options.Since = None,
    limit: options.Newest = 100,
) -> asks.Listing:
    """Say what happened to a unit, in the order of the log, the newest last."""
    return asks.Listing(
        path=client.path("units", unit, "history"),
        table=unit_rows.HISTORY,
        parameters={"since": since, "limit": limit},
        notes=unit_rows.left_out,
    )


def _change(unit: str, summary: str, **more: Any) -> asks.Change:  # noqa: ANN401  command fields
    return asks.Change(fields={"unit": unit, **more}, summary=summary)


@verbs.changes(
    NOUN,
    "pin",
    "unit_pin",
    asks_first=True,
    alone=True,
    examples=[
        "smgate unit pin k3-prod-07 off --reason 'wrong answers in canary 3'",
        "smgate unit pin k3-prod-07 on --break-glass --reason INC-4411 --yes",
    ],
)
def pin(
    unit: UnitName,
    direction: Annotated[
        Literal["on", "off"], typer.Argument(help="off: the safe value; on: the target.")
    ],
    break_glass: Annotated[
        bool,
        typer.Option(
            "--break-glass", help="on passes a known issue, a failed check, rollback memory."
        ),
    ] = False,
) -> asks.Change:
    """Decide for one unit yourself. `off` drains it to the safe value and is not asked about."""
    value = "the target" if direction == "on" else "the safe value"
    passing = ", past known issues and failed checks" if break_glass else ""
    return asks.Change(
        fields={"unit": unit, "direction": direction, "break_glass": break_glass},
        summary=f"Unit {unit} gets {value} whatever the evidence says{passing}.",
        consequence=reach.of_unit(unit),
        # Narrowing is for one person, in a hurry.
        ask=direction == "on",
    )


@verbs.changes(
    NOUN,
    "unpin",
    "unit_unpin",
    alone=True,
    examples=["smgate unit unpin k3-prod-07 --reason 'fixed'"],
)
def unpin(unit: UnitName) -> asks.Change:
    """Remove the pin: the rules decide again."""
    return _change(unit, f"Unit {unit} is decided by the rules again.")


@verbs.changes(
    NOUN,
    "exclude",
    "unit_exclude",
    examples=["smgate unit exclude k3-prod-07 --reason 'vendor debugs here'"],
)
def exclude(unit: UnitName) -> asks.Change:
    """Hands off this unit: it keeps what it was last given."""
    return _change(unit, f"Unit {unit} is left as it is.")


@verbs.changes(
    NOUN,
    "include",
    "unit_include",
    alone=True,
    examples=["smgate unit include k3-prod-07 --reason 'vendor is done'"],
)
def include(unit: UnitName) -> asks.Change:
    """Lift an exclusion or a release."""
    return _change(unit, f"Unit {unit} is decided by the rules again.")


@verbs.changes(
    NOUN,
    "accept",
    "unit_accept",
    alone=True,
    examples=["smgate unit accept k3-prod-07 --reason 'ran clean for a month'"],
)
def accept(unit: UnitName) -> asks.Change:
    """Accept a unit that was first seen on the target: it is granted the kernel key it runs."""
    return _change(unit, f"Unit {unit} may go on running the target.")


@verbs.changes(
    NOUN,
    "take-back",
    "unit_take_back",
    examples=["smgate unit take-back k3-prod-07 --reason 'no evidence for this build'"],
)
def take_back(unit: UnitName) -> asks.Change:
    """Take an adopted unit back: the safe value at its next start."""
    return _change(unit, f"Unit {unit} gets the safe value at its next start.")


@verbs.changes(
    NOUN,
    "adopt-flag",
    "unit_adopt_flag",
    examples=["smgate unit adopt-flag k3-prod-07 --reason 'the recipe sets it, not a person'"],
)
def adopt_flag(unit: UnitName) -> asks.Change:
    """Say that the runner written in this unit's recipe is smgate's to replace."""
    return _change(unit, f"smgate may replace the runner written in the recipe of {unit}.")


@verbs.changes(
    NOUN,
    "clear-memory",
    "unit_clear_memory",
    examples=["smgate unit clear-memory k3-prod-07 --reason 'GPU 3 was replaced, burn-in passed'"],
)
def clear_memory(unit: UnitName) -> asks.Change:
    """Forget what went wrong in service on a unit's GPUs: the target may be offered there again."""
    return _change(unit, f"What went wrong in service on the GPUs of {unit} is forgotten.")


@verbs.changes(
    NOUN,
    "release",
    "unit_release",
    asks_first=True,
    alone=True,
    examples=["smgate unit release k3-prod-07 --reason 'leaves the fleet'"],
)
def release(unit: UnitName) -> asks.Change:
    """Give a unit back to SGLang: nothing is appended any more. Says first what that means."""

    def consequence(connection: client.Client) -> list[str]:
        answer = connection.get(client.path("units", unit, "why"))
        alone = telling.left_alone(answer.body)
        return alone or ["What SGLang would then choose is not known."]

    return asks.Change(
        fields={"unit": unit},
        summary=f"Unit {unit} is given back: nothing is appended to its command any more.",
        consequence=consequence,
    )
