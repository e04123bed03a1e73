"""Read named fields out of a Python repr, without evaluating it and without keeping the rest.

Two shapes are known: a dict (`{'a': 1, ...}`) and a call (`ServerArgs(a=1, ...)`). Only fields
that are asked for are decoded, only scalars are returned, and any text at all may be given: the
scanner runs once over it and never raises.
"""

from __future__ import annotations

import re
from typing import Final

Scalar = str | int | float | bool | None

_NUMBER: Final = re.compile(r"-?\d{1,18}(\.\d{1,18})?([eE][+-]?\d{1,3})?")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
_PLAIN: Final = re.compile(r"[^'\"\\()\[\]{},]+")
_CONSTANTS: Final[dict[str, Scalar]] = {"True": True, "False": False, "None": None}
_ESCAPES: Final = {"\\": "\\", "'": "'", '"': '"', "n": "\n", "t": "\t", "r": "\r"}
_VALUE_CHARACTERS_MAX: Final = 4096


def scan_fields(text: str, wanted: frozenset[str]) -> dict[str, Scalar]:
    """Scalars of the wanted fields at the outermost level; what is cut off is missing."""
    opening = re.match(r"\s*(?:(\{)|[A-Za-z_][A-Za-z0-9_.]{0,99}(\())", text)
    if opening is None:
        return {}
    is_dict = opening.group(1) is not None
    found: dict[str, Scalar] = {}
    at = opening.end()
    while at < len(text):
        key, at = _read_key(text, at, is_dict=is_dict)
        if key is None:
            return found
        end = _skip_value(text, at)
        if end >= len(text):
            return found  # cut off: a value without its end may be half of one
        if key in wanted:
            _keep_scalar(found, key, text[at:end].strip())
        if text[end] != ",":
            return found
        at = end + 1
    return found


def _read_key(text: str, at: int, *, is_dict: bool) -> tuple[str | None, int]:
    while at < len(text) and text[at].isspace():
        at += 1
    if not is_dict:
        name = _NAME.match(text, at)
        if name is None or text[name.end() : name.end() + 1] != "=":
            return None, at
        return name.group(), name.end() + 1
    if text[at : at + 1] not in {"'", '"'}:
        return None, at
    end = _skip_string(text, at)
    colon = text.find(":", end, end + 2)
    if colon < 0:
        return None, at
    return text[at + 1 : end - 1], colon + 1


def _skip_string(text: str, at: int) -> int:
    """Index after the string that opens at `at`; the end of the text if it never closes."""
    quote = text[at]
    at += 1
    while at < len(text):
        character = text[at]
        if character == "\\":
            at += 2
        elif character == quote:
            return at + 1
        else:
            at += 1
    return len(text)


def _skip_value(text: str, at: int) -> int:
    """Index of the comma or bracket that ends the value; the end of the text if none does."""
    depth = 0
    while at < len(text):
        character = text[at]
        if character in "'\"":
            at = _skip_string(text, at)
            continue
        if character in "([{":
            depth += 1
        elif character in ")]}":
            if depth == 0:
                return at
            depth -= 1
        elif character == "," and depth == 0:
            return at
        plain = _PLAIN.match(text, at)
        at = plain.end() if plain else at + 1
    return len(text)


def _keep_scalar(found: dict[str, Scalar], key: str, text: str) -> None:
    """A field said twice with a value that is no scalar is forgotten: it is not known."""
    found.pop(key, None)
    if len(text) > _VALUE_CHARACTERS_MAX:
        return
    if text in _CONSTANTS:
        found[key] = _CONSTANTS[text]
    elif text[:1] in {"'", '"'} and _skip_string(text, 0) == len(text) and text[-1:] == text[:1]:
        found[key] = _unescape(text[1:-1])
    elif (number := _NUMBER.fullmatch(text)) is not None:
        found[key] = float(text) if number.group(1) or number.group(2) else int(text)


def _unescape(text: str) -> str:
    return re.sub(r"\\(.)", lambda match: _ESCAPES.get(match.group(1), match.group(0)), text)
