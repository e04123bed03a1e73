"""Sends a command: look first and ask in numbers where it reaches far, then once, repeatable."""

from __future__ import annotations

from typing import Any, Final

from smgate import client, clock as clocks
from smgate.cli import (
    asks,
    console as consoles,
    exit_codes,
    failures,
    issue_lines,
    output,
    runner,
    session as sessions,
    unit_rows,
)

KIND_OF_FIELD: Final = {
    "unit": "unit",
    "rollout": "rollout",
    "gate": "gate",
    "issue_id": "issue",
    "id": "freeze",
    "change": "change",
}
"""Which kind of thing a field of a command names."""


def change(
    session: sessions.Session,
    command: str,
    wanted: asks.Change,
    flags: asks.ChangeFlags,
    *,
    asks_first: bool,
) -> int:
    """Send one command as the flags say."""
    if not flags.reason.strip():
        raise failures.usage("--reason is empty.", hint="Say why; it is kept in the log for good.")
    body: dict[str, Any] = {"type": command, **wanted.fields, "reason": flags.reason.strip()}
    if flags.break_glass_s is not None:
        body["break_glass_s"] = flags.break_glass_s
    if flags.at_position is not None:
        body["expected_position"] = flags.at_position
    if flags.dry_run:
        return _dry_run(session, body, wanted)
    if asks_first and wanted.ask and not flags.yes:
        _agree(session, body, wanted)
    key = clocks.new_id() if flags.idempotency_key is None else flags.idempotency_key
    answer = _send(session, {**body, "idempotency_key": key})
    _print(session, answer.body)
    position = answer.body.get("position")
    if not answer.body.get("changed"):
        session.console.note(f"Already so at position {position}; nothing was written.")
    elif answer.body.get("repeated"):
        session.console.note(f"Was written before, at position {position}; nothing was added.")
    else:
        session.console.note(f"Written at position {position}.")
    _say_what_follows(session, wanted, answer.body)
    return _waiting(session, answer.body)


def _waiting(session: sessions.Session, body: output.Row) -> int:
    """Say what waits for another person now."""
    kind, change = (
        output.pick(body, "waits.kind"),
        output.text_of(output.pick(body, "waits.change")),
    )
    if kind == "asked":
        session.console.say(
            f"Asked as {change}, and not done yet; another person: smgate change accept {change}"
        )
        return exit_codes.WAITING
    if kind == "break_glass":
        session.console.say(
            f"In force until {output.text_of(output.pick(body, 'waits.until'))} by one person alone, as {change}; "
            f"to keep it, another person: smgate change accept {change}"
        )
    return exit_codes.OK


def _say_what_follows(session: sessions.Session, wanted: asks.Change, answered: output.Row) -> None:
    events = [one for one in answered.get("events") or () if isinstance(one, dict)]
    for line in wanted.follows(session.client, events) if wanted.follows else ():
        session.console.say(consoles.clean(line))


def _dry_run(session: sessions.Session, body: dict[str, Any], wanted: asks.Change) -> int:
    answer = _send(session, {**body, "dry_run": True})
    _print(session, answer.body)
    for line in consequences(answer.body):
        session.console.note(line)
    _say_what_follows(session, wanted, answer.body)
    position = answer.body.get("position")
    session.console.note(
        f"Dry run at position {position}: nothing was written. To write it only if the world "
        f"has not moved: the same command with --at-position {position} instead of --dry-run."
    )
    return exit_codes.OK


