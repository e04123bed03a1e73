"""`smgate log`: the events themselves, and whether the log is as it was written."""

from __future__ import annotations

import json
import pathlib
import threading
from collections.abc import Iterator
from typing import Annotated, Any, Final

import typer

from smgate import client
from smgate.cli import (
    agreeing,
    asks,
    exit_codes,
    failures,
    offline,
    offline_verify,
    options,
    output,
    server,
    session as sessions,
    unit_rows,
    verbs,
)

NOUN: Final = verbs.noun("log", "The event log.")
PAGE: Final = 500
FOLLOW_S: Final = 1.0


def _at(row: output.Row) -> str:
    return output.text_of(row.get("recorded_at", row.get("at")))


FIRST: Final = (
    *("unit", "node", "rollout", "wave", "kernel_key", "gate", "sm", "cause", "instance_id"),
    *("form", "value", "code", "state", "phase", "runner", "a2a", "check", "outcome", "verdict"),
    *("launch_id", "mode", "direction", "units", "reason", "sentence"),
)
"""What an operator looks for in an event; a line is cut at its end, so these stand first."""


def _order(name: str) -> tuple[int, str]:
    return (FIRST.index(name) if name in FIRST else len(FIRST), name)


def _what(row: output.Row) -> str:
    if "data" in row and row["data"] is None:
        return "(its payload was erased)"
    for key in ("data", "payload", "event"):
        value = row.get(key)
        if isinstance(value, dict):
            told = {
                name: value[name]
                for name in sorted(value, key=_order)
                if name != "type" and value[name] not in (None, [], {}, "")
            }
            return output.text_of(told)
    known = ("position", "type", "actor", "stream", "version", "schema_version", "leaf")
    return output.text_of(
        {
            name: one
            for name, one in row.items()
            if name not in known and not name.endswith("_at_us") and name not in ("at", "at_us")
        }
    )


TABLE: Final = output.Table(
    noun="events",
    name="position",
    columns=(
        output.Column("POSITION", "position"),
        output.Column("AT", _at),
        output.Column("ACTOR", "actor"),
        output.Column("EVENT", "type"),
        output.Column("WHAT", _what, most=100),
        output.Column("STREAM", "stream", wide=True),
    ),
)


@verbs.does(
    NOUN,
    "tail",
    examples=[
        "smgate log tail",
        "smgate log tail --follow -o jsonl",
        "smgate log tail --after 81244 --lines 1000",
    ],
)
def tail(
    session: sessions.Session,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=1, help="How many of the newest events.")
    ] = 20,
    after: Annotated[
        int | None,
        typer.Option("--after", min=0, help="From behind this position instead."),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes.")] = False,
) -> int:
    """Print the newest events, one a line."""
    style = session.style
    if follow and style.format not in ("table", "wide", "jsonl", "name"):
        raise failures.usage(
            f"--follow cannot print {style.format}.", hint="Use -o jsonl for programs."
        )
    start = after
    if start is None:
        head = session.client.get(client.path("log", "head")).body.get("position")
        start = max(0, (head if isinstance(head, int) else 0) - lines)
    if style.format in ("json", "yaml"):
        found = [one for page in _pages(session, start, lines) for one in page]
        session.console.data(output.document({"apiVersion": "v1", "items": found}, style))
        return exit_codes.OK
    printed = False
    for page in _pages(session, start, None if follow else lines):
        _print(session, page, headers=style.headers and not printed)
        printed = True
    if not printed:
        session.console.note(f"No events after position {start}.")
    return exit_codes.OK


def _pages(session: sessions.Session, after: int, left: int | None) -> Iterator[list[output.Row]]:
    """Pages of events until `left` were given or, without an end, until a person interrupts."""
    while left is None or left > 0:
        limit = PAGE if left is None else min(PAGE, left)
        body = session.client.get(client.path("events"), {"after": after, "limit": limit}).body
        items = output.items_of(body)
        if items:
            yield items
            after = max(int(one["position"]) for one in items)
        if left is not None:
            left = left - len(items) if len(items) == limit else 0
        elif len(items) < limit:
            session.console.flush()
            session.clock.wait(threading.Event(), FOLLOW_S)


def _print(session: sessions.Session, items: list[output.Row], *, headers: bool) -> None:
    console, style = session.console, session.style
    match style.format:
        case "json" | "yaml" | "jsonl":
            for one in items:
                console.data(json.dumps(one, ensure_ascii=False))
        case "name":
            for one in items:
                console.data(output.text_of(one.get("position")))
        case "table" | "wide":
            shown = output.Style(format=style.format, headers=headers)
            for line in output.table_lines(items, TABLE, shown):
                console.told(line)


RULINGS: Final = output.Table(
    noun="rulings",
    name="position",
    columns=(
        output.Column("POSITION", "position"),
        output.Column("AT", "at"),
        output.Column("BY", "by"),
        output.Column("RULING", "type"),
        output.Column("WHAT", lambda row: _what({"data": _without_reason(row)}), most=60),
        output.Column("REASON", "reason"),
        output.Column("AUTHOR", "author", wide=True),
    ),
)


