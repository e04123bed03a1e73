"""Types every message shares, and the one way to decode a message."""

from __future__ import annotations

import hashlib
from typing import Annotated, Final, TypeVar

import msgspec

WIRE_VERSION: Final = 1
"""Version of all messages. A reader refuses any other; there is no older one yet."""

BODY_BYTES_MAX: Final = 1 << 20
"""Largest request body the controller reads."""

BATCH_FACTS_MAX: Final = 500
"""Most facts in one batch: bounds the time the log's head row is held."""

Sm = Annotated[str, msgspec.Meta(pattern=r"^[1-9][0-9]?\.[0-9]$(?!\n)")]
"""Compute capability "major.minor", such as "10.7". A family label never matches."""

Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,119}$(?!\n)")]
"""An identifier: node, unit, rack, check. No spaces, at most 120 characters."""

Code = Annotated[str, msgspec.Meta(pattern=r"^[a-z][a-z0-9_:.-]{0,79}$(?!\n)")]
"""A stable machine-readable reason."""

Text = Annotated[str, msgspec.Meta(max_length=200, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$(?!\n)")]
"""A short label such as a GPU's product name. Never a log line, and nothing a terminal obeys."""

Digest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{8,64}$(?!\n)")]
"""Lower-case hexadecimal digest."""

GpuUuid = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9-]{3,79}$(?!\n)")]

Version = Annotated[str, msgspec.Meta(pattern=r"^[0-9A-Za-z][0-9A-Za-z.+_!-]{0,63}$(?!\n)")]

Runner = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9_]{1,40}$(?!\n)")]
"""A MoE runner or a2a backend by SGLang's name; a name SGLang does not know is sent as "other"."""

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=1 << 53)]
Micros = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
"""Microseconds since the Unix epoch, by the sender's clock: shown, never decided on."""


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all wire structs: unknown fields are an error, wrong types too."""


class Problem(Message, frozen=True, kw_only=True):
    """What went wrong, as every refusal says it."""

    code: Code
    message: str
    next_step: str


class ErrorBody(Message, frozen=True, kw_only=True):
    """Body of every 4xx and 5xx answer."""

    error: Problem


M = TypeVar("M", bound=Message)


class MalformedError(ValueError):
    """The bytes are not the message they should be; the text says where."""


def decode(body: bytes, kind: type[M]) -> M:
    """Decode one message strictly.

    Raises:
        MalformedError: not JSON, wrong type, unknown field, out of bounds; names the path.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as exc:
        raise MalformedError(str(exc) or type(exc).__name__) from exc


def encode(message: Message) -> bytes:
    """Encode canonically: sorted keys, no spaces, defaults included. Equal message, equal bytes."""
    return msgspec.json.encode(message, order="sorted")


def digest(data: bytes) -> str:
    """First 16 hexadecimal digits of SHA-256: names things, protects nothing."""
    return hashlib.sha256(data).hexdigest()[:16]
