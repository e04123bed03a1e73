"""Owns how a why reads to a tired person: the answer, the reason, what it rests on, what would help.

It only lays out what the controller says; it works out nothing itself, and an answer with more or
fewer parts than usual is still shown whole.
"""

from __future__ import annotations

from typing import Final

from smgate.cli import console as consoles, output

CODES_SHOWN_MAX: Final = 4
NEXT_SHOWN_MAX: Final = 5
_LAID_OUT: Final = frozenset(
    {
        "apiVersion",
        "unit",
        "as_of_position",
        "position",
        "now",
        "rules_version",
        "mode",
        "override",
        "would",
        "rule",
        "rules",
        "recorded",
        "launch_pending",
        "facts",
        "members",
        "if_left_alone",
        "memory_fallback",
        "memory",
        "exposed",
        "uncontrolled",
        "waits",
        "arrived_later",
        "arrived_later_looked_through",
        "note",
    }
)


def lines(body: output.Row) -> list[str]:
    """The answer, what to do about it, and what would come next."""
    rules = output.rows_in(body.get("rules"))
    told = [
        *_first(body, rules),
        *_waits(body),
        *_next(rules, most=NEXT_SHOWN_MAX),
        *_facts(body),
        *_later(body),
    ]
    if len(output.rows_in(body.get("members"))) > 1:
        told += _members(body)
    passed = sum(one.get("state") == "does_not_apply" for one in rules)
    if passed:
        told += ["", f"{passed} rules do not apply: --rules shows why, and what SGLang would do."]
    return [*told, *_rest(body)]


def whole_lines(body: output.Row) -> list[str]:
    """The whole answer: every rule of the table, every rank, what SGLang would do alone."""
    rules = output.rows_in(body.get("rules"))
    told = [
        *_first(body, rules),
        *_waits(body),
        *_table(rules),
        *_facts(body),
        *_later(body),
        *_members(body),
    ]
    alone = left_alone(body)
    if alone:
        told += ["", "Left alone", *(f"  {one}" for one in alone)]
    if output.pick(body, "memory.fits"):
        told += ["", "Memory", *_said(output.pick(body, "memory.sentence"), indent="  ")]
    return [*told, *_rest(body)]


def _waits(body: output.Row) -> list[str]:
    """What is under way or waits for somebody: a restart, a grant, a change that names the unit."""
    told: list[str] = []
    for wait in output.rows_in(body.get("waits")):
        until = f", until {output.text_of(wait['until'])}" if wait.get("until") else ""
        told.append(
            f"  - {output.text_of(wait.get('code'))}: {output.text_of(wait.get('owner'))}{until}"
        )
        told += _said(wait.get("sentence"), indent="    ")
        told += _said(wait.get("next_step"), indent="    -> ")
    return ["", "It waits for", *told] if told else []


def _first(body: output.Row, rules: list[output.Row]) -> list[str]:
    return [*_heading(body), *_answer(body), *_step(rules), *_would(body), *_loud(body)]


def _rest(body: output.Row) -> list[str]:
    told = []
    rest = {key: value for key, value in body.items() if key not in _LAID_OUT}
    if rest:
        told += ["", *output.key_lines(rest)]
    if body.get("note"):
        told += ["", *_said(body["note"])]
    return told


_TOLD_OF_UPSTREAM: Final = (
    "runner",
    "a2a",
    "sentence",
    "memory_fallback",
    "raises",
    "raises_sentence",
    "code",
)


def left_alone(body: output.Row) -> list[str]:
    """What SGLang would choose by itself, in sentences."""
    alone = body.get("if_left_alone")
    if not isinstance(alone, dict) or not alone:
        return []
    told: list[str] = []
    runner, a2a = alone.get("runner"), alone.get("a2a")
    if runner is not None:
        pair = f" with a2a {output.text_of(a2a)}" if a2a is not None else ""
        chosen = "leave the runner at auto" if runner == "auto" else f"choose {runner}"
        told.append(f"SGLang would {consoles.clean(chosen)}{pair}.")
    told += _said(alone.get("sentence"))
    if alone.get("memory_fallback"):
        told.append("Its MXFP4 experts would be made BF16: 3.76 times their bytes.")
    if alone.get("raises"):
        told += _said(alone.get("raises_sentence")) or [
            f"The server would not come up: {output.text_of(alone['raises'])}."
        ]
    told += [
        f"{consoles.clean(key)}: {output.text_of(value)}"
        for key, value in alone.items()
        if key not in _TOLD_OF_UPSTREAM
    ]
    if not told:
        told.append(output.text_of(alone.get("code")))
    return told


def _heading(body: output.Row) -> list[str]:
    parts = [f"unit {output.text_of(body.get('unit'))}"]
    if body.get("mode") is not None:
        parts.append(f"mode {output.text_of(body['mode'])}")
    position = body.get("as_of_position", body.get("position"))
    moment = output.text_of(body.get("now"))
    return [" | ".join(parts), f"as of position {output.text_of(position)}, {moment}", ""]


def _answer(body: output.Row) -> list[str]:
    override = body.get("override")
    if not isinstance(override, dict):
        return ["Nothing is decided for it."]
    told = _verdict(override, lead="")
    recorded = body.get("recorded")
    if body.get("launch_pending"):
        told += ["  Its ranks are still reporting this launch; it is decided when they have."]
    elif not isinstance(recorded, dict):
        told += ["  Nothing was told to it so far."]
    elif _differs(recorded, override):
        told += [
            f"  What it was told, at position {output.text_of(recorded.get('position'))}: "
            f"{gets(recorded)} ({output.text_of(recorded.get('code'))}). It stands until the next "
            "decision."
        ]
    return told


