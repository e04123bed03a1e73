"""The wire contract as the gate reads it: strict decoders for answers, filters for what it sends.

The gate cannot import the contract, so it repeats the part it needs: unknown fields, wrong types
and values out of bounds are an error, as they are on the other side.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

Json = dict[str, Any]

WIRE_VERSION = 1
COUNT_MAX = 1 << 53
GPUS_MAX = 64
ENTRIES_MAX = 10_000

SM = re.compile(r"[1-9][0-9]?\.[0-9]")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,119}")
CODE = re.compile(r"[a-z][a-z0-9_:.-]{0,79}")
DIGEST = re.compile(r"[0-9a-f]{8,64}")
GPU_UUID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{3,79}")
VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+_!-]{0,63}")
RUNNER = re.compile(r"[a-z0-9_]{1,40}")
SIGNATURE = re.compile(r"[0-9a-f]{128}")
PUBLIC_KEY = re.compile(r"[0-9a-f]{64}")


class MalformedError(ValueError):
    """An answer is not the message it should be."""


def fits(pattern: re.Pattern[str], value: object) -> bool:
    """Whether `value` is text that matches the whole pattern."""
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def kept(pattern: re.Pattern[str], value: object) -> str | None:
    """`value` where the contract allows it, else None: what does not fit is never sent."""
    return value if isinstance(value, str) and pattern.fullmatch(value) is not None else None


def is_count(value: object) -> bool:
    """Whether `value` is a whole number the wire can carry."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= COUNT_MAX


def parse(body: bytes | str) -> object:
    """JSON without NaN and the infinities.

    Raises:
        MalformedError: it is not JSON.
    """
    try:
        return json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError) as exc:
        raise MalformedError("not_json") from exc


def _no_constant(name: str) -> object:
    raise MalformedError(name)


def _text(value: object) -> bool:
    return isinstance(value, str)


def _matches(pattern: re.Pattern[str]) -> Callable[[object], bool]:
    return lambda value: fits(pattern, value)


def _or_none(check: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: value is None or check(value)


def _one_of(*values: object) -> Callable[[object], bool]:
    return lambda value: isinstance(value, (str, int)) and value in values


def _list_of(check: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: (
        isinstance(value, list) and len(value) <= ENTRIES_MAX and all(check(item) for item in value)
    )


def _is_version(value: object) -> bool:
    return type(value) is int and value == WIRE_VERSION


def _is_given_for(value: object) -> bool:
    return _is_struct(value, _GIVEN_FOR, ())


def _is_unit(value: object) -> bool:
    return _is_struct(value, _UNIT, ("unit", "form", "code", "sentence", "decided_at"))


def _are_counts(value: object) -> bool:
    return isinstance(value, dict) and all(
        fits(NAME, name) and is_count(count) for name, count in value.items()
    )


def _is_drain(value: object) -> bool:
    return _is_struct(value, _DRAIN, tuple(_DRAIN))


def _is_signed(value: object) -> bool:
    return _is_struct(value, _SIGNED, ("signed", "signature"))


def _are_modes(value: object) -> bool:
    return isinstance(value, dict) and all(
        fits(SM, sm) and mode in ("observe", "enforce") for sm, mode in value.items()
    )


def _is_positive(value: object) -> bool:
    return is_count(value) and value != 0


_GIVEN_FOR = {
    "architecture": _or_none(_matches(NAME)),
    "model_digest": _or_none(_matches(DIGEST)),
    "a2a": _matches(RUNNER),
    "sm": _or_none(_matches(SM)),
    "kernel_key": _or_none(_matches(DIGEST)),
}
_DRAIN = {
    "order": is_count,
    "unit": _matches(NAME),
    "launch_ids": _list_of(_matches(NAME)),
    "instances": _are_counts,
    "deadline_us": is_count,
}
_UNIT = {
    "unit": _matches(NAME),
    "form": _one_of("append", "untouched", "keep"),
    "value": _or_none(_matches(RUNNER)),
    "code": _matches(CODE),
    "sentence": _text,
    "launch_ids": _list_of(_matches(NAME)),
    "given_for": _is_given_for,
    "decided_at": is_count,
    "lease_s": _is_positive,
}
_DIRECTIVE = {
    "wire_version": _is_version,
    "incarnation": _matches(NAME),
    "generation": is_count,
    "node": _matches(NAME),
    "issued_at_us": is_count,
    "units": _list_of(_is_unit),
    "modes": _are_modes,
    "drains": _list_of(_is_drain),
}
_SIGNED = {"signed": _text, "signature": _matches(SIGNATURE)}
_ANSWER = {
    "wire_version": _is_version,
    "unit": _matches(NAME),
    "kernel_key": _or_none(_matches(DIGEST)),
    "directive": _or_none(_is_signed),
    "checks_wanted": _list_of(_matches(NAME)),
    "retry_after_s": _is_positive,
}


def _is_struct(
    value: object, fields: dict[str, Callable[[object], bool]], required: tuple[str, ...]
) -> bool:
    return (
        isinstance(value, dict)
        and all(name in value for name in required)
        and all(name in fields and fields[name](item) for name, item in value.items())
    )


def launch_answer(body: bytes) -> Json:
    """Decode a `LaunchAnswer`, defaults filled in.

    Raises:
        MalformedError: it is not one.
    """
    value = parse(body)
    if not isinstance(value, dict) or not _is_struct(value, _ANSWER, ("unit", "kernel_key")):
        raise MalformedError("answer_malformed")
    return {"directive": None, "checks_wanted": [], "retry_after_s": 1, **value}


def signed_directive(value: object) -> Json:
    """Check a `SignedDirective`.

    Raises:
        MalformedError: it is not one.
    """
    if not isinstance(value, dict) or not _is_signed(value):
        raise MalformedError("directive_malformed")
    return dict(value)


def directive(text: str) -> Json:
    """Decode the signed text of a `Directive`, defaults filled in.

    Raises:
        MalformedError: it is not one.
    """
    value = parse(text)
    required = ("incarnation", "generation", "node", "issued_at_us")
    if not isinstance(value, dict) or not _is_struct(value, _DIRECTIVE, required):
        raise MalformedError("directive_malformed")
    units = [
        {
            "value": None,
            "launch_ids": [],
            **unit,
            "given_for": {
                "architecture": None,
                "model_digest": None,
                "a2a": "none",
                "sm": None,
                "kernel_key": None,
                **unit.get("given_for", {}),
            },
        }
        for unit in value.get("units", [])
    ]
    for unit in units:
        given = unit["value"] is not None
        if (unit["form"] == "append" and not given) or (unit["form"] == "untouched" and given):
            raise MalformedError("directive_malformed")
    return {"modes": {}, **value, "units": units}
