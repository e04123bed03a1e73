"""How values of each annotation are written and read back: the parts that `graph` puts together."""

from __future__ import annotations

import collections
import dataclasses
import math
import operator
import types
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Final

import msgspec

NUMBER = Annotated[int, msgspec.Meta(ge=0)]
"""Of an object among those of its class."""


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """How a value of one annotation is written: as `wire`, by `put`, and read back by `take`.

    `None` stands for no work at all: the value is written as it is.
    """

    wire: Any
    put: Callable[[Walk, Any], Any] | None = None
    take: Callable[[Objects, Any], Any] | None = None


class Table:
    """One class: its fields, and how each is read, written and set."""

    def __init__(self, kind: type) -> None:
        self.kind: Final = kind
        self.name: Final = f"{kind.__module__.rpartition('.')[2]}.{kind.__qualname__}"
        self.frozen: Final[bool] = kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
        self.left_out: Final = [one for one in dataclasses.fields(kind) if not one.compare]
        self.fields: Final = [one for one in dataclasses.fields(kind) if one.compare]
        self.names: Final = [one.name for one in self.fields]
        self.read: Final = _reader(self.names)
        self.finish: Final = getattr(kind, "__post_init__", None)
        self.shapes: dict[str, Shape] = {}
        self.decoders: dict[str, Callable[[msgspec.Raw], list[Any]]] = {}
        self.puts: list[tuple[int, Callable[[Walk, Any], Any]]] = []

    def link(self, shapes: dict[str, Shape]) -> None:
        """Take the shapes in, once those of all classes can be made."""
        self.shapes = shapes
        self.puts = [
            (place, shapes[name].put)  # type: ignore[misc]
            for place, name in enumerate(self.names)
            if shapes[name].put is not None
        ]
        self.decoders = {
            name: msgspec.json.Decoder(list[one.wire]).decode  # type: ignore[name-defined]
            for name, one in shapes.items()
        }

    def setter(self, name: str) -> Callable[[Any, Any], object]:
        """Sets a field of an object that is being read, frozen or not."""
        slot = getattr(self.kind, name)
        assert isinstance(slot, types.MemberDescriptorType), f"{self.name} has slots"
        return slot.__set__


Objects = dict[type, list[Any]]
"""What is being read: every object by its class and number."""


class Walk:
    """One pass over a state: numbers every object, and makes its row."""

    def __init__(self) -> None:
        self.rows: dict[Table, list[Iterable[Any]]] = {}
        self._numbers: dict[int, int] = {}
        self._contents: dict[tuple[Table, bytes], int] = {}

    def number(self, table: Table, value: object) -> int:
        """The number of an object among those of its class."""
        if type(value) is not table.kind:
            raise TypeError(f"{type(value).__name__} stands where {table.name} is expected")
        found = self._numbers.get(id(value))
        if found is not None:
            return found
        row: Any = table.read(value)
        if table.puts:
            row = list(row)
            for place, put in table.puts:
                row[place] = put(self, row[place])
        rows = self.rows.setdefault(table, [])
        number = len(rows)
        if table.frozen:
            number = self._contents.setdefault((table, msgspec.json.encode(row)), number)
        if number == len(rows):
            rows.append(row)
        self._numbers[id(value)] = number
        return number


def _reader(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) > 1:
        return operator.attrgetter(*names)
    return lambda value: tuple(getattr(value, name) for name in names)


def put_float(_walk: Walk, value: float) -> float:
    """As JSON gives it back: a whole number too. What JSON has no number for is refused."""
    if not math.isfinite(value):
        raise ValueError(f"{value} cannot be part of a state")
    return float(value)


def take_counter(pairs: Iterable[tuple[Any, int]]) -> collections.Counter[Any]:
    """A counter from its pairs."""
    return collections.Counter(dict(pairs))


