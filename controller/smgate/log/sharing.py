"""Equal parts of decoded events are one object: a fleet of alike servers says the same over and over.

A part is looked up by its bytes, so one that was read before is not read again: that is most of the
time of decoding, and most of the memory of what is decoded. Events are canonical JSON, in which
equal parts have equal bytes. Nothing but time and memory depends on it.
"""

from __future__ import annotations

import dataclasses
import sys
import typing
from collections.abc import Callable
from typing import Any, Final

import msgspec
import typing_extensions

from smgate.domain import decisions, facts
from smgate.domain.values import Gpu

KEPT_MAX: Final = 131_072
"""Distinct parts of one type kept: more than nodes of the largest fleet, each with its own GPUs."""
KEPT_BYTES_MAX: Final = 96 << 20
"""Bytes of those: a node with another build at every turn cannot fill the memory."""

SHARED: Final[dict[type, tuple[str, ...]]] = {
    facts.NodeReported: ("gpus",),
    facts.LaunchPlanned: ("gpus", "build", "layout", "model", "model_digest"),
    facts.CheckFinished: ("gpu_uuids", "build", "layout"),
    facts.InstanceChanged: ("gpu_uuids", "instance_id"),
    facts.OverrideApplied: ("value", "code"),
    decisions.OverrideSet: ("value", "code", "sentence", "also", "given_for", "rules_version"),
    decisions.Granted: ("kernel_keys",),
}
"""The fields whose values come again. Literals are not among them: msgspec has one of each."""

WHOLE: Final = frozenset({facts.EffectiveSeen})
"""Events that name no launch: servers that are alike say the very same."""


class _Kept(dict[bytes, Any]):
    """What was read, by its bytes; and how many bytes those are."""

    __slots__ = ("size_bytes",)

    def __init__(self) -> None:
        super().__init__()
        self.size_bytes = 0

    @typing_extensions.override
    def clear(self) -> None:
        super().clear()
        self.size_bytes = 0


_kept: dict[Any, _Kept] = {}
"""By its type."""

_TEXTS: Final = (str, str | None)
"""Interned once they are read: that takes less time than to look for their bytes."""


def decoder(kind: type) -> Callable[[bytes], Any]:
    """Reads an event of this class; equal values of its `SHARED` fields come out as one object.

    Raises msgspec.DecodeError as msgspec's own decoder of the class does.
    """
    if kind in WHOLE:
        return _whole(kind)
    names = SHARED.get(kind)
    if names is None:
        return msgspec.json.Decoder(kind).decode
    hints = typing.get_type_hints(kind)
    texts = [_slot(kind, name) for name in names if hints[name] in _TEXTS]
    large = tuple(name for name in names if hints[name] not in _TEXTS)
    parts = [
        (*_slot(kind, name), _of(hints[name]), msgspec.json.Decoder(hints[name]).decode)
        for name in large
    ]
    unread = _unread(kind, hints, large) if large else kind
    read: Callable[[bytes], Any] = msgspec.json.Decoder(unread).decode

    def decode(data: bytes) -> Any:  # noqa: ANN401  any event
        made = read(data)
        if parts:
            # The same slots in the same order, so it can become what it stands for, unlike a copy
            # at little cost: constructing a frozen class in Python takes longer than decoding it.
            _put(made, "__class__", kind)
        for get, put, kept, read_part in parts:
            raw = get(made)
            if type(raw) is msgspec.Raw:  # Else it is the default: the field was not written.
                key = bytes(raw)
                found = kept.get(key, kept)
                put(made, _keep(kept, key, read_part(key)) if found is kept else found)
        for get, put in texts:
            text = get(made)
            if text is not None:
                put(made, sys.intern(text))
        return made

    return decode


_put: Final = object.__setattr__


def _slot(kind: type, name: str) -> tuple[Callable[[Any], Any], Callable[[Any, Any], None]]:
    """Reads and writes a field of a frozen class."""
    member = getattr(kind, name)
    return member.__get__, member.__set__


def _of(hint: Any) -> _Kept:  # noqa: ANN401  any type
    return _kept.setdefault(hint, _Kept())


def _whole(kind: type) -> Callable[[bytes], Any]:
    kept = _of(kind)
    read: Callable[[bytes], Any] = msgspec.json.Decoder(kind).decode

    def decode(data: bytes) -> Any:  # noqa: ANN401  any event
        found = kept.get(data)
        return _keep(kept, data, read(data)) if found is None else found

    return decode


def _unread(kind: type, hints: dict[str, Any], names: tuple[str, ...]) -> type:
    """A class like `kind` whose shared fields are left as the bytes they are."""
    fields: list[Any] = []
    for field in dataclasses.fields(kind):
        if field.name not in names:
            made = dataclasses.field(default=field.default, default_factory=field.default_factory)
            fields.append((field.name, hints[field.name], made))
        elif field.default_factory is dataclasses.MISSING:
            fields.append((field.name, msgspec.Raw, dataclasses.field(default=field.default)))
        else:
            # msgspec refuses bytes for a field with a factory; a shared value may be the default.
            made = dataclasses.field(default=field.default_factory())
            fields.append((field.name, msgspec.Raw, made))
    return dataclasses.make_dataclass(kind.__name__, fields, frozen=True, slots=True, kw_only=True)


def _keep(kept: _Kept, key: bytes, value: Any) -> Any:  # noqa: ANN401  whatever it is
    if len(kept) >= KEPT_MAX or kept.size_bytes + len(key) > KEPT_BYTES_MAX:
        kept.clear()
    kept.size_bytes += len(key)
    kept[key] = found = _interned(value)
    return found


def _interned(value: Any) -> Any:  # noqa: ANN401  as `_keep`
    """The names of GPUs are in many parts; `intern` keeps one of each as long as it is used."""
    if not isinstance(value, tuple):
        return value
    for gpu in value:
        if isinstance(gpu, Gpu):
            _put(gpu, "uuid", sys.intern(gpu.uuid))
            _put(gpu, "sm", gpu.sm and sys.intern(gpu.sm))
            _put(gpu, "name", gpu.name and sys.intern(gpu.name))
    return tuple(sys.intern(each) if isinstance(each, str) else each for each in value)
