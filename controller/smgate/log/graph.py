"""A state as bytes and back: dataclasses that share objects, maps with tuples as keys, sets.

An object that is met twice is one object again when it is read. Frozen ones are told apart by what they
say, so equal states have equal bytes; mutable ones by which they are. Fields that do not count when two
objects are compared can be worked out again, so they are left out. The bytes are JSON: of every class its
objects, field by field, and in place of an object its number among those of its class. Names of
classes and fields are in it once, so a release that lacks one of them sees it, and refuses.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import types
import typing
from collections.abc import Iterable
from typing import Any, Final, Literal

import msgspec

from smgate.log import graph_shapes

Plain = dict[str, Any]
"""A document as JSON reads it: `classes`, by name, with `count` and `columns`; and `root`."""

_ATOMS: Final = (str, int, bool, None, types.NoneType, Any)
_TEXTS: Final = (str, str | None, tuple[str, ...])
"""What is said over and over in a fleet, and then one object for all who say it."""
_UNIONS: Final = (typing.Union, types.UnionType)


class UnreadableError(Exception):
    """These bytes are no state of this release: a class, a field or a value does not fit."""


class _Class(msgspec.Struct, forbid_unknown_fields=True):
    count: graph_shapes.NUMBER
    columns: dict[str, msgspec.Raw]


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    classes: dict[str, _Class]
    root: tuple[str, graph_shapes.NUMBER]


@dataclasses.dataclass(frozen=True, slots=True)
class Walked:
    """A state, taken down: nothing in it changes with the state any more."""

    rows: dict[graph_shapes.Table, list[Iterable[Any]]]
    root: tuple[str, int]

    def encode(self) -> bytes:
        """The bytes."""
        classes = {
            table.name: {
                "count": len(rows),
                "columns": dict(zip(table.names, zip(*rows, strict=True), strict=True)),
            }
            for table, rows in sorted(self.rows.items(), key=lambda item: item[0].name)
        }
        return msgspec.json.encode({"classes": classes, "root": self.root})


class Codec:
    """Reads and writes states whose outermost object is of one dataclass."""

    def __init__(self, root: type) -> None:
        """Raises TypeError where an annotation reachable from `root` cannot be written."""
        self._tables: Final[dict[type, graph_shapes.Table]] = {}
        self._root: Final = self._table(root)
        self._by_name: Final = {table.name: table for table in self._tables.values()}
        assert len(self._by_name) == len(self._tables), "every class has its own name"

    @property
    def layout(self) -> dict[str, dict[str, str]]:
        """Every class by its stored name, with its fields and what they are written as."""
        return {
            name: {field: repr(shape.wire) for field, shape in table.shapes.items()}
            for name, table in sorted(self._by_name.items())
        }

    def walk(self, state: object) -> Walked:
        """Take a state down. It must not change meanwhile; afterwards it may."""
        walk = graph_shapes.Walk()
        number = walk.number(self._root, state)
        return Walked(walk.rows, (self._root.name, number))

    def encode(self, state: object) -> bytes:
        """The state as bytes: equal states, equal bytes."""
        return self.walk(state).encode()

    def decode(self, data: bytes) -> Any:  # noqa: ANN401  an object of the root's class
        """The state that `encode` wrote. A field that is not in the bytes gets its default.

        Raises:
            UnreadableError: it holds what this release does not know, or lacks what it needs.
        """
        try:
            return self._decode(msgspec.json.decode(data, type=_Document))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise UnreadableError(f"The state cannot be read: {error}.") from error
        except (IndexError, KeyError) as error:
            raise UnreadableError(f"The state names an object it lacks: {error}.") from error

    def _decode(self, document: _Document) -> object:
        unknown = sorted(document.classes.keys() - self._by_name.keys())
        if unknown:
            raise UnreadableError(f"The state has a {unknown[0]}, which this release lacks.")
        counts = dict.fromkeys(self._by_name.values(), 0)
        counts |= {self._by_name[name]: one.count for name, one in document.classes.items()}
        made: graph_shapes.Objects = {
            table.kind: [object.__new__(table.kind) for _ in range(count)]
            for table, count in counts.items()
        }
        texts: dict[Any, Any] = {}
        for name, one in document.classes.items():
            self._fill(self._by_name[name], one.columns, made, texts)
        for table, count in counts.items():
            if count and table.finish is not None:
                for each in made[table.kind]:
                    table.finish(each)
        name, number = document.root
        if name != self._root.name:
            raise UnreadableError(f"The state is a {name}, not a {self._root.name}.")
        return made[self._root.kind][number]

    @staticmethod
    def _fill(
        table: graph_shapes.Table,
        columns: dict[str, msgspec.Raw],
        made: graph_shapes.Objects,
        texts: dict[Any, Any],
    ) -> None:
        owners = made[table.kind]
        unknown = sorted(columns.keys() - table.shapes.keys())
        if unknown:
            raise UnreadableError(f"The state has a {table.name}.{unknown[0]}, unknown here.")
        for field in itertools.chain(table.fields, table.left_out):
            column = columns.get(field.name)
            if column is None:
                values: Iterable[Any] = _defaults(table, field, len(owners))
            else:
                values = table.decoders[field.name](column)
                if len(values) != len(owners):
                    raise UnreadableError(
                        f"The state has too few or many {table.name}.{field.name}."
                    )
                if table.shapes[field.name].wire in _TEXTS:
                    values = map(texts.setdefault, values, values)
                take = table.shapes[field.name].take
                if take is not None:
                    values = [take(made, value) for value in values]
            collections.deque(map(table.setter(field.name), owners, values), maxlen=0)

    def _table(self, kind: type) -> graph_shapes.Table:
        table = self._tables.get(kind)
        if table is None:
            table = self._tables[kind] = graph_shapes.Table(kind)
            hints = typing.get_type_hints(kind)
            table.link({name: self._shape(hints[name]) for name in table.names})
        return table

    def _shape(self, hint: Any) -> graph_shapes.Shape:  # noqa: ANN401  any annotation
        origin, inner = typing.get_origin(hint), typing.get_args(hint)
        if hint is float:
            return graph_shapes.Shape(float, graph_shapes.put_float)
        if hint in _ATOMS or origin is Literal:
            return graph_shapes.Shape(hint)
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            return graph_shapes.of_object(self._table(hint))
        if origin in _UNIONS:
            return self._union(hint, inner)
        return self._collection(hint, origin, inner)

    def _collection(self, hint: Any, origin: Any, inner: tuple[Any, ...]) -> graph_shapes.Shape:  # noqa: ANN401
        if origin is list or (origin is tuple and inner[1:] == (...,)):
            return graph_shapes.of_sequence(self._shape(inner[0]), origin)
        if origin is tuple:
            return graph_shapes.of_fields([self._shape(one) for one in inner])
        if origin in (set, frozenset):
            return graph_shapes.of_set(self._shape(inner[0]), origin)
        if origin is collections.Counter:
            return graph_shapes.of_pairs(
                self._shape(inner[0]), graph_shapes.Shape(int), graph_shapes.take_counter
            )
        if origin is not dict:
            raise TypeError(f"{hint} cannot be part of a state")
        name, value = inner
        return (
            graph_shapes.of_names(self._shape(value))
            if name is str
            else graph_shapes.of_pairs(self._shape(name), self._shape(value), dict)
        )

    def _union(self, hint: Any, inner: tuple[Any, ...]) -> graph_shapes.Shape:  # noqa: ANN401
        members = [one for one in inner if one is not types.NoneType]
        if all(dataclasses.is_dataclass(one) for one in members) and len(members) > 1:
            if len(members) != len(inner):
                raise TypeError(f"{hint} cannot be part of a state")
            return graph_shapes.of_any({one: self._table(one) for one in members})
        shapes = [self._shape(one) for one in members]
        if all(one.put is None and one.take is None for one in shapes):
            return graph_shapes.Shape(hint)
        if len(shapes) > 1:
            raise TypeError(f"{hint} cannot be part of a state")
        put, take = shapes[0].put, shapes[0].take
        return graph_shapes.Shape(
            shapes[0].wire | None,
            lambda walk, value: None if value is None else put(walk, value) if put else value,
            lambda made, value: None if value is None else take(made, value) if take else value,
        )


def _defaults(
    table: graph_shapes.Table, field: dataclasses.Field[Any], count: int
) -> Iterable[Any]:
    if field.default is not dataclasses.MISSING:
        return itertools.repeat(field.default, count)
    if field.default_factory is not dataclasses.MISSING:
        factory = field.default_factory
        return (factory() for _ in range(count))
    if count:
        raise UnreadableError(f"The state lacks {table.name}.{field.name}, which has no default.")
    return ()