def _differs(recorded: output.Row, override: output.Row) -> bool:
    return any(recorded.get(key) != override.get(key) for key in ("form", "value", "code"))


def _would(body: output.Row) -> list[str]:
    would = body.get("would")
    if not isinstance(would, dict) or not would:
        return []
    return ["", *_verdict(would, lead="Enforced, it would be: ")]


def _loud(body: output.Row) -> list[str]:
    said = []
    if body.get("memory_fallback"):
        phase = output.text_of(body["memory_fallback"])
        said.append(
            f"! BF16: its MXFP4 experts are made BF16 ({phase}); it is slow, or out of memory"
        )
    if body.get("exposed"):
        said.append("! exposed: it runs the target and the decision is not the target")
    if body.get("uncontrolled"):
        said.append("! uncontrolled: it runs or would run the target with no grant")
    if output.pick(body, "memory.fits") is False:
        said.append(f"! does not fit: {output.text_of(output.pick(body, 'memory.sentence'))}")
    return ["", *said] if said else []


def _verdict(verdict: output.Row, *, lead: str) -> list[str]:
    told = [f"{lead}{gets(verdict)}  [{output.text_of(verdict.get('code'))}]"]
    told += _said(verdict.get("sentence"), indent="  ")
    if verdict.get("no_safe_value"):
        told.append("  There is no safe value for it, so nothing is appended.")
    return told


def gets(override: output.Row) -> str:
    """What the launch gate does, as it would be typed."""
    value = override.get("value")
    appended = f"--moe-runner-backend {output.text_of(value)}"
    match override.get("form"):
        case "append":
            return f"appends {appended}"
        case "keep" if value is not None:
            return f"hands off: keeps {appended}"
        case "keep":
            return "hands off: appends nothing, as before"
        case "untouched":
            return "hands off: appends nothing"
        case other:
            return output.text_of(other if other is not None else override)


def _step(rules: list[output.Row]) -> list[str]:
    """What to do about the rule that decided."""
    steps = [one.get("next_step") for one in rules if one.get("state") == "applies"]
    return _said(f"-> {output.text_of(steps[0])}", indent="  ") if steps and steps[0] else []


def _next(rules: list[output.Row], *, most: int) -> list[str]:
    """What would decide if the rule that applies did not."""
    decided = [one.get("codes") for one in rules if one.get("state") == "applies"]
    rows = [
        one
        for one in rules
        if one.get("state") == "would_be_next" and one.get("codes") not in decided
    ]
    if not rows:
        return []
    told = ["", "Next, if that did not apply"]
    for one in rows[:most]:
        told.append(f"  - {output.text_of(one.get('codes'))}")
        told += _said(one.get("sentence"), indent="    ")
        if one.get("next_step"):
            told += _said(f"-> {output.text_of(one['next_step'])}", indent="    ")
    if len(rows) > most:
        told.append(f"  and {len(rows) - most} more: --rules")
    return told


_STATES: Final = {
    "applies": "APPLIES",
    "would_be_next": "would be next",
    "outweighed": "outweighed",
    "does_not_apply": "does not apply",
}


def _table(rules: list[output.Row]) -> list[str]:
    """Every rule in its order: a program's codes one below the other, a person's sentence beside."""
    rows = []
    for one in rules:
        codes = list(one.get("codes") or ())
        beside = [output.text_of(one.get("sentence"))]
        shown = codes if len(codes) <= CODES_SHOWN_MAX else ["(all of part D)"]
        number = f"{output.text_of(one.get('part'))} {output.text_of(one.get('number'))}"
        state = _STATES.get(str(one.get("state")), output.text_of(one.get("state")))
        for at in range(max(len(shown), len(beside))):
            first = at == 0
            rows.append(
                [
                    number if first else "",
                    output.text_of(shown[at]) if at < len(shown) else "",
                    state if first else "",
                    beside[at] if at < len(beside) else "",
                ]
            )
    return ["", "Every rule, in order", *output.aligned(rows, indent="  ")] if rows else []


def _facts(body: output.Row) -> list[str]:
    facts = output.rows_in(body.get("facts"))
    return _fact_table("It rests on", facts, ("at", "AT")) if facts else []


def _later(body: output.Row) -> list[str]:
    """What had happened by then and was not known: the decision could not take it in."""
    later = output.rows_in(body.get("arrived_later"))
    if not later:
        return []
    told = _fact_table("Had happened by then and arrived later", later, ("happened", "HAPPENED"))
    return [*told, "  HAPPENED is by the node's own clock."]


def _fact_table(title: str, facts: list[output.Row], when: tuple[str, str]) -> list[str]:
    keys = ("position", when[0], "type", "actor", "says")
    rows = [[output.text_of(one.get(key)) for key in keys] for one in facts]
    heading = ["POSITION", when[1], "FACT", "FROM", "SAYS"]
    return ["", title, *output.aligned([heading, *rows], indent="  ")]


def _members(body: output.Row) -> list[str]:
    members = body.get("members")
    if not isinstance(members, list) or not members:
        return []
    rows = [one for one in members if isinstance(one, dict)]
    keys = list(dict.fromkeys(key for one in rows for key in one))
    table = [[output.text_of(one.get(key)) for key in keys] for one in rows]
    heading = [consoles.clean(key).upper() for key in keys]
    told = ["", "Members", *output.aligned([heading, *table], indent="  ")]
    return told + [f"  {output.text_of(one)}" for one in members if not isinstance(one, dict)]


def _said(text: object, *, indent: str = "") -> list[str]:
    if not isinstance(text, str) or not text:
        return []
    return [indent + consoles.clean(text)]
