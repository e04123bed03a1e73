"""A scenario's output as a short text: one line per event, refusal and changed override."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from smgate.domain import bodies

MUTED = ("episode_updated", "gate_published", "leadership_taken")
"""Said at the end, or the same in every transcript."""

GENESIS = ("policy_published", "issue_published")
"""The controller's own, with which every log begins; a person's are told."""


def transcript(result: dict[str, Any]) -> str:
    """The whole output, as an incident report would tell it."""
    lines = [result["name"], ""]
    before: dict[str, Any] = {}
    for moment in result["times"]:
        told = [*_happened(moment), *_changed(before, moment)]
        if told:
            lines.append(f"+{_offset(moment['at_s'])}")
            lines.extend(f"  {line}" for line in told)
        before = moment["overrides"]
    lines += ["", *_end(result)]
    return "\n".join(lines) + "\n"


def _offset(at_s: float) -> str:
    days, rest = divmod(round(at_s), 86_400)
    clock = f"{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
    return f"{days}d {clock}" if days else clock


def _happened(moment: dict[str, Any]) -> Iterator[str]:
    if moment["controller"] == "away":
        yield "(the controller is away)"
    for event in moment["events"]:
        genesis = event["type"] in GENESIS and event["actor"] == "controller"
        if event["type"] == "override_set":
            if event["event"]["launch_ids"]:
                yield f"controller tells {', '.join(event['event']['launch_ids'])}: " + _value(
                    event["event"]
                )
        elif event["type"] not in MUTED and not genesis:
            yield f"{event['actor'].rpartition(':')[2]}: {event['type']} {_details(event)}".rstrip()
    for refused in moment["refused"]:
        yield f"REFUSED {refused['code']}: {refused['message']}"


DETAILS = {
    "node_reported": ("rack", "pool"),
    "launch_planned": ("launch_id", "unit_name", "node_rank", "asked_runner", "asked_a2a"),
    "check_finished": ("check", "outcome"),
    "instance_changed": ("instance_id", "state", "exit_code"),
    "effective_seen": ("instance_id", "runner", "a2a"),
    "memory_fallback_seen": ("instance_id", "phase"),
    "bake_interval": ("interval_s", "requests"),
    "gpu_fault_seen": ("gpu_uuid", "xid"),
    "self_test_wanted": ("purpose", "kernel_key", "node"),
    "build_qualified": ("kernel_key",),
    "build_suspected": ("kernel_key", "check"),
    "build_failed": ("kernel_key", "chassis"),
    "build_cleared": ("kernel_key", "node_fault_gpu_uuids"),
    "check_ruled": ("kernel_key", "gpu_uuids", "ruling", "reason"),
    "build_accepted": ("kernel_key", "like", "reason"),
    "granted": ("unit", "rollout", "wave"),
    "grant_ended": ("unit", "code"),
    "drain_ordered": ("unit", "code", "nodes"),
    "drain_hook_ended": ("unit", "outcome", "exit_code"),
    "drain_finished": ("unit", "code"),
    "drain_failed": ("unit", "code", "sentence"),
    "change_held": ("code", "subject", "units", "would"),
    "wave_opened": ("rollout", "wave", "units"),
    "wave_joined": ("rollout", "wave", "units"),
    "wave_judged": ("rollout", "wave", "verdict", "sentence"),
    "episode_opened": ("cause", "sm", "units"),
    "episode_closed": ("episode",),
    "wait_timed_out": ("code", "subject", "owner"),
    "node_went_silent": ("node",),
    "breaker_tripped": ("units",),
    "gate_mode_set": ("sm", "mode", "reason"),
    "gate_disabled": ("sms", "reason"),
    "rollout_proposed": ("reason",),
    "rollout_approved": ("rollout", "reason"),
    "rollout_started": ("rollout", "reason"),
    "rollout_paused": ("rollout", "code", "reason"),
    "rollout_halted": ("rollout", "code"),
    "rollout_completed": ("rollout", "kernel_keys"),
    "override_applied": ("launch_id", "form", "value"),
    "pin_set": ("unit", "direction", "break_glass", "reason"),
    "unit_disagreed": ("unit", "pairs"),
    "gate_enabled": ("sms", "reason"),
    "issue_withdrawn": ("issue_id", "reason"),
    "issue_published": ("reason",),
    "policy_published": ("reason",),
    "change_asked": ("command", "reason"),
    "change_accepted": ("change", "reason"),
    "change_withdrawn": ("change", "code", "reason"),
    "break_glass_used": ("command", "expires_s", "undo", "reason"),
    "rules_changed": ("before", "after"),
    "log_restored": ("before", "incarnation"),
    "directive_held": ("units",),
}
"""What is told of an event; of any other, every value."""


def _details(event: dict[str, Any]) -> str:
    payload = event["event"]
    if "body" in payload:
        payload = payload | {"command": bodies.describe(payload["command"], payload["body"])}
    names = DETAILS.get(event["type"], tuple(payload))
    shown = {name: payload.get(name) for name in names}
    return " ".join(
        name if value is True else _short(value)
        for name, value in shown.items()
        if value not in (None, [], "") and value is not False
    )


def _short(value: object) -> str:
    if isinstance(value, dict) and {"name", "unit"} & set(value):
        named = value.get("name", value.get("unit"))
        return f"{named} {value['value']}" if "value" in value else str(named)
    if isinstance(value, list):
        return "[" + ", ".join(map(_short, value)) + "]"
    return f'"{value}"' if isinstance(value, str) and " " in value else str(value)


def _changed(before: dict[str, Any], moment: dict[str, Any]) -> Iterator[str]:
    for unit, override in moment["overrides"].items():
        said = _says(override)
        if unit not in before or _says(before[unit]) != said:
            yield f"=> {unit}: {said}"
    for unit in before:
        if unit not in moment["overrides"]:
            yield f"=> {unit}: gone"


def _value(override: dict[str, Any]) -> str:
    return f"{override['form']} {override['value'] or ''}".rstrip()


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
