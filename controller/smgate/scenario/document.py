"""The scenario format: what a file may say, read strictly, every error with its line.

Documented in `tests/simulation/README.md`; the JSON Schema beside it is made from these classes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec

from smgate.domain import commands
from smgate.scenario import yaml_lines
from smgate.service import refusal, strict
from smgate.wire import facts
from smgate.wire.base import Name

FORMAT: Final = 1
SECOND_US: Final = 1_000_000
LATEST_S: Final = 1e9
DURATION: Final = re.compile(r"^(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?$")

T = TypeVar("T")
Role = Literal["viewer", "operator", "approver", "admin"]


class ScenarioError(Exception):
    """The file cannot be run; the message has the line."""

    def __init__(self, message: str, *, line: int) -> None:
        super().__init__(f"line {line}: {message}")
        self.line = line


class Step(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One step: exactly one of fact, facts, command, connect, disconnect, controller, look."""

    at: float | str
    node: Name | None = None
    fact: facts.Payload | None = None
    facts: tuple[facts.Payload, ...] | None = None
    by: Name | None = None
    role: Role = "approver"
    command: dict[str, Any] | None = None
    connect: Name | None = None
    disconnect: Name | None = None
    controller: Literal["away", "back"] | None = None
    look: bool | None = None
    note: str | None = None


class Document(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A whole file."""

    scenario: Literal[1]
    name: str = ""
    start: Annotated[str, msgspec.Meta(max_length=40)] = "2026-01-01T00:00:00Z"
    steps: list[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """One step, ready to run."""

    line: int
    at_us: int
    step: Step
    command: commands.Command | None
    facts: tuple[facts.Payload, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A file that can be run."""

    name: str
    start_us: int
    steps: tuple[Planned, ...]


def duration_us(at: float | str) -> int:
    """Seconds as a number, or text such as "90s", "1h30m", "2d".

    Raises:
        ValueError: negative, not finite, or no duration.
    """
    if isinstance(at, str):
        found = DURATION.match(at)
        if found is None or not at:
            raise ValueError(f"{at!r} is no duration; write seconds, or 1h30m.")
        days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
        at = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    if not 0 <= at < LATEST_S:
        raise ValueError(f"{at} is out of bounds; times are seconds from the start.")
    return round(at * SECOND_US)


def parse(text: str) -> Scenario:
    """Read a scenario.

    Raises:
        ScenarioError: anything that is not of the format, with its line.
    """
    try:
        value, lines = yaml_lines.load(text)
    except yaml_lines.YamlError as error:
        raise ScenarioError(str(error), line=error.line) from error
    document = _convert(value, Document, (), lines)
    try:
        start = datetime.fromisoformat(document.start)
    except ValueError as error:
        raise ScenarioError(
            f"start {document.start!r} is no ISO-8601 time.", line=_line(lines, ("start",))
        ) from error
    if start.tzinfo is None:
        raise ScenarioError("start needs a time zone, such as Z.", line=_line(lines, ("start",)))
    steps: list[Planned] = []
    for index, item in enumerate(document.steps):
        planned = _step(item, index, lines)
        if steps and planned.at_us < steps[-1].at_us:
            raise ScenarioError(
                "This step is earlier than the one before it.", line=_line(lines, ("steps", index))
            )
        steps.append(planned)
    return Scenario(
        name=document.name,
        start_us=round(start.timestamp() * SECOND_US),
        steps=tuple(steps),
    )


def _step(item: object, index: int, lines: dict[yaml_lines.Path, int]) -> Planned:
    path: yaml_lines.Path = ("steps", index)
    line = _line(lines, path)
    step = _convert(item, Step, path, lines)
    kinds = ("fact", "facts", "command", "connect", "disconnect", "controller", "look")
    given = [kind for kind in kinds if getattr(step, kind) is not None]
    if len(given) != 1:
        raise ScenarioError(
            f"A step has exactly one of {', '.join(kinds)}; this has {', '.join(given) or 'none'}.",
            line=line,
        )
    if given[0] in ("fact", "facts") and step.node is None:
        raise ScenarioError("A fact needs its node.", line=line)
    if given[0] == "command" and step.by is None:
        raise ScenarioError("A command needs `by`: who gives it.", line=line)
    try:
        at_us = duration_us(step.at)
    except ValueError as error:
        raise ScenarioError(str(error), line=_line(lines, (*path, "at"))) from error
    reported = step.facts or ((step.fact,) if step.fact is not None else ())
    return Planned(
        line=line,
        at_us=at_us,
        step=step,
        command=_command(step, path, lines) if step.command is not None else None,
        facts=reported,
    )


def _command(
    step: Step, path: yaml_lines.Path, lines: dict[yaml_lines.Path, int]
) -> commands.Command:
    assert step.command is not None
    fields = dict(step.command)
    name = fields.pop("type", None)
    kind = commands.NAMES.get(name) if isinstance(name, str) else None
    place = (*path, "command")
    if kind is None:
        raise ScenarioError(
            f"There is no command {name!r}; one of {', '.join(sorted(commands.NAMES))}.",
            line=_line(lines, (*place, "type")),
        )
    try:
        command: commands.Command = strict.convert(fields, kind)
    except refusal.RefusedError as error:
        message = str(error)
        raise ScenarioError(message, line=_line(lines, (*place, *_path_in(message)))) from error
    return command


def _convert(
    value: object, kind: type[T], path: yaml_lines.Path, lines: dict[yaml_lines.Path, int]
) -> T:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        message = str(error)
        where = (*path, *_path_in(message))
        unknown = re.search(r"unknown field `(.+?)`", message)
        if unknown is not None:
            where = (*where, unknown.group(1))
        raise ScenarioError(message, line=_line(lines, where)) from error


def _path_in(message: str) -> yaml_lines.Path:
    """The path that msgspec names at the end of its message, such as `$.facts[0].sm`."""
    found = re.search(r"`\$([^`]*)`", message)
    if found is None:
        return ()
    parts = re.findall(r"\.([^.\[\]]+)|\[(\d+)\]", found.group(1))
    return tuple(name or int(number) for name, number in parts)


def _line(lines: dict[yaml_lines.Path, int], path: yaml_lines.Path) -> int:
    """The line of a path, or of its nearest parent that stands in the file."""
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path, 1)
