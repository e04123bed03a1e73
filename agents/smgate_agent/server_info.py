"""Read `/server_info` and `/model_info` of SGLang 0.5.17 to 0.5.23 by allowlist.

Bodies carry API keys in clear. Decoding takes only the fields named here; every other byte is
checked to be JSON and dropped before it becomes an object. A field of a wrong type is not known;
a body that is not a JSON object is malformed.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from smgate_agent import server_args, units

_VERSION: Final = re.compile(
    r"(?=.{1,64}$)\d{1,4}(?:\.\d{1,9}){1,5}(?:(?:a|b|rc)\d{1,4})?"
    r"(?:\.post\d{1,9})?(?:\.dev\d{1,9})?(?:\+[a-z0-9]{1,40}(?:\.[a-z0-9]{1,40}){0,3})?"
)
"""As packaging writes one: a key that ran into it is none."""
_ARCHITECTURE: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,119}")
_WEIGHT_GIB_MAX: Final = 4096.0
_RANKS_MAX: Final = 4096


class MalformedBodyError(ValueError):
    """The body is not a JSON object."""


@dataclass(frozen=True, kw_only=True)
class ServerInfo:
    """What one `/server_info` body says about the rank that answered."""

    args: server_args.ServerArgs
    version: str | None
    weight_bytes: int | None


class _Info(msgspec.Struct):
    model_path: msgspec.Raw = msgspec.Raw()
    moe_runner_backend: msgspec.Raw = msgspec.Raw()
    moe_a2a_backend: msgspec.Raw = msgspec.Raw()
    tp_size: msgspec.Raw = msgspec.Raw()
    ep_size: msgspec.Raw = msgspec.Raw()
    pp_size: msgspec.Raw = msgspec.Raw()
    dp_size: msgspec.Raw = msgspec.Raw()
    nnodes: msgspec.Raw = msgspec.Raw()
    node_rank: msgspec.Raw = msgspec.Raw()
    enable_dp_attention: msgspec.Raw = msgspec.Raw()
    version: msgspec.Raw = msgspec.Raw()
    internal_states: msgspec.Raw = msgspec.Raw()


class _MemoryUsage(msgspec.Struct):
    weight: float


class _State(msgspec.Struct):
    memory_usage: _MemoryUsage


class _ModelInfo(msgspec.Struct):
    architectures: msgspec.Raw = msgspec.Raw()


S = TypeVar("S", bound=msgspec.Struct)


def parse(body: bytes) -> ServerInfo:
    """Read a `/server_info` body.

    Raises:
        MalformedBodyError: not a JSON object.
    """
    info = _decode(body, _Info)
    fields = {name: _scalar(getattr(info, name)) for name in server_args.FIELDS}
    version = _scalar(info.version)
    return ServerInfo(
        args=server_args.from_fields(fields),
        version=version if isinstance(version, str) and _VERSION.fullmatch(version) else None,
        weight_bytes=_weight_bytes(info.internal_states),
    )


def parse_architecture(body: bytes) -> str | None:
    """The model's architecture by a `/model_info` body, if it names exactly one.

    Raises:
        MalformedBodyError: not a JSON object.
    """
    info = _decode(body, _ModelInfo)
    try:
        names = msgspec.json.decode(info.architectures, type=list[str])
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    if len(names) != 1 or not _ARCHITECTURE.fullmatch(names[0]):
        return None
    return names[0]


def _decode(body: bytes, kind: type[S]) -> S:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as exc:
        # The cause is dropped: its text can quote the body.
        raise MalformedBodyError(f"not a JSON object ({type(exc).__name__})") from None


def _scalar(raw: msgspec.Raw) -> object:
    if not raw:
        return None
    try:
        return msgspec.json.decode(raw, type=str | int | float | bool | None)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _weight_bytes(raw: msgspec.Raw) -> int | None:
    """Largest `weight` over the data-parallel ranks; None if any of them does not say."""
    if not raw:
        return None
    try:
        states = msgspec.json.decode(raw, type=list[_State])
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    weights = [state.memory_usage.weight for state in states]
    if not weights or len(weights) > _RANKS_MAX:
        return None
    if not all(math.isfinite(weight) and 0 < weight <= _WEIGHT_GIB_MAX for weight in weights):
        return None
    return units.gib_to_bytes(max(weights))
