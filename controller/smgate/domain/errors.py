"""Refusals: a stable code, a sentence, a next step."""

from __future__ import annotations


class RejectedError(Exception):
    """A command that cannot be done now. Never a bug; bugs are assertions."""

    def __init__(self, *, code: str, message: str, next_step: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.next_step = next_step


def is_name(text: str) -> bool:
    """True for what a person can read, type and tell from another."""
    return text == text.strip() != "" and text.isprintable() and not text.startswith("-")


def check_name(thing: str, text: str) -> None:
    """Refuse a name for something new.

    Raises:
        RejectedError: `bad_name`.
    """
    if not is_name(text):
        raise RejectedError(
            code="bad_name",
            message=f"{text!r} cannot be the name of a {thing}.",
            next_step="Give printable characters, with no space around them and no dash in front.",
        )
