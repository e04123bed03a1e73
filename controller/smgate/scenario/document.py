"""The scenario format: what a file may say, read strictly, every error with its line.

Documented in `tests/simulation/README.md`; the JSON Schema beside it is made from these classes.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Final, Literal, TypeVar, get_args

import msgspec

from smgate.domain import commands, policy as policies
from smgate.scenario import before, yaml_lines
from smgate.service import refusal, strict
from smgate.wire import facts
from smgate.wire.base import Name

FORMAT: Final = 2
"""The newest version of the format; `Document.scenario` says which a file is of."""
SECOND_US: Final = 1_000_000
LATEST_S: Final = 2e9
DURATION: Final = re.compile(
    r"^(?=[0-9])(?:([0-9]{1,4})d)?(?:([0-9]{1,5})h)?(?:([0-9]{1,6})m)?"
    r"(?:([0-9]{1,7}(?:\.[0-9]{1,6})?)s)?$(?!\n)"
)
NAMED: Final = re.compile(r"^[a-z][a-z_-]{0,39}$(?!\n)")
"""No digits, so it is no id of a change."""
START: Final = re.compile(r"^(19[7-9][0-9]|2[01][0-9]{2})-[0-9]{2}-[0-9]{2}T")

T = TypeVar("T")
Lines = dict[yaml_lines.Path, int]
Role = Literal["viewer", "operator", "approver", "admin"]
At = (
    Annotated[float, msgspec.Meta(ge=0, lt=LATEST_S)]
    | Annotated[str, msgspec.Meta(pattern=DURATION.pattern)]
)
PRINTABLE: Final = r"^[^\u0000-\u0008\u000b-\u001f\u007f-\u009f]*$"
"""No control characters but tab and line feed: what is read here is printed on terminals."""
Note = Annotated[str, msgspec.Meta(max_length=2_000, pattern=PRINTABLE)]
Title = Annotated[str, msgspec.Meta(max_length=200, pattern=PRINTABLE)]


class ScenarioError(Exception):
    """The file cannot be run; the message has the line."""

    def __init__(self, message: str, *, line: int) -> None:
        super().__init__(f"line {line}: {message}")
        self.line = line


class Step(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What every step has: when, and for the reader why.

    One more field says what it is; the class of that has what goes with it.
    """

    at: At
    note: Note = ""


class FactStep(Step, kw_only=True):
    """A node reports one fact."""

    node: Name
    fact: facts.Payload


class FactsStep(Step, kw_only=True):
    """A node reports several facts at once."""

    node: Name
    facts: tuple[facts.Payload, ...]


class CommandStep(Step, kw_only=True):
    """A person gives a command."""

    by: Name
    role: Role = "approver"
    command: dict[str, Any]


class AgreedCommandStep(CommandStep, kw_only=True):
    """A person gives a command, since version 2: what widens needs a second person."""

    accepted_by: Name | None = None
    """Who accepts at the same moment, with the role approver, what needs a second person."""
    break_glass_s: At | None = None
    """Done alone, for so long; then it is undone."""
    named: Annotated[str, msgspec.Meta(pattern=NAMED.pattern)] | None = None
    """A name for the change that this opens, for a later `change_accept` or `change_withdraw`."""


class ConnectStep(Step, kw_only=True):
    """A node holds its long-poll from now on: it is not silent."""

    connect: Name


class DisconnectStep(Step, kw_only=True):
    """A node is heard now for the last time."""

    disconnect: Name


class ControllerStep(Step, kw_only=True):
    """The controller goes away, or comes back."""

    controller: Literal["away", "back"]


class RulesStep(Step, kw_only=True):
    """Another release led until now; this one takes over."""

    rules: before.RulesBefore


class RestoreStep(Step, kw_only=True):
    """A backup of the log is put back. Connected nodes send again what they kept."""

    restore: At
    """How old the backup is."""