def of_object(table: Table) -> Shape:
    """An object of one class: its number there."""
    return Shape(
        NUMBER,
        lambda walk, value: walk.number(table, value),
        lambda made, number: made[table.kind][number],
    )


def of_any(tables: dict[type, Table]) -> Shape:
    """An object of one of several classes: its class's name, and its number."""
    by_name = {table.name: table.kind for table in tables.values()}

    def put(walk: Walk, value: object) -> tuple[str, int]:
        table = tables[type(value)]
        return table.name, walk.number(table, value)

    return Shape(tuple[str, NUMBER], put, lambda made, one: made[by_name[one[0]]][one[1]])


def _each(shape: Shape, kind: type) -> tuple[Any, Any]:
    """`put` and `take` for all members of a collection."""
    put, take = shape.put, shape.take
    return (
        None if put is None else lambda walk, value: kind([put(walk, one) for one in value]),
        None if take is None else lambda made, value: kind([take(made, one) for one in value]),
    )


def of_sequence(shape: Shape, kind: type) -> Shape:
    """A list, or a tuple of any length."""
    put, take = _each(shape, kind)
    if put is None and kind is list:
        put = _copy_list  # The list goes on changing when the state does.
    return Shape(kind[shape.wire, ...] if kind is tuple else list[shape.wire], put, take)  # type: ignore[name-defined]


def _copy_list(_walk: Walk, value: list[Any]) -> list[Any]:
    return list(value)


def of_fields(shapes: list[Shape]) -> Shape:
    """A tuple whose every place has its own type."""
    wire = tuple.__class_getitem__(tuple(one.wire for one in shapes))
    if all(one.put is None and one.take is None for one in shapes):
        return Shape(wire)

    def put(walk: Walk, value: tuple[Any, ...]) -> tuple[Any, ...]:
        pairs = zip(shapes, value, strict=True)
        return tuple(part if one.put is None else one.put(walk, part) for one, part in pairs)

    def take(made: Objects, value: tuple[Any, ...]) -> tuple[Any, ...]:
        pairs = zip(shapes, value, strict=True)
        return tuple(part if one.take is None else one.take(made, part) for one, part in pairs)

    return Shape(wire, put, take)


def of_set(shape: Shape, kind: type) -> Shape:
    """A set: sorted, as it has no order of its own."""
    if shape.put is not None or shape.take is not None:
        raise TypeError("a set in a state is of plain values")
    return Shape(
        list[shape.wire],  # type: ignore[name-defined]
        lambda _walk, value: sorted(value),
        lambda _made, value: kind(value),
    )


def of_names(shape: Shape) -> Shape:
    """A map by name, in its own order: which came last can matter."""
    put, take = shape.put, shape.take

    def put_all(walk: Walk, value: dict[str, Any]) -> dict[str, Any]:
        if put is None:
            return dict(value)
        return {name: put(walk, one) for name, one in value.items()}

    def take_all(made: Objects, value: dict[str, Any]) -> dict[str, Any]:
        return {name: take(made, one) for name, one in value.items()}  # type: ignore[misc]

    return Shape(dict[str, shape.wire], put_all, None if take is None else take_all)  # type: ignore[name-defined]


def of_pairs(key: Shape, shape: Shape, kind: Callable[[Any], Any]) -> Shape:
    """A map by anything else: its pairs, in its own order."""
    if key.put is not None or key.take is not None:
        raise TypeError("the keys of a map in a state are plain values")
    put, take = shape.put, shape.take

    def put_all(walk: Walk, value: dict[Any, Any]) -> list[tuple[Any, Any]]:
        if put is None:
            return list(value.items())
        return [(name, put(walk, one)) for name, one in value.items()]

    def take_all(made: Objects, value: list[tuple[Any, Any]]) -> Any:  # noqa: ANN401
        if take is None:
            return kind(value)
        return kind([(name, take(made, one)) for name, one in value])

    return Shape(list[tuple[key.wire, shape.wire]], put_all, take_all)  # type: ignore[name-defined]
