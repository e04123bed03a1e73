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

from smgate.domain import decisions, facts
from smgate.domain.values import Gpu

KEPT_MAX: Final = 16_384
"""Distinct parts kept; a node that reports another build at every turn cannot fill the memory."""

SHARED: Final[dict[type, tuple[str, ...]]] = {
    facts.NodeReported: ("gpus",),
    facts.LaunchPlanned: ("gpus", "build", "layout", "model", "model_digest"),
    facts.CheckFinished: ("gpu_uuids", "build", "layout"),
    facts.InstanceChanged: ("gpu_uuids", "instance_id"),
    facts.EffectiveSeen: ("runner", "a2a", "architecture", "sglang_version"),
    facts.OverrideApplied: ("value", "code"),
    decisions.OverrideSet: ("value", "code", "sentence", "also", "given_for", "rules_version"),
    decisions.Granted: ("kernel_keys",),
}
"""The fields whose values come again. Literals are not among them: msgspec has one of each."""

_kept: dict[tuple[str, bytes], Any] = {}

_put: Final = object.__setattr__


def decoder(kind: type) -> Callable[[bytes], Any]:
    """Reads an event of this class; equal values of its `SHARED` fields come out as one object.

    Raises msgspec.DecodeError as msgspec's own decoder of the class does.
    """
    names = SHARED.get(kind)
    if names is None:
        return msgspec.json.Decoder(kind).decode
    hints = typing.get_type_hints(kind)
    read: Callable[[bytes], Any] = msgspec.json.Decoder(_unread(kind, hints, names)).decode
    parts: list[tuple[str, Callable[[Any], Any], Callable[[bytes], Any]]] = [
        (name, getattr(kind, name).__get__, msgspec.json.Decoder(hints[name]).decode)
        for name in names
    ]

    def decode(data: bytes) -> Any:  # noqa: ANN401  any event
        made = read(data)
        # The same slots in the same order, so it can become what it stands for, unlike a copy at
        # no cost: constructing a frozen class in Python takes longer than all of the decoding.
        _put(made, "__class__", kind)
        for name, get, read_part in parts:
            raw = get(made)
            if type(raw) is msgspec.Raw:  # Else it is the default: the field was not written.
                key = (name, bytes(raw))
                found = _kept.get(key, _kept)
                _put(made, name, _keep(key, read_part(key[1])) if found is _kept else found)
        return made

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


def _keep(key: tuple[str, bytes], value: Any) -> Any:  # noqa: ANN401  whatever it is
    if len(_kept) >= KEPT_MAX:
        _kept.clear()
    _kept[key] = _interned(value)
    return _kept[key]


def _interned(value: Any) -> Any:  # noqa: ANN401  as `_keep`
    """The names of GPUs are in many parts; `intern` keeps one of each as long as it is used."""
    if isinstance(value, str):
        return sys.intern(value)
    if not isinstance(value, tuple):
        return value
    for gpu in value:
        if isinstance(gpu, Gpu):
            _put(gpu, "uuid", sys.intern(gpu.uuid))
            _put(gpu, "sm", gpu.sm and sys.intern(gpu.sm))
            _put(gpu, "name", gpu.name and sys.intern(gpu.name))
    return tuple(sys.intern(each) if isinstance(each, str) else each for each in value)
