"""Values that a JSON Schema accepts, and small ways to spoil one."""

from __future__ import annotations

import copy
import functools
import re
import string
from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import strategies as st

from smgate.scenario import document, schema

ROOT = schema.scenario_schema()
PRINTABLE = st.text(
    st.sampled_from(string.ascii_letters + string.digits + " äß😀\t\n.:/*-"), max_size=12
)


def matching(found: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values of a part of the scenario's schema."""
    if "$ref" in found:
        return _defined(found["$ref"].rpartition("/")[2])
    for several in ("anyOf", "oneOf"):
        if several in found:
            return st.one_of([matching(one) for one in found[several]])
    if "const" in found:
        return st.just(found["const"])
    if "enum" in found:
        return st.sampled_from(found["enum"])
    return _OF_TYPE[found["type"]](found)


@functools.cache
def _defined(name: str) -> st.SearchStrategy[Any]:
    return matching(ROOT["$defs"][name])


def _text(found: dict[str, Any]) -> st.SearchStrategy[str]:
    pattern = found.get("pattern", document.PRINTABLE)
    if pattern == document.PRINTABLE:
        return PRINTABLE
    # Hypothesis cannot invent what a look-ahead forbids: without it, all but the last newline.
    bare = re.sub(r"\(\?[=!][^)]*\)", "", pattern)
    drawn = st.from_regex(bare, fullmatch=False)
    return drawn.filter(lambda text: re.search(pattern, text) is not None)


def _number(found: dict[str, Any]) -> st.SearchStrategy[float]:
    below = found.get("exclusiveMaximum")
    return st.floats(
        min_value=found.get("minimum"),
        max_value=found["maximum"] if below is None else below,
        exclude_max=below is not None,
        allow_nan=False,
        allow_infinity=False,
    )


def _object(found: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    properties = found.get("properties")
    if properties is None:
        return st.dictionaries(
            _text(found.get("propertyNames", {})),
            matching(found["additionalProperties"]),
            max_size=3,
        )
    needed = set(found.get("required", ()))
    return st.fixed_dictionaries(
        {name: matching(shape) for name, shape in properties.items() if name in needed},
        optional={
            name: matching(shape) for name, shape in properties.items() if name not in needed
        },
    )


_OF_TYPE: dict[str, Callable[[dict[str, Any]], st.SearchStrategy[Any]]] = {
    "string": _text,
    "number": _number,
    "integer": lambda found: st.integers(found["minimum"], found["maximum"]),
    "boolean": lambda _: st.booleans(),
    "null": lambda _: st.none(),
    "object": _object,
    "array": lambda found: st.lists(
        matching(found["items"]), min_size=found.get("minItems", 0), max_size=3
    ),
}


def places(value: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The path of every value in a value."""
    yield path
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, item in items:
        yield from places(item, (*path, key))


def replaced(value: Any, path: tuple[str | int, ...], new: object) -> Any:
    """A copy of a value with another at a path; a path that ends in a new key adds it."""
    if not path:
        return new
    whole = copy.deepcopy(value)
    inner = whole
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = new
    return whole


def at(value: Any, path: tuple[str | int, ...]) -> Any:
    """The value at a path."""
    for key in path:
        value = value[key]
    return value
