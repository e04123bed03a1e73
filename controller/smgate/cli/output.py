"""Owns the shapes of output: table and wide for people, json, yaml, jsonl and name for programs."""

from __future__ import annotations

import dataclasses
import datetime
import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Literal

from smgate.cli import console as consoles

OutputFormat = Literal["table", "wide", "json", "yaml", "jsonl", "name"]
Row = dict[str, Any]
HUMAN: Final = ("table", "wide")
_GAP: Final = "  "
NAMES_MAX: Final = 5
"""Names shown of each kind before a question; --dry-run -o json has more."""
_ISO: Final = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(?:\.\d+)?(?:Z|\+00:00)")
"""Times as the API writes them; people get whole seconds."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """How this command shall print."""

    format: OutputFormat = "table"
    headers: bool = True

    @property
    def human(self) -> bool:
        """For people; only then is there a footer."""
        return self.format in HUMAN


@dataclasses.dataclass(frozen=True, slots=True)
class Column:
    """One column: its header, where its value is (a dotted path, or a function of the row)."""

    header: str
    source: str | Callable[[Row], object]
    wide: bool = False
    """Shown only with -o wide."""
    most: int | None = None
    """Characters shown, except with -o wide."""

    def cell(self, row: Row, style: Style) -> str:
        """The text of one cell."""
        value = pick(row, self.source) if isinstance(self.source, str) else self.source(row)
        text = text_of(value)
        if self.most is None or len(text) <= self.most or style.format == "wide":
            return text
        return f"{text[: self.most - 3]}..."


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """How rows of one kind look. `name` is the path of what identifies a row."""

    noun: str
    name: str
    columns: tuple[Column, ...]

    def shown(self, style: Style) -> tuple[Column, ...]:
        """The columns of this style."""
        return tuple(one for one in self.columns if style.format == "wide" or not one.wide)

    def name_of(self, row: Row) -> str:
        """What identifies the row."""
        return text_of(pick(row, self.name))


def pick(row: object, path: str) -> object:
    """The value at a dotted path; None where there is nothing."""
    value = row
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def text_of(value: object) -> str:
    """One cell: short, on one line, harmless to a terminal."""
    if value is None or value == "" or value == [] or value == {}:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{consoles.clean(str(key))}={_inner(value[key])}" for key in value)
    if isinstance(value, (list, tuple)):
        return ", ".join(_inner(one) for one in value)
    text = consoles.clean(str(value))
    moment = _ISO.fullmatch(text)
    return f"{moment[1]} {moment[2]}Z" if moment else text


def _inner(value: object) -> str:
    """A value within another: bracketed, so that it is seen where it ends."""
    if isinstance(value, dict) and value:
        return f"{{{text_of(value)}}}"
    return f"[{text_of(value)}]" if isinstance(value, (list, tuple)) and value else text_of(value)


def few(names: Sequence[str]) -> str:
    """The first names, and that there are more."""
    return ", ".join(names[:NAMES_MAX]) + (", ..." if len(names) > NAMES_MAX else "")


def aligned(rows: Sequence[Sequence[str]], *, indent: str = "") -> list[str]:
    """Rows as lines, columns aligned, nothing behind the last cell."""
    if not rows:
        return []
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return [
        indent
        + _GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def listing(
    console: consoles.Console, body: Row, table: Table, style: Style, *, footer: str
) -> None:
    """Print a list as the API gave it."""
    items = items_of(body)
    match style.format:
        case "json" | "yaml":
            console.data(document(body, style))
        case "jsonl":
            for item in items:
                console.data(json.dumps(item, ensure_ascii=False))
        case "name":
            for item in items:
                console.data(table.name_of(item))
        case "table" | "wide":
            for number, line in enumerate(table_lines(items, table, style)):
                heading = number == 0 and style.headers
                console.told(line, style=consoles.BOLD if heading else None)
            if not items:
                console.note(f"No {table.noun}.")
            if footer:
                console.note(footer)


def items_of(body: Row) -> list[Row]:
    """The rows of a list answer."""
    items = body.get("items", [])
    return [one for one in items if isinstance(one, dict)] if isinstance(items, list) else []


def rows_in(value: object) -> list[Row]:
    """The rows of a list within an answer; none where there is no list."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def object_of(body: Row) -> Row:
    """The one thing of an answer about one thing."""
    item = body.get("item")
    return item if isinstance(item, dict) else body


def table_lines(items: Iterable[Row], table: Table, style: Style) -> list[str]:
    """Header and rows; nothing at all without rows."""
    columns = table.shown(style)
    rows = [[one.cell(item, style) for one in columns] for item in items]
    if not rows:
        return []
    return aligned([[one.header for one in columns], *rows] if style.headers else rows)


def single(
    console: consoles.Console,
    body: Row,
    *,
    name: str,
    style: Style,
    footer: str,
    lines: Callable[[Row], list[str]] | None = None,
) -> None:
    """Print one object. `lines` tells it to a person; without it, keys and values do."""
    match style.format:
        case "json" | "yaml":
            console.data(document(body, style))
        case "jsonl":
            console.data(json.dumps(body, ensure_ascii=False))
        case "name":
            console.data(consoles.clean(name))
        case "table" | "wide":
            for line in (lines or key_lines)(body):
                console.told(line)
            if footer:
                console.note(footer)


def key_lines(body: Row, *, indent: str = "") -> list[str]:
    """Keys and values, one a line, nested ones indented."""
    plain = {
        key: value for key, value in body.items() if not _nested(value) and key != "apiVersion"
    }
    width = max((len(consoles.clean(key)) for key in plain), default=0) + 1
    lines: list[str] = []
    for key, value in body.items():
        label = consoles.clean(key) + ":"
        if key in plain:
            lines.append(f"{indent}{label.ljust(width)} {text_of(value)}")
        elif isinstance(value, dict):
            lines += [indent + label, *key_lines(value, indent=indent + "  ")]
        elif isinstance(value, list):
            lines.append(indent + label)
            for one in value:
                inner = key_lines(one, indent=indent + "    ") if isinstance(one, dict) else []
                if inner:
                    inner[0] = f"{indent}  - {inner[0].lstrip()}"
                lines += inner or [f"{indent}  - {text_of(one)}"]
    return lines


def _nested(value: object) -> bool:
    if isinstance(value, dict):
        return bool(value)
    return isinstance(value, list) and any(isinstance(one, (dict, list)) for one in value)


def document(body: object, style: Style) -> str:
    """The whole answer, as the API gave it."""
    if style.format == "json":
        return json.dumps(body, ensure_ascii=False, indent=2)
    import yaml

    return yaml.safe_dump(body, sort_keys=False, allow_unicode=True, width=100).rstrip("\n")


def according_to(body: Row, date: str | None) -> str:
    """Whose view this is, and of when."""
    # A single row's own `position` is that of its newest event, not that of the view.
    position = body.get("position") if "items" in body else body.get("as_of_position")
    view = "according to the controller"
    if isinstance(position, int):
        view += f" at position {position}"
    if date is not None:
        import email.utils

        try:
            when = email.utils.parsedate_to_datetime(date)
        except ValueError:
            return view
        view += f", {when.astimezone(datetime.UTC):%H:%M:%S} UTC"
    return view
