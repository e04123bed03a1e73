"""Owns decoding what people send: strictly, into the domain's own dataclasses.

Unknown fields are errors at any depth, texts and numbers are bounded, and control characters are
refused: what is stored here is printed on terminals later.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec

from smgate.service import refusal

TEXT_MAX: Final = 200
REASON_MAX: Final = 2_000
ITEMS_MAX: Final = 10_000
INT_MAX: Final = 1 << 53
_ALLOWED_CONTROLS: Final = frozenset("\t\n")
_SPACE: Final = 0x20
_DELETE: Final = 0x7F
_C1_END: Final = 0x9F

T = TypeVar("T")


def parse(body: bytes) -> dict[str, Any]:
    """The JSON object in a body.

    Raises:
        RefusedError: `bad_json`.
    """
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise _bad("bad_json", f"The body is not JSON: {error}.") from error
    if not isinstance(value, dict):
        raise _bad("bad_json", "The body is not a JSON object.")
    check_bounds(value, "$")
    return value


def convert(value: dict[str, Any], kind: type[T], *, code: str = "bad_command") -> T:
    """The object as a `kind`.

    Raises:
        RefusedError: `code`, with the path of what is wrong.
    """
    try:
        made = msgspec.convert(value, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise _bad(code, f"{error}.") from error
    # Dataclasses ignore fields they do not have; what was ignored is not in the way back.
    unknown = _unknown(value, msgspec.to_builtins(made), "$")
    if unknown is not None:
        raise _bad(code, f"Unknown field `{unknown}`.")
    return made


def _unknown(given: object, taken: object, path: str) -> str | None:
    if isinstance(given, dict) and isinstance(taken, dict):
        for key in given:
            if key not in taken:
                return f"{path}.{key}"
            found = _unknown(given[key], taken[key], f"{path}.{key}")
            if found is not None:
                return found
    if isinstance(given, list) and isinstance(taken, list | tuple):
        for index, (one, other) in enumerate(zip(given, taken, strict=False)):
            found = _unknown(one, other, f"{path}[{index}]")
            if found is not None:
                return found
    return None


def check_bounds(value: object, path: str) -> None:
    """Refuse texts, numbers and lists that are too long or large, and control characters.

    Raises:
        RefusedError: `bad_json`, `too_long`, `bad_text`, with the path.
    """
    if isinstance(value, str):
        most = REASON_MAX if path.endswith(".reason") else TEXT_MAX
        _check_text(value, path, most)
    elif isinstance(value, bool | float | None):
        pass  # A float that is no number is no JSON either.
    elif isinstance(value, int):
        if abs(value) > INT_MAX:
            raise _bad("bad_json", f"The number at `{path}` is too large.")
    elif isinstance(value, dict):
        _check_count(value, path)
        for key, item in value.items():
            _check_text(key, path, TEXT_MAX)
            check_bounds(item, f"{path}.{key}")
    elif isinstance(value, list):
        _check_count(value, path)
        for index, item in enumerate(value):
            check_bounds(item, f"{path}[{index}]")


def check_reason(reason: str) -> None:
    """Refuse a reason, given on the database itself, as one that a controller would.

    Raises:
        RefusedError: `reason_needed`, `too_long`, `bad_text`.
    """
    if not reason.strip():
        raise refusal.RefusedError(
            422, "reason_needed", "A reason is needed.", next_step="Give --reason."
        )
    _check_text(reason, "--reason", REASON_MAX)


def _check_count(value: dict[str, Any] | list[Any], path: str) -> None:
    if len(value) > ITEMS_MAX:
        raise _bad("bad_json", f"`{path}` has {len(value)} items, at most {ITEMS_MAX}.")


def _check_text(text: str, path: str, most: int) -> None:
    if len(text) > most:
        raise _bad("too_long", f"The text at `{path}` has {len(text)} characters, at most {most}.")
    for character in text:
        code = ord(character)
        control = code < _SPACE or _DELETE <= code <= _C1_END
        if control and character not in _ALLOWED_CONTROLS:
            raise _bad("bad_text", f"The text at `{path[:TEXT_MAX]}` has a control character.")


def _bad(code: str, message: str) -> refusal.RefusedError:
    return refusal.RefusedError(422, code, message, next_step="Correct the request.")
