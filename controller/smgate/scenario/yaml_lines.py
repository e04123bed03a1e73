"""YAML or JSON text to plain values, with the line of every path.

YAML 1.2's view of scalars: only `true` and `false` are booleans (a pin may be `on`), and a date is
text. A key that stands twice is an error: one of the two would be ignored in silence.
"""

from __future__ import annotations

import re
from typing import Final

import yaml

Path = tuple[str | int, ...]

DEPTH_MAX: Final = 64


class YamlError(ValueError):
    """The text cannot be read; `line` counts from 1."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


class _Loader(yaml.SafeLoader):
    """SafeLoader without YAML 1.1's yes/no/on/off booleans, dates and sexagesimals."""


_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("tag:yaml.org,2002:bool", r"^(?:true|false)$", "tf"),
    ("tag:yaml.org,2002:null", r"^(?:null|~|)$", ["n", "~", ""]),
    ("tag:yaml.org,2002:int", r"^[-+]?(?:0|[1-9][0-9]*)$", "-+0123456789"),
    (
        "tag:yaml.org,2002:float",
        r"^[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?$",
        "-+0123456789.",
    ),
):
    _Loader.add_implicit_resolver(_tag, re.compile(_pattern), list(_first))


def load(text: str) -> tuple[object, dict[Path, int]]:
    """Read a document.

    Returns:
        The value, and the line of every path in it.

    Raises:
        YamlError: malformed, a key twice, an alias loop, or nested too deep.
    """
    loader = _Loader(text.replace("\t", "  "))
    try:
        node = loader.get_single_node()
        lines: dict[Path, int] = {}
        if node is None:
            return None, lines
        return _build(loader, node, (), lines), lines
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise YamlError(str(error.problem), mark.line + 1 if mark else 1) from error
    except yaml.YAMLError as error:
        raise YamlError(str(error).splitlines()[0], 1) from error
    finally:
        loader.dispose()


def _build(loader: _Loader, node: yaml.Node, path: Path, lines: dict[Path, int]) -> object:
    line = node.start_mark.line + 1
    if len(path) > DEPTH_MAX:
        raise YamlError("Nested too deep.", line)
    lines.setdefault(path, line)
    if isinstance(node, yaml.MappingNode):
        found: dict[str, object] = {}
        for key_node, value_node in node.value:
            key = loader.construct_object(key_node)
            if not isinstance(key, str):
                raise YamlError(f"The key {key!r} is not text.", key_node.start_mark.line + 1)
            if key in found:
                raise YamlError(f"The key {key!r} stands twice.", key_node.start_mark.line + 1)
            lines[(*path, key)] = key_node.start_mark.line + 1
            found[key] = _build(loader, value_node, (*path, key), lines)
        return found
    if isinstance(node, yaml.SequenceNode):
        return [
            _build(loader, item, (*path, index), lines) for index, item in enumerate(node.value)
        ]
    scalar: object = loader.construct_object(node)
    return scalar
