"""How a rollout reads to a person: where it stands, wave by wave, and what it waits for."""

from __future__ import annotations

from typing import Final

from smgate.cli import moves, output, reach

MEMBERS_SHOWN_MAX: Final = 12


def get_lines(row: output.Row) -> list[str]:
    """`rollout get`: where it stands."""
    plan = row.get("plan") if isinstance(row.get("plan"), dict) else {}
    assert isinstance(plan, dict)
    planned = ", ".join(reach.wave_of(one) for one in plan.get("waves") or ())
    told = [
        *_heading(row.get("id"), row),
        f"gate {output.text_of(row.get('gate'))}, SM {output.text_of(row.get('sm'))}",
        f"golden prompts: {output.text_of(plan.get('golden'))}, wrong at most "
        f"{output.text_of(plan.get('golden_mismatches_max'))}",
        f"approvals needed: {output.text_of(plan.get('approvals'))}",
        f"waves planned: {planned or '-'}, spread by {output.text_of(plan.get('spread_by'))}",
        *(f"frozen: {reach.window_of(one)}" for one in _rows(plan.get("freeze_windows"))),
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
    ]
    waits = _rows(body.get("waits"))
    if waits:
        told += ["", "Waits for", *moves.lines(waits)]
    told += [*_members(_rows(body.get("members"))), *_what_is_next(body)]
    for one in _rows(body.get("waves")):
        told += [
            "",
            f"Wave {output.text_of(one.get('wave'))}: {output.text_of(one.get('verdict'))}. "
            f"{output.text_of(one.get('sentence'))}",
        ]
        told += [
            f"  {name}: {output.text_of(one[name])}"
            for name in ("bad", "silent", "pending", "revoked", "good")
            if one.get(name)
        ]
    return told


def _members(members: list[output.Row]) -> list[str]:
    """The members that have no good outcome, and below them what to do about each state."""
    if not members:
        return []
    keys = ("unit", "state", "owner", "since", "until", "sentence")
    rows = [[output.text_of(one.get(key)) for key in keys] for one in members]
    header = ["UNIT", "STATE", "MOVE OF", "SINCE", "UNTIL", "SAYS"]
    told = ["", "Members of the open wave without a good outcome"]
    told += output.aligned([header, *rows[:MEMBERS_SHOWN_MAX]], indent="  ")
    if len(rows) > MEMBERS_SHOWN_MAX:
        told.append(f"  and {len(rows) - MEMBERS_SHOWN_MAX} more (-o json)")
    steps = {(one.get("state"), one.get("code")): one for one in reversed(members)}
    for one in reversed(steps.values()):
        name = one.get("code") or one.get("state")
        told.append(f"  -> {output.text_of(name)}: {output.text_of(one.get('next_step'))}")
    return told


def _what_is_next(body: output.Row) -> list[str]:
    kept_out = body.get("not_eligible")
    told = ["", f"units eligible now: {output.text_of(body.get('eligible_now'))}"]
    if isinstance(kept_out, dict) and kept_out:
        told.append(f"not eligible, by code: {output.text_of(kept_out)}")
    upcoming = body.get("next_wave")
    if isinstance(upcoming, dict):
        told.append(output.text_of(upcoming.get("sentence")))
        names = [str(unit) for unit in upcoming.get("units") or ()]
        told += [f"  {output.few(names)}"] if names else []
    return told


_WAVE_HEADER = ["WAVE", "VERDICT", "UNITS", "ELIGIBLE", "RESTARTED", "GOOD", "BAD"]
_MEMBER_HEADER = ["UNIT", "GRANTED", "RESTARTED", "BAKED", "GOLDEN WRONG", "GOOD", "BAD"]


def _heading(name: object, row: output.Row) -> list[str]:
    halted = row.get("halted_code")
    parts = [f"rollout {output.text_of(name)}", output.text_of(row.get("phase"))]
    if halted:
        parts.append(f"by {output.text_of(halted)}")
    people = [
        f"author {output.text_of(row.get('author'))}, "
        f"approved by {output.text_of(row.get('approvers'))}"
    ]
    return [" | ".join(parts), *people]


def _wave(one: output.Row) -> list[str]:
    members = _rows(one.get("members"))
    counts = [sum(1 for each in members if each.get(key)) for key in ("launched", "good", "bad")]
    cells = [one.get("wave"), one.get("verdict"), len(members), one.get("eligible"), *counts]
    return [output.text_of(cell) for cell in cells]


def _member(one: output.Row) -> list[str]:
    keys = ("unit", "granted", "launched", "bake_s", "golden_mismatches", "good", "bad")
    cells = [output.text_of(one.get(key)) for key in keys]
    cells[3] += " s"
    return cells


def _rows(value: object) -> list[output.Row]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
