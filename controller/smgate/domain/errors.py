"""Refusals: a stable code, a sentence, a next step."""

from __future__ import annotations


class RejectedError(Exception):
    """A command that cannot be done now. Never a bug; bugs are assertions."""

    def __init__(self, *, code: str, message: str, next_step: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.next_step = next_step