def _agree(session: sessions.Session, body: dict[str, Any], wanted: asks.Change) -> None:
    console = session.console
    if not console.can_ask:
        raise failures.usage(
            "This needs a yes, and there is no terminal to ask on.",
            code="needs_yes",
            hint="Look with --dry-run, then give --yes.",
        )
    preview = _send(session, {**body, "dry_run": True}).body
    console.say(f"{consoles.clean(wanted.summary)}")
    console.say(f"At {consoles.clean(session.settings.where)}, position {preview.get('position')}.")
    for line in consequences(preview):
        console.say(line)
    for line in wanted.consequence(session.client) if wanted.consequence else ():
        console.say(line)
    if wanted.typed_name is None:
        agreed = console.ask("Go on? [y/N]").casefold() in ("y", "yes")
    else:
        agreed = console.ask(f"Type {wanted.typed_name} to go on:") == wanted.typed_name
    if not agreed:
        raise failures.CliError("Not done: nobody agreed.", code="declined")


def consequences(looked: output.Row) -> list[str]:
    """What a dry run says would follow, in numbers."""
    if not looked.get("events"):
        if output.pick(looked, "waits.kind") == "asked":
            change = output.text_of(output.pick(looked, "waits.change"))
            return [f"It was asked for already, as {change}."]
        return ["It is already so; nothing would be written."]
    preview = looked.get("preview")
    if not isinstance(preview, dict):
        return []
    return [*_asked(looked), *in_numbers(preview)]


def _asked(looked: output.Row) -> list[str]:
    if any(one.get("type") == "change_asked" for one in looked.get("events") or ()):
        return ["It waits until another person accepts it. When that is done:"]
    return []


def in_numbers(preview: output.Row) -> list[str]:
    """Whom what is looked at reaches."""
    changed, units = preview.get("changed_units"), preview.get("units")
    changes = preview.get("changes") or []
    lines = [line for one in preview.get("issues") or () for line in issue_lines.lines(one)]
    lines += [f"Units that would be decided anew: {changed} of {units}."]
    if len(changes) == changed:
        other = sum(1 for one in changes if _value(one, "before") != _value(one, "after"))
        lines.append(f"Units whose override would change at their next start: {other}.")
    kinds: dict[str, list[str]] = {}
    for one in changes:
        turn = f"{_verdict(one.get('before'))} -> {_verdict(one.get('after'))}"
        kinds.setdefault(turn, []).append(output.text_of(one.get("unit")))
    for turn, names in sorted(kinds.items(), key=lambda kind: -len(kind[1])):
        lines.append(f"  {len(names)}: {turn}: {output.few(names)}")
    return lines


def _value(change: output.Row, when: str) -> tuple[object, object]:
    return output.pick(change, f"{when}.form"), output.pick(change, f"{when}.value")


def _verdict(one: object) -> str:
    return "-" if not isinstance(one, dict) else f"{unit_rows.short(one)} ({one.get('code')})"


def _send(session: sessions.Session, body: dict[str, Any]) -> client.Answer:
    try:
        return session.client.command(body)
    except client.ApiError as error:
        kind, name = _named(body)
        raise runner.with_suggestion(session, error, kind=kind, name=name) from error
    except client.UnreachableError as error:
        key = body.get("idempotency_key")
        raise failures.unreachable(error, idempotency_key=key) from error


def _named(body: dict[str, Any]) -> tuple[str | None, str]:
    for field, kind in KIND_OF_FIELD.items():
        if isinstance(body.get(field), str):
            return kind, body[field]
    return None, ""


def _print(session: sessions.Session, body: output.Row) -> None:
    events = body.get("events")
    rows = [one for one in events if isinstance(one, dict)] if isinstance(events, list) else []
    console, style = session.console, session.style
    match style.format:
        case "json" | "yaml":
            console.data(output.document(body, style))
        case "jsonl":
            output.listing(console, {"items": rows}, _EVENTS, style, footer="")
        case "name":
            for row in rows:
                console.data(output.text_of(row.get("type")))
        case "table" | "wide":
            for line in output.table_lines(rows, _EVENTS, style):
                console.told(line)


def _what(row: output.Row) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in ("type", "reason", "position")}


_EVENTS: Final = output.Table(
    noun="events",
    name="type",
    columns=(output.Column("EVENT", "type"), output.Column("WHAT", _what, most=160)),
)