def _without_reason(row: output.Row) -> output.Row:
    data = row.get("data")
    return {k: v for k, v in data.items() if k != "reason"} if isinstance(data, dict) else {}


@verbs.reads(
    NOUN,
    "rulings",
    examples=[
        "smgate log rulings --since 2027-03-01T00:00:00Z",
        "smgate log rulings --by alice --limit 20",
        "smgate log rulings --type pin_set -o jsonl",
    ],
)
def rulings(
    by: Annotated[str | None, typer.Option("--by", help="Only this person's.")] = None,
    kind: Annotated[
        str | None, typer.Option("--type", help="Only this type, such as rollout_approved.")
    ] = None,
    since: options.Since = None,
    limit: options.Newest = 100,
) -> asks.Listing:
    """List what people ordered, and why, in the order of the log, the newest last."""
    return asks.Listing(
        path=client.path("log", "rulings"),
        table=RULINGS,
        parameters={"by": by, "type": kind, "since": since, "limit": limit},
        notes=unit_rows.left_out,
    )


@verbs.does(
    NOUN,
    "redact",
    remote=False,
    examples=[
        "smgate log redact 81244 --by anna --reason 'a token in a path' --dry-run",
        "smgate log redact 81244 --by anna --reason 'a token in a path' --yes",
    ],
)
def redact(
    session: sessions.Session,
    position: Annotated[int, typer.Argument(min=1, max=1 << 53, help="Of the fact.")],
    by: Annotated[str, typer.Option("--by", help="Who orders it.")],
    reason: Annotated[str, typer.Option("--reason", help="Why; it stays in the log.")],
    database: Annotated[
        str | None,
        typer.Option("--database", help="Its URL. Else SMGATE_DATABASE_URL."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say whether it can be done; erase nothing.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> int:
    """Erase the payload of one fact for good; the log says who ordered it, and still verifies.

    The controllers must be stopped. Refused while anything that is decided or alarmed stands on the
    fact.
    """
    url = server.load(session, database_url=database).database_url

    def go(*, dry: bool) -> output.Row:
        return offline.redact(url, position, clock=session.clock, by=by, reason=reason, dry_run=dry)

    body = go(dry=True)
    if not dry_run:
        if not yes:
            agreeing.agree(
                session,
                f"The {body['fact']} at {body['position']} is erased and cannot come back.",
                hint="Look with --dry-run, then give --yes.",
            )
        body = go(dry=False)
    output.single(session.console, body, name=str(position), style=session.style, footer="")
    return exit_codes.OK


@verbs.does(
    NOUN,
    "verify",
    examples=[
        "smgate log verify",
        "smgate log verify --database sqlite:////var/lib/smgate/smgate.db -o json",
        "smgate log verify --database sqlite:///smgate.db --kept 81244:9f3c...",
        "smgate log verify --database sqlite:///smgate.db --against heads.txt",
        "smgate log verify --database postgresql://smgate@db/smgate --progress verify.json",
    ],
)
def verify(
    session: sessions.Session,
    database: Annotated[
        str | None,
        typer.Option("--database", help="Read this database itself; no controller is asked."),
    ] = None,
    kept: Annotated[
        str | None,
        typer.Option("--kept", help="POSITION:CHAIN of a head that was kept elsewhere."),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            help="A file of heads that were kept, one or more a line: answers to nodes, alarms, "
            "notes; - reads standard input.",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option("--workers", min=1, max=64, help="Processes that hash; else one per core."),
    ] = None,
    progress: Annotated[
        pathlib.Path | None,
        typer.Option("--progress", help="Keep here how far it came, and go on from there."),
    ] = None,
    archive: Annotated[
        pathlib.Path | None, typer.Option("--archive", help="Where its archive was moved.")
    ] = None,
) -> int:
    """Recompute every hash of the log and name the first row that is not as it was written."""
    if database is not None:
        body = offline_verify.verify(
            database,
            kept=kept,
            against=against,
            workers=workers,
            progress=progress,
            archive=archive,
        )
    elif any(one is not None for one in (kept, against, workers, progress, archive)):
        raise failures.usage(
            "--kept, --against, --workers, --progress and --archive need --database: only a reader "
            "of the rows can do that."
        )
    else:
        body = session.client.get(client.path("log", "verify")).body
    output.single(
        session.console, body, name=str(body.get("chain")), style=session.style, footer=""
    )
    if body.get("ok") is True:
        return exit_codes.OK
    bad: Any = body.get("first_bad") or {}
    raise failures.CliError(
        f"The log is not as it was written: {bad.get('kind', 'bad')} at {bad.get('position')}.",
        code="log_bad",
        cause=output.text_of(bad.get("sentence")),
        hint="Stop writing to it and compare with a backup.",
    )
