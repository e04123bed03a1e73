"""YAML or JSON text to plain values, with the line of every path.

YAML 1.2's view of scalars: only `true` and `false` are booleans (a pin may be `on`), and a date is
text. A key that stands twice is an error: one of the two would be ignored in silence. Anchors,
aliases and merge keys work.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final

import yaml

if TYPE_CHECKING:
    from yaml import SafeLoader as _Base
else:  # libyaml's parser reads a large scenario about seven times faster; both give the same nodes
    _Base = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

Path = tuple[str | int, ...]

DEPTH_MAX: Final = 64
NODES_MAX: Final = 2_000_000
"""Values in one document, with aliases written out: a few lines of aliases can mean billions."""
MERGE: Final = "<<"
EXACT: Final = 1 << 53
"""Below this every whole number has a float of its own."""
TAGS: Final = frozenset(
    f"tag:yaml.org,2002:{name}" for name in ("bool", "null", "int", "float", "str", "map", "seq")
)


class YamlError(ValueError):
    """The text cannot be read; `line` counts from 1."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


class _Loader(_Base):
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
        YamlError: malformed, a key twice, an alias loop, a number that is none, nested too deep.
    """
    text = _as_yaml(text.removeprefix("\ufeff"))
    try:
        loader = _Loader(text)
    except yaml.reader.ReaderError as error:
        raise _unreadable(text, error) from error
    try:
        node = loader.get_single_node()
        built = _Builder(loader)
        return (None if node is None else built.build(node, ())), built.lines
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise YamlError(str(error.problem), mark.line + 1 if mark else 1) from error
    except yaml.reader.ReaderError as error:
        raise _unreadable(text, error) from error
    except yaml.YAMLError as error:
        raise YamlError(str(error).splitlines()[0], 1) from error
    finally:
        loader.dispose()


def _as_yaml(text: str) -> str:
    """JSON as YAML can read it: no tabs, and no character written as two halves."""
    if not text.lstrip().startswith("{"):
        return text
    return _HALVES.sub(_one_escape, text.replace("\t", "  "))


_HALVES: Final = re.compile(
    r"(?<!\\)((?:\\\\)*)\\u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})", re.IGNORECASE
)


def _one_escape(found: re.Match[str]) -> str:
    high, low = int(found.group(2), 16), int(found.group(3), 16)
    return f"{found.group(1)}\\U{0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00):08x}"


def _unreadable(text: str, error: yaml.reader.ReaderError) -> YamlError:
    """The parsers name the place of a character that no YAML may have in bytes or not at all."""
    bad = yaml.reader.Reader.NON_PRINTABLE.search(text)
    line = 1 if bad is None else text.count("\n", 0, bad.start()) + 1
    return YamlError(f"A character that is not allowed: {error.reason}.", line)


class _Builder:
    """Builds plain values, and notes the line of every path."""

    def __init__(self, loader: _Loader) -> None:
        self._loader: Final = loader
        self._nodes = 0
        self.lines: dict[Path, int] = {}

    def build(self, node: yaml.Node, path: Path) -> object:
        """The value of a node."""
        line = node.start_mark.line + 1
        self._nodes += 1
        if len(path) > DEPTH_MAX:
            raise YamlError("Nested too deep.", line)
        if self._nodes > NODES_MAX:
            raise YamlError("Too much: more than a scenario can need.", line)
        self.lines.setdefault(path, line)
        if node.tag not in TAGS:
            raise YamlError(f"The tag {node.tag} is not of this format.", line)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(item, (*path, index)) for index, item in enumerate(node.value)]
        return self._scalar(node, line)

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, object]:
        found: dict[str, object] = {}
        merged: list[yaml.Node] = []
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            key = self._scalar(key_node, line) if isinstance(key_node, yaml.ScalarNode) else None
            if not isinstance(key, str):
                raise YamlError("A key is not text; write it in quotes.", line)
            if key in found or (key == MERGE and merged):
                raise YamlError(f"The key {key!r} stands twice.", line)
            if key == MERGE:
                merged = (
                    value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]
                )
                continue
            self.lines[(*path, key)] = line
            found[key] = self.build(value_node, (*path, key))
        for source in merged:
            self._merge(source, path, found)
        return found

    def _merge(self, source: yaml.Node, path: Path, found: dict[str, object]) -> None:
        """`<<: *anchor`: what stands here wins over what is merged, an earlier over a later one."""
        line = source.start_mark.line + 1
        if not isinstance(source, yaml.MappingNode):
            raise YamlError("Only a mapping can be merged.", line)
        if len(path) >= DEPTH_MAX:
            raise YamlError("Nested too deep.", line)
        outer, self.lines = self.lines, {}
        other = self._mapping(source, (*path, MERGE))
        inner, self.lines = self.lines, outer
        depth = len(path)
        for place, at in inner.items():
            if place[depth + 1] not in found:
                self.lines[(*path, *place[depth + 1 :])] = at
        for key, value in other.items():
            found.setdefault(key, value)

    def _scalar(self, node: yaml.Node, line: int) -> object:
        try:
            value: object = self._loader.construct_object(node)
        except ValueError as error:
            raise YamlError(f"{node.value!r} is not what its tag says.", line) from error
        if isinstance(value, float):
            if not math.isfinite(value):
                raise YamlError(f"{node.value} is no number that can be stored.", line)
            if value.is_integer() and abs(value) < EXACT:  # JSON has one kind of number: 1.0 is 1
                return int(value)
        if isinstance(value, str) and _HALF.search(value):
            raise YamlError("Half a character: a surrogate without its other half.", line)
        return value


_HALF: Final = re.compile("[\ud800-\udfff]")
