"""Owns --watch: a picture that is redrawn on a terminal, else one line per change."""

from __future__ import annotations

import datetime
import json
import threading
from collections.abc import Callable
from typing import Final

from smgate import client
from smgate.cli import asks, exit_codes, failures, output, session as sessions

FORMATS: Final = ("table", "wide", "jsonl", "name")


class _Changes:
    """Tells only the rows that differ from the last look."""

    def __init__(self, session: sessions.Session, table: output.Table) -> None:
        self._session: Final = session
        self._table: Final = table
        self._last: dict[str, str] = {}
        self._first = True

    def tell(self, rows: list[output.Row]) -> None:
        style, console = self._session.style, self._session.console
        columns = self._table.shown(style)
        if self._first and style.human and style.headers:
            console.data("  ".join(["TIME", *(one.header for one in columns)]))
        self._first = False
        now: dict[str, str] = {}
        for row in rows:
            name = self._table.name_of(row)
            if style.human:
                now[name] = "  ".join(one.cell(row, style) for one in columns)
            else:
                now[name] = json.dumps(row, ensure_ascii=False)
            if self._last.get(name) != now[name]:
                console.data(self._line(name, now[name]))
        for name in self._last:
            if name not in now and style.human:
                console.data(self._line(name, f"{name}  gone"))
        self._last = now
        console.flush()

    def _line(self, name: str, text: str) -> str:
        match self._session.style.format:
            case "name":
                return name
            case "jsonl" | "json" | "yaml":
                return text
            case "table" | "wide":
                return f"{_time(self._session)}  {text}"


def watch(
    session: sessions.Session,
    flags: asks.WatchFlags,
    *,
    look: Callable[[], client.Answer],
    rows_of: Callable[[output.Row], list[output.Row]],
    table: output.Table,
    draw: Callable[[client.Answer], None],
    ended: Callable[[output.Row], int | None] | None = None,
) -> int:
    """Look again and again until it ended, the time is up, or a person interrupts."""
    if session.style.format not in FORMATS:
        raise failures.usage(
            f"--watch cannot print {session.style.format}.", hint="Use -o jsonl for programs."
        )
    started_us = session.clock.now_us()
    redraw = session.style.human and session.console.can_redraw
    changes = _Changes(session, table)
    seen = away = False
    while True:
        try:
            answer = look()
        except client.UnreachableError as error:
            if not seen:
                raise
            if not away:
                session.console.warn(f"{failures.unreachable(error).what} Still trying.")
            away = True
        else:
            seen, away = True, False
            if redraw:
                session.console.redraw()
                draw(answer)
            else:
                changes.tell(rows_of(answer.body))
            code = None if ended is None else ended(answer.body)
            if code is not None:
                return code
        _pause(session, flags, started_us)


def _pause(session: sessions.Session, flags: asks.WatchFlags, started_us: int) -> None:
    spent_s = (session.clock.now_us() - started_us) / 1e6
    if flags.timeout_s is not None and spent_s + flags.interval_s > flags.timeout_s:
        raise failures.CliError(
            f"Nothing ended it within {flags.timeout_s:g} s.",
            exit_code=exit_codes.UNREACHABLE,
            code="timeout",
            hint="Give a longer --timeout, or none.",
        )
    session.clock.wait(threading.Event(), flags.interval_s)


def _time(session: sessions.Session) -> str:
    when = datetime.datetime.fromtimestamp(session.clock.now_us() / 1e6, tz=datetime.UTC)
    return f"{when:%H:%M:%S}"