class LookStep(Step, kw_only=True):
    """Nothing happens; the output shows how things stand."""

    look: bool


KINDS: Final[dict[str, type[Step]]] = {
    "fact": FactStep,
    "facts": FactsStep,
    "command": CommandStep,
    "connect": ConnectStep,
    "disconnect": DisconnectStep,
    "controller": ControllerStep,
    "rules": RulesStep,
    "restore": RestoreStep,
    "look": LookStep,
}
"""The field that says what a step is."""

KINDS_OF: Final[dict[int, dict[str, type[Step]]]] = {
    1: KINDS,
    2: {**KINDS, "command": AgreedCommandStep},
}
"""The same by version of the format."""

FIELDS: Final = frozenset(
    field for kind in KINDS_OF[FORMAT].values() for field in kind.__struct_fields__
)
"""Every field that any step may have."""

SINCE_2: Final = ("accepted_by", "break_glass_s", "named")
"""Those that version 1 did not have: there one approver was enough."""

FACTS: Final = tuple(kind.__struct_config__.tag for kind in get_args(facts.Payload))
"""Names of the facts, in the order of `wire.facts`."""


class Document(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A whole file."""

    scenario: Literal[1, 2]
    name: Title = ""
    start: Annotated[str, msgspec.Meta(max_length=40, pattern=START.pattern)] = (
        "2026-01-01T00:00:00Z"
    )
    steps: list[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """One step, ready to run."""

    line: int
    at_us: int
    step: Step
    command: commands.Command | None
    break_glass_s: int | None
    facts: tuple[facts.Payload, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A file that can be run."""

    version: int
    name: str
    start_us: int
    steps: tuple[Planned, ...]


def duration_us(at: float | str) -> int:
    """Seconds as a number, or text such as "90s", "1h30m", "2d".

    Raises:
        ValueError: negative, not finite, too long, or no duration.
    """
    if isinstance(at, str):
        found = DURATION.match(at)
        if found is None:
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
    start = _start(document.start, lines)
    steps: list[Planned] = []
    for index, item in enumerate(document.steps):
        planned = _step(item, index, lines, version=document.scenario)
        if steps and planned.at_us < steps[-1].at_us:
            raise ScenarioError(
                "This step is earlier than the one before it.", line=_line(lines, ("steps", index))
            )
        steps.append(planned)
    return Scenario(
        version=document.scenario,
        name=document.name,
        start_us=round(start.timestamp() * SECOND_US),
        steps=tuple(steps),
    )


def _start(text: str, lines: Lines) -> datetime:
    line = _line(lines, ("start",))
    try:
        start = datetime.fromisoformat(text)
    except ValueError as error:
        raise ScenarioError(f"start {text!r} is no ISO-8601 time.", line=line) from error
    if start.tzinfo is None:
        raise ScenarioError("start needs a time zone, such as Z.", line=line)
    return start


def _step(item: object, index: int, lines: Lines, *, version: int) -> Planned:
    path: yaml_lines.Path = ("steps", index)
    line = _line(lines, path)
    if not isinstance(item, dict):
        raise ScenarioError("A step is a mapping, such as {at: 0, look: true}.", line=line)
    given = [kind for kind in KINDS if kind in item]
    unknown = next((name for name in item if name not in FIELDS), None)
    if unknown is not None:
        raise ScenarioError(
            f"A step has no field `{unknown}`.", line=_line(lines, (*path, unknown))
        )
    if len(given) != 1:
        raise ScenarioError(
            f"A step has exactly one of {', '.join(KINDS)}; this has {', '.join(given) or 'none'}.",
            line=line,
        )
    _check_version(item, path, lines, version=version)
    step: Step = _convert(item, KINDS_OF[version][given[0]], path, lines)
    try:
        at_us = duration_us(step.at)
        if isinstance(step, RestoreStep):
            duration_us(step.restore)
    except ValueError as error:
        raise ScenarioError(str(error), line=_line(lines, (*path, "at"))) from error
    if isinstance(step, LookStep) and not step.look:
        raise ScenarioError("Write look: true.", line=_line(lines, (*path, "look")))
    reported: tuple[facts.Payload, ...] = ()
    if isinstance(step, FactStep):
        reported = (step.fact,)
    elif isinstance(step, FactsStep):
        reported = step.facts
        if not reported:
            raise ScenarioError("There is no fact in it.", line=_line(lines, (*path, "facts")))
    if isinstance(step, FactStep | FactsStep | CommandStep):
        _check_bounds(item[given[0]], (*path, given[0]), lines)
    return Planned(
        line=line,
        at_us=at_us,
        step=step,
        command=_command(step, path, lines, version=version)
        if isinstance(step, CommandStep)
        else None,
        break_glass_s=_break_glass_s(step, path, lines),
        facts=reported,
    )


def _check_version(
    item: dict[Any, Any], path: yaml_lines.Path, lines: Lines, *, version: int
) -> None:
    newer = next((name for name in SINCE_2 if name in item), None)
    if version == 1 and newer is not None:
        raise ScenarioError(
            f"`{newer}` needs scenario: 2; in version 1 one approver is enough.",
            line=_line(lines, (*path, newer)),
        )


def _break_glass_s(step: Step, path: yaml_lines.Path, lines: Lines) -> int | None:
    if not isinstance(step, AgreedCommandStep) or step.break_glass_s is None:
        return None
    try:
        return duration_us(step.break_glass_s) // SECOND_US
    except ValueError as error:
        raise ScenarioError(str(error), line=_line(lines, (*path, "break_glass_s"))) from error


def _command(
    step: CommandStep, path: yaml_lines.Path, lines: Lines, *, version: int
) -> commands.Command:
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
        raise _wrong(str(error), place, lines) from error
    asked = fields.get("policy")
    if (
        version == 1
        and isinstance(command, commands.PublishPolicy)
        and isinstance(asked, dict)
        and "second_person" not in asked
    ):
        return dataclasses.replace(command, policy=of_version_1(command.policy))
    return command


def of_version_1(policy: policies.Policy) -> policies.Policy:
    """A policy as it was before every widening needed a second person."""
    return dataclasses.replace(policy, second_person="rollouts")


def _check_bounds(value: object, path: yaml_lines.Path, lines: Lines) -> None:
    """The bounds of the API, for what the types leave open."""
    try:
        strict.check_bounds(value, "$")
    except refusal.RefusedError as error:
        raise _wrong(str(error), path, lines) from error


def _convert(value: object, kind: type[T], path: yaml_lines.Path, lines: Lines) -> T:
    try:
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise _wrong(str(error), path, lines) from error


def _wrong(message: str, path: yaml_lines.Path, lines: Lines) -> ScenarioError:
    """What the decoder says, at the line of what it speaks of."""
    where = (*path, *_path_in(message))
    unknown = re.search(r"unknown field `(.+?)`", message)
    if unknown is not None:
        where = (*where, unknown.group(1))
    if re.search(r"Expected `str(?: \| null)?`, got `(?:int|float)`", message):
        message = f"{message.rstrip('.')}: write it in quotes."
    if message.startswith("Invalid value") and where[-1:] == ("type",):
        message = f"{message}: a fact is one of {', '.join(FACTS)}."
    return ScenarioError(message, line=_line(lines, where))


def _path_in(message: str) -> yaml_lines.Path:
    """The path that msgspec names at the end of its message, such as `$.facts[0].sm`."""
    found = re.search(r"`\$([^`]*)`", message)
    if found is None:
        return ()
    parts = re.findall(r"\.([^.\[\]]+)|\[(\d+)\]", found.group(1))
    return tuple(name or int(number) for name, number in parts)


def _line(lines: Lines, path: yaml_lines.Path) -> int:
    """The line of a path, or of its nearest parent that stands in the file."""
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path, 1)
