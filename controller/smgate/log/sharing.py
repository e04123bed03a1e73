"""Equal parts of decoded events are one object: a fleet of alike servers says the same over and over.

Nothing but memory depends on it. An event is shared before anybody has seen it, so writing to a
frozen value here changes none that is known.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Hashable
from typing import Any, Final

from smgate.domain import decisions, facts
from smgate.domain.values import Build, GivenFor, Gpu, Layout, Model

KEPT_MAX: Final = 16_384
"""Distinct values kept; a node that reports another build at every turn cannot fill the memory."""

_kept: dict[Hashable, Any] = {}

_put: Final = object.__setattr__
_build_fields: Final[Callable[[Build], tuple[Any, ...]]] = operator.attrgetter(
    *(name for name in Build.__slots__ if name != "artifact_pins")
)


def event(made: Any) -> None:  # noqa: ANN401  any event
    """Share what this event has in common with earlier ones."""
    share = _SHARES.get(type(made))
    if share is not None:
        share(made)


def _one(value: Any, key: Hashable) -> Any:  # noqa: ANN401  whatever it is
    if len(_kept) > KEPT_MAX:
        _kept.clear()
    return _kept.setdefault(key, value)


def _build(value: Build) -> Any:  # noqa: ANN401  as _one
    return _one(value, (Build, _build_fields(value), tuple(sorted(value.artifact_pins.items()))))


def _gpus(found: tuple[Gpu, ...]) -> None:
    """The names of GPUs are in every fact about them; `intern` keeps one as long as it is used."""
    for gpu in found:
        _put(gpu, "uuid", sys.intern(gpu.uuid))
        if gpu.sm is not None:
            _put(gpu, "sm", sys.intern(gpu.sm))
        if gpu.name:
            _put(gpu, "name", sys.intern(gpu.name))


def _node_reported(made: facts.NodeReported) -> None:
    _gpus(made.gpus)


def _launch_planned(made: facts.LaunchPlanned) -> None:
    _gpus(made.gpus)
    _put(made, "build", _build(made.build))
    _put(made, "layout", _one(made.layout, (Layout, made.layout)))
    _put(made, "model", _one(made.model, (Model, made.model)))
    if made.model_digest is not None:
        _put(made, "model_digest", sys.intern(made.model_digest))


def _check_finished(made: facts.CheckFinished) -> None:
    _put(made, "build", _build(made.build))
    _put(made, "layout", _one(made.layout, (Layout, made.layout)))


def _instance_changed(made: facts.InstanceChanged) -> None:
    _put(made, "gpu_uuids", tuple(map(sys.intern, made.gpu_uuids)))
    _put(made, "instance_id", sys.intern(made.instance_id))
    _put(made, "state", sys.intern(made.state))


def _effective_seen(made: facts.EffectiveSeen) -> None:
    _put(made, "runner", sys.intern(made.runner))
    _put(made, "a2a", sys.intern(made.a2a))
    for name in ("architecture", "sglang_version"):
        value = getattr(made, name)
        if value is not None:
            _put(made, name, sys.intern(value))


def _override_applied(made: facts.OverrideApplied) -> None:
    for name in ("form", "source", "code"):
        _put(made, name, sys.intern(getattr(made, name)))
    if made.value is not None:
        _put(made, "value", sys.intern(made.value))


def _override_set(made: decisions.OverrideSet) -> None:
    _put(made, "given_for", _one(made.given_for, (GivenFor, made.given_for)))
    _put(made, "also", _one(made.also, made.also))
    for name in ("form", "code", "sentence", "rules_version"):
        _put(made, name, sys.intern(getattr(made, name)))
    if made.value is not None:
        _put(made, "value", sys.intern(made.value))


def _granted(made: decisions.Granted) -> None:
    _put(made, "kernel_keys", _one(made.kernel_keys, made.kernel_keys))


_SHARES: Final[dict[type, Callable[[Any], None]]] = {
    facts.NodeReported: _node_reported,
    facts.LaunchPlanned: _launch_planned,
    facts.CheckFinished: _check_finished,
    facts.InstanceChanged: _instance_changed,
    facts.EffectiveSeen: _effective_seen,
    facts.OverrideApplied: _override_applied,
    decisions.OverrideSet: _override_set,
    decisions.Granted: _granted,
}
