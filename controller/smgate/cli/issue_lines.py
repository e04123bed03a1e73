"""How a known issue's reach is told before it is published or withdrawn: units and builds, in numbers."""

from __future__ import annotations

from typing import Final

from smgate.cli import output

BUILDS_MAX: Final = 8
"""Builds shown before a question; --dry-run -o json has them all."""


def lines(issue: output.Row) -> list[str]:
    """What one issue matches now."""
    count, builds = issue.get("matched_units"), issue.get("builds") or []
    told = [
        f"Units that {output.text_of(issue.get('id'))} matches now: {count}, "
        f"of {issue.get('matched_builds')} builds."
    ]
    told += [_build(one) for one in builds[:BUILDS_MAX]]
    more = (issue.get("matched_builds") or 0) - BUILDS_MAX
    if more > 0:
        told.append(f"  and {more} more builds")
    if issue.get("unknown_units"):
        names = output.few([output.text_of(one) for one in issue.get("unknown_unit_names") or ()])
        told.append(
            f"Units that did not report a field it names: {issue.get('unknown_units')}: {names}"
        )
    if issue.get("severity") == "info":
        told.append("It informs: it stops nothing that it matches.")
    return told


def _build(one: output.Row) -> str:
    names = output.few([output.text_of(name) for name in one.get("unit_names") or ()])
    versions = ", ".join(
        f"{label} {output.text_of(one.get(name))}"
        for label, name in (
            ("SM", "sm"),
            ("SGLang", "sglang"),
            ("FlashInfer", "flashinfer"),
            ("driver", "driver"),
            ("key", "kernel_key"),
        )
    )
    return f"  {one.get('matched_units')}: {versions}: {names}"
