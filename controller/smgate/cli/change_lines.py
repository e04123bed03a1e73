"""How what a held plan would tell units reads, unit by unit."""

from __future__ import annotations

from typing import Final

from smgate.cli import output

_HEADER: Final = ("UNIT", "IS TOLD", "BY", "WOULD BE TOLD", "BY")
NO_CAUSE: Final = "no_cause"


def differences(row: output.Row) -> list[str]:
    """What each unit is told and would be, and by which rules; nothing for another change."""
    found = row.get("differences")
    if not isinstance(found, list) or not found:
        return []
    told = ["", *output.aligned([_HEADER, *(_difference(one) for one in found)])]
    if row.get("code") == NO_CAUSE:
        told += ["", "No command and no fact is the cause: the rules themselves changed."]
    return told


def _difference(one: output.Row) -> tuple[str, ...]:
    return (
        output.text_of(one.get("unit")),
        output.text_of(one.get("before") or "nothing"),
        output.text_of(one.get("before_code")),
        output.text_of(one.get("after") or "nothing"),
        output.text_of(one.get("after_code")),
    )
