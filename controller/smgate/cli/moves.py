"""How what waits reads to a person: the sentence, whose move it is, and the next step."""

from __future__ import annotations

from smgate.cli import output


def lines(found: list[output.Row]) -> list[str]:
    """Three lines for each."""
    told = []
    for one in found:
        told += [f"  - {output.text_of(one.get('sentence'))}", f"    {whose(one)}"]
        told.append(f"    -> {output.text_of(one.get('next_step'))}")
    return told


def whose(one: output.Row) -> str:
    """Whose move it is, since when and until when."""
    until = one.get("until")
    ends = "until somebody acts" if until is None else f"until {output.text_of(until)}"
    since = "" if one.get("since") is None else f"since {output.text_of(one['since'])}, "
    overdue = ", OVERDUE" if one.get("overdue") else ""
    return f"{output.text_of(one.get('owner'))}'s move, {since}{ends}{overdue}"
