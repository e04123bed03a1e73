"""Owns how a failure is told: what, cause, hint, and an exit code. Never a traceback."""

from __future__ import annotations

from typing import Final

from smgate import client
from smgate.cli import exit_codes

CODES: Final = {
    "forbidden": exit_codes.AUTH,
    "same_person": exit_codes.CONFLICT,
    "world_moved": exit_codes.CONFLICT,
    "bad_moment": exit_codes.USAGE,
}
"""Refusals whose exit code does not depend on the HTTP status they came with."""


class CliError(Exception):
    """What ends a command. Everything a person needs is in it."""

    def __init__(
        self,
        what: str,
        *,
        exit_code: int = exit_codes.ERROR,
        code: str = "error",
        cause: str = "",
        hint: str = "",
    ) -> None:
        super().__init__(what)
        self.what = what
        self.exit_code = exit_code
        self.code = code
        self.cause = cause
        self.hint = hint


def usage(what: str, *, hint: str = "", code: str = "usage", cause: str = "") -> CliError:
    """The command line, or a file it names, does not fit."""
    return CliError(what, exit_code=exit_codes.USAGE, code=code, cause=cause, hint=hint)


def refused(error: client.ApiError) -> CliError:
    """A refusal of the controller."""
    hint = error.next_step
    if error.status == 401 and not hint:  # noqa: PLR2004  HTTP's own number
        hint = "Give a token by SMGATE_TOKEN, SMGATE_TOKEN_FILE or --token-file."
    return CliError(
        error.message or f"The controller refused ({error.code}).",
        exit_code=_exit_code(error),
        code=error.code,
        cause=f"HTTP {error.status} {error.code}",
        hint=hint,
    )


def unreachable(error: client.UnreachableError, *, idempotency_key: str | None = None) -> CliError:
    """No answer. If the command may have arrived, say how to find out safely."""
    if error.uncertain and idempotency_key is not None:
        hint = (
            "It is not known whether this was stored. Repeat the same command with "
            f"--idempotency-key {idempotency_key}"
        )
    else:
        hint = "Is `smgate serve` running there? Set --url, SMGATE_URL or a context."
    return CliError(
        f"Cannot reach the controller at {error.url}.",
        exit_code=exit_codes.UNREACHABLE,
        code="unreachable",
        cause=error.cause,
        hint=hint,
    )


def _exit_code(error: client.ApiError) -> int:
    if error.code in CODES:
        return CODES[error.code]
    return {
        401: exit_codes.AUTH,
        403: exit_codes.AUTH,
        404: exit_codes.NOT_FOUND,
        409: exit_codes.CONFLICT,
        412: exit_codes.CONFLICT,
        429: exit_codes.UNREACHABLE,
        502: exit_codes.UNREACHABLE,
        503: exit_codes.UNREACHABLE,
        504: exit_codes.UNREACHABLE,
    }.get(error.status, exit_codes.ERROR)
