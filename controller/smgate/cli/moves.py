"""How what waits reads to a person: the sentence, whose move it is, and the next step."""

from __future__ import annotations

import textwrap
from typing import Final

from smgate.cli import output

WIDTH: Final = 96


def lines(found: list[output.Row]) -> list[str]:
    """Three lines for each."""
    told = []
    for one in found:
        said = _wrapped(output.text_of(one.get("sentence")), "    ")
        told += [f"  - {said[0].lstrip()}", *said[1:], f"    {whose(one)}"]
        told += _wrapped(f"-> {output.text_of(one.get('next_step'))}", "    ")
    return told


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def whose(one: output.Row) -> str:
    """Whose move it is, since when and until when."""
    until = one.get("until")
    ends = "until somebody acts" if until is None else f"until {output.text_of(until)}"
    since = "" if one.get("since") is None else f"since {output.text_of(one['since'])}, "
    overdue = ", OVERDUE" if one.get("overdue") else ""
    return f"{output.text_of(one.get('owner'))}'s move, {since}{ends}{overdue}"
