"""How a rollout reads to a person: where it stands, wave by wave, and what it waits for."""

from __future__ import annotations

from smgate.cli import output, reach


def get_lines(row: output.Row) -> list[str]:
    """`rollout get`: where it stands."""
    plan = row.get("plan") if isinstance(row.get("plan"), dict) else {}
    assert isinstance(plan, dict)
    planned = ", ".join(reach.wave_of(one) for one in plan.get("waves") or ())
    told = [
        *_heading(row.get("id"), row),
        f"gate {output.text_of(row.get('gate'))}, SM {output.text_of(row.get('sm'))}",
        f"waves planned: {planned or '-'}, spread by {output.text_of(plan.get('spread_by'))}",
        f"supersedes: {output.text_of(plan.get('supersedes'))}",
        f"a new build after completion: {output.text_of(plan.get('on_new_build'))}",
        f"in flight: {output.text_of(row.get('in_flight'))}, at most "
        f"{output.text_of(plan.get('max_in_flight'))}",
    ]
    waves = _rows(row.get("waves"))
    if waves:
        told += ["", *output.aligned([_WAVE_HEADER, *(_wave(one) for one in waves)])]
    open_members = [
        _rows(one.get("members")) for one in waves if one.get("verdict") in (None, "running")
    ]
    for members in open_members:
        told += ["", *output.aligned([_MEMBER_HEADER, *(_member(one) for one in members)])]
    return told


def why_lines(body: output.Row) -> list[str]:
    """`rollout why`: what it waits for, whose move it is."""
    told = [
        *_heading(body.get("rollout"), body),
        f"as of position {output.text_of(body.get('as_of_position'))}, "
        f"{output.text_of(body.get('now'))}",
        f"units eligible now: {output.text_of(body.get('eligible_now'))}",
    ]
    blocked = _rows(body.get("blocked_by"))
    if blocked:
        told += ["", "Blocked by"]
        for one in blocked:
            told += [
                f"  - {output.text_of(one.get('code'))}: {output.text_of(one.get('sentence'))}"
            ]
            told += [f"    -> {output.text_of(one.get('next_step'))}"]
    waits = _rows(body.get("waits"))
    if waits:
        told += ["", "Waits for"]
    for one in waits:
        until = one.get("until")
        ends = "until a person acts" if until is None else f"until {output.text_of(until)}"
        overdue = " OVERDUE" if one.get("overdue") else ""
        told += [
            f"  - {output.text_of(one.get('sentence'))} (owner {output.text_of(one.get('owner'))}, "
            f"{ends}{overdue})",
            f"    -> {output.text_of(one.get('next_step'))}",
        ]
    upcoming = body.get("next_wave")
    if isinstance(upcoming, dict):
        told += ["", output.text_of(upcoming.get("sentence"))]
        names = [str(unit) for unit in upcoming.get("units") or ()]
        told += [f"  {output.few(names)}"] if names else []
    for one in _rows(body.get("waves")):
        told += [
            "",
            f"Wave {output.text_of(one.get('wave'))}: {output.text_of(one.get('verdict'))}. "
            f"{output.text_of(one.get('sentence'))}",
        ]
        told += [
            f"  {name}: {output.text_of(one[name])}"
            for name in ("bad", "pending", "good")
            if one.get(name)
        ]
    return told


_WAVE_HEADER = ["WAVE", "VERDICT", "UNITS", "ELIGIBLE", "RESTARTED", "GOOD", "BAD"]
_MEMBER_HEADER = ["UNIT", "GRANTED", "RESTARTED", "BAKED", "GOOD", "BAD"]


def _heading(name: object, row: output.Row) -> list[str]:
    halted = row.get("halted_code")
    parts = [f"rollout {output.text_of(name)}", output.text_of(row.get("phase"))]
    if halted:
        parts.append(f"by {output.text_of(halted)}")
    people = [
        f"author {output.text_of(row.get('author'))}, "
        f"approver {output.text_of(row.get('approver'))}"
    ]
    return [" | ".join(parts), *people]


def _wave(one: output.Row) -> list[str]:
    members = _rows(one.get("members"))
    counts = [sum(1 for each in members if each.get(key)) for key in ("launched", "good", "bad")]
    cells = [one.get("wave"), one.get("verdict"), len(members), one.get("eligible"), *counts]
    return [output.text_of(cell) for cell in cells]


def _member(one: output.Row) -> list[str]:
    keys = ("unit", "granted", "launched", "bake_s", "good", "bad")
    cells = [output.text_of(one.get(key)) for key in keys]
    cells[3] += " s"
    return cells


def _rows(value: object) -> list[output.Row]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
