"""Owns what every answer looks like: canonical JSON, and one shape for every refusal."""

from __future__ import annotations

import logging
from typing import Any, Final

import fastapi
import msgspec
from starlette import exceptions

from smgate.log import archive, codec, formats, port
from smgate.service import openings, refusal
from smgate.wire import base

JSON: Final = "application/json"
SENTENCE_MAX: Final = 1_000
log = logging.getLogger(__name__)
Past = archive.ArchiveMissingError | archive.ArchiveBadError | openings.UnreadableOpeningError


def json(body: object, *, status: int = 200) -> fastapi.Response:
    """An answer of plain values."""
    return fastapi.Response(msgspec.json.encode(body), status_code=status, media_type=JSON)


def message(body: base.Message, *, status: int = 200) -> fastapi.Response:
    """An answer of the wire contract."""
    return fastapi.Response(base.encode(body), status_code=status, media_type=JSON)


def error(
    status: int, code: str, sentence: str, next_step: str, *, headers: dict[str, str] | None = None
) -> fastapi.Response:
    """A refusal."""
    problem = base.Problem(code=code, message=sentence[:SENTENCE_MAX], next_step=next_step)
    answer = message(base.ErrorBody(error=problem), status=status)
    answer.headers.update(headers or {})
    return answer


def no_such_path() -> fastapi.Response:
    """Nothing is there."""
    return error(
        404, "no_such_path", "Not Found.", "Check the path; `smgate --help` lists what there is."
    )


def of_refused(refused: refusal.RefusedError) -> fastapi.Response:
    """The service's refusal."""
    headers: dict[str, str] = {}
    if refused.retry_after_s is not None:
        headers["Retry-After"] = str(refused.retry_after_s)
    if refused.status == fastapi.status.HTTP_401_UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    return error(refused.status, refused.code, refused.message, refused.next_step, headers=headers)


def install(app: fastapi.FastAPI) -> None:
    """Turn what is refused into an answer of this shape; `middleware.LastResort` has the rest."""
    _install_past(app)

    @app.exception_handler(refusal.RefusedError)
    async def refused(_: fastapi.Request, exc: refusal.RefusedError) -> fastapi.Response:
        return of_refused(exc)

    @app.exception_handler(base.MalformedError)
    async def malformed(_: fastapi.Request, exc: base.MalformedError) -> fastapi.Response:
        return error(
            422, "malformed", f"The body is not what it should be: {exc}.", "Correct the message."
        )

    @app.exception_handler(fastapi.exceptions.RequestValidationError)
    async def invalid(
        _: fastapi.Request, exc: fastapi.exceptions.RequestValidationError
    ) -> fastapi.Response:
        first: dict[str, Any] = exc.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return error(422, "bad_parameter", f"{where}: {first['msg']}.", "Correct the parameter.")

    @app.exception_handler(exceptions.HTTPException)
    async def http(_: fastapi.Request, exc: exceptions.HTTPException) -> fastapi.Response:
        codes = {404: "no_such_path", 405: "method_not_allowed"}
        code = codes.get(exc.status_code, f"http_{exc.status_code}")
        return error(
            exc.status_code,
            code,
            f"{exc.detail}.",
            "Check the path; `smgate --help` lists what there is.",
            headers=dict(exc.headers or {}),
        )

    @app.exception_handler(port.LogUnavailableError)
    async def unavailable(_: fastapi.Request, exc: port.LogUnavailableError) -> fastapi.Response:
        log.error("The log is unavailable (%s): %s", exc.reason, exc.detail)
        return error(
            503,
            "log_unavailable",
            f"The event log is unavailable ({exc.reason}).",
            f"{exc.next_step} Sending the same again is safe.",
            headers={"Retry-After": "2"},
        )

    @app.exception_handler(formats.NotFinalizedError)
    async def early(_: fastapi.Request, exc: formats.NotFinalizedError) -> fastapi.Response:
        return error(409, exc.code, exc.sentence, exc.next_step)

    @app.exception_handler(port.LogOverloadedError)
    async def overloaded(_: fastapi.Request, exc: port.LogOverloadedError) -> fastapi.Response:
        return error(
            429,
            exc.code,
            f"{exc.waiting} records wait to be written, as many as this process takes.",
            "Wait a moment and send the same again; if it stays so, look at the database's disk.",
            headers={"Retry-After": str(exc.retry_after_s)},
        )


def _install_past(app: fastapi.FastAPI) -> None:
    @app.exception_handler(port.BelowFloorError)
    async def cut(_: fastapi.Request, exc: port.BelowFloorError) -> fastapi.Response:
        sentence = f"The log was put into the archive up to position {exc.floor} meanwhile."
        return error(503, exc.code, sentence, "Ask again.", headers={"Retry-After": "1"})

    @app.exception_handler(port.LogNotReadyError)
    async def not_ready(_: fastapi.Request, exc: port.LogNotReadyError) -> fastapi.Response:
        log.error("The database has no event log any more: %s", exc.detail)
        return error(503, exc.code, exc.detail, exc.next_step, headers={"Retry-After": "2"})

    @app.exception_handler(codec.UnknownEventError)
    async def unknown(_: fastapi.Request, exc: codec.UnknownEventError) -> fastapi.Response:
        log.error("%s", exc.sentence)
        return error(503, exc.code, exc.sentence, exc.next_step)

    @app.exception_handler(archive.ArchiveMissingError)
    @app.exception_handler(archive.ArchiveBadError)
    @app.exception_handler(openings.UnreadableOpeningError)
    async def past(_: fastapi.Request, exc: Past) -> fastapi.Response:
        return error(409, exc.code, exc.sentence, exc.next_step)


def of_bug(exc: Exception) -> fastapi.Response:
    """What is said of a failure of ours; all else about it is in the log."""
    log.error("A request failed.", exc_info=exc)
    return error(
        500,
        "internal",
        "The controller failed at this request; its log says how.",
        "Try again; if it stays, report it with the controller's log.",
    )
