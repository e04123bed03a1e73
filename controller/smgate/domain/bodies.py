"""A command as plain data, as an event keeps it, and back: strings, numbers, lists, maps.

A body lacks nothing when it is written; one that is read may lack fields that came later, which have
their defaults then, as in the log's own events.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable
from functools import cache
from typing import Any, Final

from smgate.domain import commands

Body = dict[str, Any]

_NAME_OF: Final = {kind: name for name, kind in commands.NAMES.items()}


def name_of(command: commands.Command) -> str:
    """The public name of a command."""
    return _NAME_OF[type(command)]


def of_command(command: commands.Command) -> Body:
    """The fields of a command but its reason, which is kept apart."""
    body: Body = _plain(command)
    del body["reason"]
    return body


def to_command(name: str, body: Body, *, reason: str) -> commands.Command:
    """The command that a body was made of."""
    read = _reader(commands.NAMES[name])
    command: commands.Command = read({**body, "reason": reason})
    return command


def _plain(value: Any) -> Any:  # noqa: ANN401  any value of a command
    if dataclasses.is_dataclass(value):
        return {one.name: _plain(getattr(value, one.name)) for one in dataclasses.fields(value)}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(value[key]) for key in sorted(value)}
    return value


Read = Callable[[Any], Any]


@cache
def _reader(kind: Any) -> Read:  # noqa: ANN401  any type that a command's field may have
    """What turns plain data into a value of a type."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return lambda value: kind(**{key: _reader(hints[key])(one) for key, one in value.items()})
    if origin is tuple:
        return lambda value: tuple(_reader(inner[0])(item) for item in value)
    if origin is dict:
        return lambda value: {key: _reader(inner[1])(item) for key, item in value.items()}
    if origin is types.UnionType:  # a type or None: no field of a command is anything else
        (some,) = (one for one in inner if one is not type(None))
        return lambda value: None if value is None else _reader(some)(value)
    if kind is float:
        return float
    return lambda value: value


def describe(name: str, body: Body) -> str:
    """A command in few words: `gate mode kimi-k3-mxfp4 10.7 enforce`."""
    words = [name.replace("_", " ")]
    for key in (field.name for field in dataclasses.fields(commands.NAMES[name])):
        value = body.get(key)
        if isinstance(value, str):
            words.append(value)
        elif value is True:
            words.append(key.replace("_", "-"))
        elif isinstance(value, dict) and isinstance(value.get("id"), str):
            words.append(value["id"])
        elif isinstance(value, list) and value and all(isinstance(one, str) for one in value):
            words.append(",".join(value))
    return " ".join(words)
