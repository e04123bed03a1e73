"""How a rollout plan reads before it is proposed: waves, cost, what stands against it, what is odd."""

from __future__ import annotations

from typing import Final

from smgate.cli import output

SHOWN_MAX: Final = 10

_HEADER = ["WAVE", "UNITS", "GPUS", "RESTARTS", "EXPOSED AFTER", "OPENS", "AT LEAST", "WAITS FOR"]


def lines(body: output.Row) -> list[str]:
    """`rollout plan`: what it would do now."""
    text = output.text_of
    limit = body.get("exposure_limit_units")
    told = [
        f"plan {text(body.get('plan'))} | gate {text(body.get('gate'))}, SM {text(body.get('sm'))}",
        f"as of position {text(body.get('as_of_position'))}, {text(body.get('now'))}",
        f"eligible: {text(body.get('eligible_units'))} units with "
        f"{text(body.get('eligible_gpus'))} GPUs; restarts: {text(body.get('restarts'))}",
        f"worst exposure: {text(body.get('worst_exposed_units'))} units, "
        + ("no limit" if limit is None else f"the limit is {limit}"),
        f"at least {duration(body.get('least_duration_s'))}, without "
        f"{text(body.get('duration_without'))}",
    ]
    if body.get("frozen_until"):
        told.append(f"frozen by a window of the plan until {text(body.get('frozen_until'))}")
    waves = _rows(body.get("waves"))
    if waves:
        told += ["", *output.aligned([_HEADER, *(_wave(one) for one in waves)])]
    for one in waves:
        units = [str(unit) for unit in one.get("units") or ()]
        if units:
            told.append(f"wave {text(one.get('wave'))}: {output.few(units)}")
    blocked = body.get("blocked_by_code")
    if blocked:
        told += ["", f"Not eligible: {text(body.get('blocked_units'))} ({text(blocked)})"]
        rows = _rows(body.get("blocked"))
        told += [f"  {text(one.get('unit'))}: {text(one.get('sentence'))}" for one in rows[:5]]
        if len(rows) > 5:  # noqa: PLR2004  as many as the line above shows
            told.append("  ... (-o json has more)")
    return [*told, *_warned(body)]


def lint_lines(body: output.Row) -> list[str]:
    """`rollout lint`: what is odd."""
    return _warned(body)[1:] or ["Nothing is odd about this plan."]


_NUMBERS: Final = {
    "eligible_units": "units eligible",
    "eligible_gpus": "GPUs of those",
    "restarts": "restarts",
    "worst_exposed_units": "worst exposure, units",
    "least_duration_s": "at least",
}


def diff_lines(body: output.Row) -> list[str]:
    """`rollout diff`: one beside the other."""
    text = output.text_of
    told = [
        f"{text(body.get('before'))} -> {text(body.get('after'))}",
        f"as of position {text(body.get('as_of_position'))}, {text(body.get('now'))}",
    ]
    if not body.get("same_cohorts"):
        told.append("their ids differ, so each takes the units in an order of its own")
    rows = [["", "BEFORE", "AFTER"]]
    for name, words in _NUMBERS.items():
        say = duration if name == "least_duration_s" else text
        cells = (output.pick(body, f"numbers.{name}.{side}") for side in ("before", "after"))
        rows.append([words, *map(say, cells)])
    rows += [
        [text(one.get("field")), _short(one.get("before")), _short(one.get("after"))]
        for one in _rows(body.get("changed"))
    ]
    told += ["", *output.aligned(rows)]
    for one in _rows(body.get("waves")):
        told += [
            f"wave {text(one.get('wave'))}: {text(one.get('before_units'))} -> "
            f"{text(one.get('after_units'))} units",
            *_named("+", one.get("gained")),
            *_named("-", one.get("lost")),
            *(
                f"  > {text(each.get('unit'))} from wave {text(each.get('from_wave'))}"
                for each in _rows(one.get("moved"))[:SHOWN_MAX]
            ),
        ]
    return told


def _short(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(_short(one) for one in value) or "-"
    if isinstance(value, dict):
        return " ".join(f"{name} {_short(one)}" for name, one in value.items() if one) or "-"
    return output.text_of(value)


def _named(sign: str, units: object) -> list[str]:
    names = [str(unit) for unit in units] if isinstance(units, list) else []
    return [f"  {sign} {output.few(names)}"] if names else []


def duration(seconds: object) -> str:
    """Seconds as a person says them."""
    if not isinstance(seconds, int):
        return output.text_of(seconds)
    hours, rest = divmod(seconds, 3600)
    minutes, left = divmod(rest, 60)
    parts = [f"{hours} h" if hours else "", f"{minutes} min" if minutes else ""]
    parts.append(f"{left} s" if left or not seconds else "")
    return " ".join(part for part in parts if part)


def _wave(one: output.Row) -> list[str]:
    waits = one.get("waits_for")
    cells = [
        one.get("wave"),
        len(one.get("units") or ()),
        one.get("gpus"),
        one.get("restarts"),
        one.get("exposed_units"),
        one.get("opens_at"),
        duration(one.get("least_duration_s")),
        waits,
    ]
    return [output.text_of(cell) for cell in cells]


def _warned(body: output.Row) -> list[str]:
    told = []
    for one in _rows(body.get("warnings")):
        told += ["", f"{output.text_of(one.get('code'))}: {output.text_of(one.get('sentence'))}"]
        told += [f"  -> {output.text_of(one.get('next_step'))}"]
    return told


def _rows(value: object) -> list[output.Row]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
