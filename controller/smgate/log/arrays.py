"""Owns how a column of a batch goes to PostgreSQL: as one array in its own binary form.

psycopg writes arrays as text, item by item, and the server reads them back so: for a batch that was
half of all the time. Here an array is joined from bytes that mostly exist already.
"""

from __future__ import annotations

import functools
import itertools
import struct
from typing import TYPE_CHECKING, ClassVar, Final, TypeVar

import typing_extensions

from smgate.log import chain

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    import psycopg

    _Kind = TypeVar("_Kind", bound="Array")

_HEAD: Final = struct.Struct(">iiIii")  # Dimensions, whether any is null, type, items, first index.
_LENGTH: Final = struct.Struct(">i")
_INT4: Final = struct.Struct(">ii")
_INT8: Final = struct.Struct(">iq")
_NULL: Final = _LENGTH.pack(-1)


class Array(bytes):
    """The binary form of an array; each kind has the numbers of its type and of its items' type."""

    __slots__ = ()
    type_oid: ClassVar[int]
    item_oid: ClassVar[int]


class Texts(Array):
    """A text[]."""

    __slots__ = ()
    type_oid, item_oid = 1009, 25


class Payloads(Array):
    """A bytea[]."""

    __slots__ = ()
    type_oid, item_oid = 1001, 17


class Int4s(Array):
    """An integer[]."""

    __slots__ = ()
    type_oid, item_oid = 1007, 23


class Int8s(Array):
    """A bigint[]."""

    __slots__ = ()
    type_oid, item_oid = 1016, 20


_KINDS: Final = (Texts, Payloads, Int4s, Int8s)


def texts(values: Collection[str | None]) -> Texts:
    """Texts, in UTF-8; None is NULL."""
    items = (_NULL if one is None else chain.prefixed(one) for one in values)
    return _joined(Texts, len(values), items, null=None in values)


def payloads(values: Collection[bytes]) -> Payloads:
    """Bytes."""
    lengths = map(_LENGTH.pack, map(len, values))
    items = itertools.chain.from_iterable(zip(lengths, values, strict=True))
    return _joined(Payloads, len(values), items)


def int4s(values: Collection[int]) -> Int4s:
    """Integers of four bytes."""
    return _joined(Int4s, len(values), map(_INT4.pack, itertools.repeat(_INT4.size - 4), values))


def int8s(values: Collection[int]) -> Int8s:
    """Integers of eight bytes."""
    return _joined(Int8s, len(values), map(_INT8.pack, itertools.repeat(_INT8.size - 4), values))


def teach(connection: psycopg.Connection) -> None:
    """Have the connection pass arrays on as they are."""
    for kind, dumper in _dumpers().items():
        connection.adapters.register_dumper(kind, dumper)


@functools.cache
def _dumpers() -> dict[type[Array], type[psycopg.adapt.Dumper]]:
    from psycopg import adapt, pq

    class AsItIs(adapt.Dumper):
        format = pq.Format.BINARY

        @typing_extensions.override
        def dump(self, obj: Array) -> bytes:
            return obj

    return {kind: type(kind.__name__, (AsItIs,), {"oid": kind.type_oid}) for kind in _KINDS}


def _joined(kind: type[_Kind], count: int, items: Iterable[bytes], *, null: bool = False) -> _Kind:
    """As `array_recv` in PostgreSQL's `arrayfuncs.c` reads it: each item after its length."""
    return kind(b"".join((_HEAD.pack(1, null, kind.item_oid, count, 1), *items)))
