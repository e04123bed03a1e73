"""Owns reading what people publish: YAML or JSON into the domain's own shapes, strictly.

Every refusal names the line and the path. Text stays as it was written: `sm: 10.0` means "10.0" and
`0.6.10` is no number, whatever YAML makes of them.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import types
import typing
from pathlib import Path
from typing import Any, Final, Literal, TextIO, TypeVar, Union

import yaml

from smgate.cli import failures

FILE_BYTES_MAX: Final = 1 << 20
"""What the API accepts at most in one request."""
STANDARD_INPUT: Final = "-"
SUFFIXES: Final = frozenset({".yaml", ".yml", ".json"})
"""What tells a file from a name where either may stand."""
ADDED: Final = frozenset({"apiVersion", "position"})
"""Keys that the controller adds to what was published."""
_TEXTUAL: Final = frozenset({"str", "int", "float", "timestamp"})

T = TypeVar("T")


def load(
    path: str, kind: type[T], *, asked: TextIO, ignored: frozenset[str] = frozenset()
) -> dict[str, Any]:
    """The file as a JSON object that fits the dataclass `kind`.

    `ignored` are keys that `show -o yaml` adds, so that its output can be edited and published.

    Raises:
        failures.CliError: it cannot be read or does not fit; says the line and the path.
    """
    name = "standard input" if path == STANDARD_INPUT else path
    reader = _Reader(name, ignored)
    node = reader.compose(_read(path, asked))
    value = reader.convert(node, kind, where="")
    assert isinstance(value, dict), "a dataclass becomes an object"
    return value


def _read(path: str, asked: TextIO) -> str:
    try:
        if path == STANDARD_INPUT:
            text = asked.read(FILE_BYTES_MAX + 1)
        else:
            with Path(path).open(encoding="utf-8") as file:
                text = file.read(FILE_BYTES_MAX + 1)
    except (OSError, UnicodeDecodeError) as error:
        cause = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise failures.usage(f"{path} cannot be read.", cause=cause or str(error)) from error
    if len(text) > FILE_BYTES_MAX:
        raise failures.usage(f"{path} is larger than {FILE_BYTES_MAX} bytes.")
    return text


class _Reader:
    """One file."""

    def __init__(self, name: str, ignored: frozenset[str]) -> None:
        self._name: Final = name
        self._ignored: Final = ignored

    def compose(self, text: str) -> yaml.Node:
        if text.lstrip().startswith("{"):
            # JSON allows tabs between tokens, YAML does not. In JSON text a tab is always escaped.
            with_tabs = _is_json(text)
            text = text.replace("\t", " ") if with_tabs else text
        try:
            node = yaml.compose(text, Loader=yaml.SafeLoader)
        except yaml.MarkedYAMLError as error:
            line = (error.problem_mark.line + 1) if error.problem_mark else 1
            raise failures.usage(
                f"{self._name}:{line}: {error.problem or 'not YAML'}", cause=error.context or ""
            ) from error
        except (yaml.YAMLError, RecursionError) as error:
            raise failures.usage(f"{self._name}: not YAML", cause=str(error)) from error
        if node is None:
            raise failures.usage(f"{self._name} is empty.")
        return node

    def convert(self, node: yaml.Node, kind: object, *, where: str) -> Any:  # noqa: ANN401  JSON
        """The node as JSON that fits the annotation `kind`."""
        if dataclasses.is_dataclass(kind) and isinstance(kind, type):
            return self._object(node, kind, where)
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if origin in (Union, types.UnionType):
            return self._optional(node, arguments, where)
        if origin is tuple:
            return self._list(node, arguments[0], where)
        if origin is dict:
            return self._mapping(node, arguments[1], where)
        if origin is Literal:
            text = self._scalar(node, str, where)
            if text not in arguments:
                self._refuse(node, where, f"{text!r} is none of {', '.join(map(str, arguments))}")
            return text
        return self._scalar(node, kind, where)

    def _object(self, node: yaml.Node, kind: type, where: str) -> dict[str, Any]:
        hints = typing.get_type_hints(kind)
        fields = {one.name: one for one in dataclasses.fields(kind)}
        found: dict[str, Any] = {}
        for key_node, value_node in self._pairs(node, where):
            key = self._scalar(key_node, str, where)
            inner = f"{where}.{key}" if where else key
            if not where and key in self._ignored and key not in fields:
                continue
            if key not in fields:
                near = difflib.get_close_matches(key, fields, n=1)
                hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(fields)}"
                self._refuse(key_node, inner, f"unknown key; {hint}")
            if key in found:
                self._refuse(key_node, inner, "stands twice")
            found[key] = self.convert(value_node, hints[key], where=inner)
        for name, one in fields.items():
            needed = (
                one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING
            )
            if needed and name not in found:
                self._refuse(node, f"{where}.{name}" if where else name, "is missing")
        return found

    def _mapping(self, node: yaml.Node, kind: object, where: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key_node, value_node in self._pairs(node, where):
            key = self._scalar(key_node, str, where)
            if key in found:
                self._refuse(key_node, f"{where}.{key}", "stands twice")
            found[key] = self.convert(value_node, kind, where=f"{where}.{key}")
        return found

    def _pairs(self, node: yaml.Node, where: str) -> list[tuple[yaml.Node, yaml.Node]]:
        if not isinstance(node, yaml.MappingNode):
            self._refuse(node, where, "must be a table of keys and values")
        return list(node.value)

    def _list(self, node: yaml.Node, kind: object, where: str) -> list[Any]:
        if not isinstance(node, yaml.SequenceNode):
            self._refuse(node, where, "must be a list")
        return [
            self.convert(one, kind, where=f"{where}[{number}]")
            for number, one in enumerate(node.value)
        ]

    def _optional(self, node: yaml.Node, kinds: tuple[Any, ...], where: str) -> Any:  # noqa: ANN401
        if _tag(node) == "null" and type(None) in kinds:
            return None
        [kind] = [one for one in kinds if one is not type(None)]
        return self.convert(node, kind, where=where)

    def _scalar(self, node: yaml.Node, kind: object, where: str) -> Any:  # noqa: ANN401  JSON
        if not isinstance(node, yaml.ScalarNode):
            self._refuse(node, where, f"must be {_named(kind)}")
        text, tag = str(node.value), _tag(node)
        if kind is str and tag in _TEXTUAL:
            return text
        try:
            if kind is int and tag == "int":
                return int(text.replace("_", ""))
            if kind is float and tag in ("int", "float"):
                return float(text.replace("_", ""))
        except ValueError:
            pass  # Octal, sexagesimal and the like: refused below like any other misfit.
        if kind is bool and tag == "bool" and text.casefold() in ("true", "false"):
            return text.casefold() == "true"
        return self._refuse(node, where, f"must be {_named(kind)}, not {text or 'nothing'!r}")

    def _refuse(self, node: yaml.Node, where: str, what: str) -> typing.NoReturn:
        line = node.start_mark.line + 1
        raise failures.usage(
            f"{self._name}:{line}: {where + ': ' if where else ''}{what}", code="bad_file"
        )


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _tag(node: yaml.Node) -> str:
    return str(node.tag).rpartition(":")[2]


def _named(kind: object) -> str:
    return {str: "text", int: "a whole number", float: "a number", bool: "true or false"}.get(
        typing.cast("type", kind), str(kind)
    )
