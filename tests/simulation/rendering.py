"""A scenario's output as a short text: one line per event, refusal and changed override."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from smgate.scenario import document

MUTED = ("episode_updated", "gate_published", "leadership_taken")
"""Said at the end, or the same in every transcript."""

GENESIS = ("policy_published", "issue_published")
"""The controller's own, with which every log begins; a person's are told."""


def transcript(result: dict[str, Any], steps: dict[int, document.Step]) -> str:
    """The whole output, as an incident report would tell it.

    Args:
        result: what the runner gave.
        steps: the scenario's steps by their lines: who asked, and what its author says of it.
    """
    lines = [result["name"]]
    before: dict[str, Any] = {}
    for moment in result["times"]:
        said = [steps[line].note for line in moment["lines"] if steps[line].note]
        told = [*_happened(moment, steps), *_changed(before, moment)]
        if said or told:
            lines += ["", f"{_offset(moment['at_s'])}  {' '.join(said)}".rstrip()]
            lines.extend(f"  {line}" for line in told)
        before = moment["overrides"]
    lines += ["", "How it stands at the end:", *(f"  {line}" for line in _end(result))]
    return "\n".join(lines) + "\n"


def steps_of(text: str) -> dict[int, document.Step]:
    """The steps of a scenario by their lines."""
    return {planned.line: planned.step for planned in document.parse(text).steps}


def _offset(at_s: float) -> str:
    days, rest = divmod(round(at_s), 86_400)
    clock = f"{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
    return f"{days}d {clock}" if days else clock


def _happened(moment: dict[str, Any], steps: dict[int, document.Step]) -> Iterator[str]:
    if moment["controller"] == "away":
        yield "(nobody leads)"
    for event in moment["events"]:
        genesis = event["type"] in GENESIS and event["actor"] == "controller"
        who = event["actor"].rpartition(":")[2]
        if event["type"] == "override_set":
            launches = ", ".join(event["event"]["launch_ids"])
            if launches:
                yield f"{who}: launch {launches} is told {_value(event['event'])}"
        elif event["type"] not in MUTED and not genesis:
            yield f"{who}: {event['says']}"
    for refused in moment["refused"]:
        who = getattr(steps[refused["line"]], "by", "")
        yield f"{who} is REFUSED ({refused['code']}): {refused['message']} {refused['next_step']}"


def _changed(before: dict[str, Any], moment: dict[str, Any]) -> Iterator[str]:
    for unit, override in moment["overrides"].items():
        said = _says(override)
        if unit not in before or _says(before[unit]) != said:
            yield f"-> {unit}: {said}"
    for unit in before:
        if unit not in moment["overrides"]:
            yield f"-> {unit}: gone"


def _value(override: dict[str, Any]) -> str:
    """What SGLang gets: a runner, or nothing."""
    kept = "the same as before: " if override["form"] == "keep" else ""
    return kept + (override["value"] or "nothing appended")


def _says(override: dict[str, Any]) -> str:
    also = f", also {', '.join(override['also'])}" if override["also"] else ""
    would = override["would"]
    wanted = "" if would is None else f"; would {_value(would)}"
    no_safe = "; NO SAFE VALUE" if override["no_safe_value"] else ""
    return f"{_value(override)} ({override['code']}{also}){wanted}{no_safe}"


def _end(result: dict[str, Any]) -> Iterator[str]:
    last = result["times"][-1]
    for name, rollout in last["rollouts"].items():
        code = f" ({rollout['halted_code']})" if rollout["halted_code"] else ""
        yield f"rollout {name}: {rollout['phase']}{code}"
        for wave in rollout["waves"]:
            counts = f"{len(wave['good'])} good, {len(wave['bad'])} bad, "
            yield f"  wave {wave['wave']}: {wave['verdict']}, {counts}{len(wave['pending'])} pending"
    for key, standing in last["kernel_keys"].items():
        yield f"key {key}: {standing}"
    for alarm in last["alarms"]:
        quiet = " (absent)" if alarm["absent"] else ""
        yield f"alarm {alarm['cause']} on SM {alarm['sm']}{quiet}: {', '.join(alarm['units'])}"
    for wait in last["waits"]:
        overdue = " (overdue)" if wait["overdue"] else ""
        yield f"waits {wait['code']} {wait['subject']}: {wait['owner']}{overdue}"
    for name in ("exposed", "uncontrolled", "silent"):
        if last[name]:
            yield f"{name}: {', '.join(last[name])}"
