"""Owns the one way the service refuses a request: a status, a stable code, a sentence, a next step."""

from __future__ import annotations

from smgate.domain import errors

_PREFIX_STATUS = {
    "unknown_": 404,
    "bad_": 422,
    "too_long": 422,
    "reason_needed": 422,
    "forbidden": 403,
    "same_person": 403,
}


class RefusedError(Exception):
    """A request that is not done. Never a bug; it says what to do next."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        next_step: str,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.next_step = next_step
        self.retry_after_s = retry_after_s


def of_domain(error: errors.RejectedError) -> RefusedError:
    """The domain's refusal with the status it has over HTTP: by default, the state forbids it."""
    status = 409
    for prefix, prefix_status in _PREFIX_STATUS.items():
        if error.code.startswith(prefix):
            status = prefix_status
    return RefusedError(status, error.code, error.message, next_step=error.next_step)


def not_found(kind: str, name: str) -> RefusedError:
    """No such thing."""
    return RefusedError(
        404,
        f"unknown_{kind}",
        f"There is no {kind.replace('_', ' ')} {name!r}.",
        next_step="List what there is, and check the spelling.",
    )
