"""How another policy's course reads to a person: exposure and holds, then whom it would tell otherwise."""

from __future__ import annotations

from typing import Final

from smgate.cli import output

UNITS_SHOWN_MAX: Final = 20


def lines(body: output.Row) -> list[str]:
    """`policy whatif`: the real course beside the other."""
    text = output.text_of
    samples = output.rows_in(body.get("exposed_units"))
    told = [
        f"since position {text(body.get('since_position'))}, {text(body.get('since'))}, "
        f"until {text(body.get('until'))}",
        f"units decided otherwise: {text(body.get('differing_units'))}",
        "",
        *output.aligned(
            [
                ["", "THEN", "WOULD"],
                ["most units exposed", _most(samples, "then"), _most(samples, "would")],
                ["unit-hours exposed", _hours(body.get("then")), _hours(body.get("would"))],
                ["first hold", _hold(body.get("then")), _hold(body.get("would"))],
                ["after the bad sign", _after(body.get("then")), _after(body.get("would"))],
            ]
        ),
    ]
    rows = output.rows_in(body.get("differing"))
    if rows:
        cells = [[text(one.get("unit")), _said(one, "then"), _said(one, "would")] for one in rows]
        told += ["", *output.aligned([["UNIT", "THEN", "WOULD"], *cells[:UNITS_SHOWN_MAX]])]
    if len(rows) > UNITS_SHOWN_MAX:
        told.append(f"... and {len(rows) - UNITS_SHOWN_MAX} more (-o json)")
    passed = body.get("rulings_passed_over")
    if passed:
        told += [
            "",
            f"{text(passed)} rulings have no meaning on the other course and are left out.",
        ]
    return [*told, "", text(body.get("caveat"))]


def _most(samples: list[output.Row], course: str) -> str:
    counts = [one[course] for one in samples if isinstance(one.get(course), int)]
    return output.text_of(max(counts, default=None))


def _hours(course: object) -> str:
    hours = output.pick(course, "exposed_unit_hours")
    return f"{hours:.1f}" if isinstance(hours, (int, float)) else "-"


def _hold(course: object) -> str:
    at, by = output.pick(course, "first_hold"), output.pick(course, "first_hold_by")
    return "-" if at is None else f"{output.text_of(at)} {output.text_of(by)}"


def _after(course: object) -> str:
    after_s = output.pick(course, "hold_after_s")
    return f"{after_s:g} s" if isinstance(after_s, (int, float)) else "-"


def _said(row: output.Row, course: str) -> str:
    steps = output.rows_in(row.get(course))
    return " > ".join(
        f"{output.text_of(one.get('value') or one.get('form'))} ({output.text_of(one.get('code'))})"
        for one in steps
    )
