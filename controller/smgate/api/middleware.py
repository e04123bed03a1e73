"""Owns what stands before every route: the limit on bodies, failures of ours, counting."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from starlette import types

from smgate import metrics
from smgate.api import answers
from smgate.wire import base

DRAINED_BYTES_MAX: Final = 256 << 20
DRAINED_S_MAX: Final = 10.0
"""How much of a body that is too long is read and thrown away, so that its sender gets the answer
instead of a broken connection. Nothing of it is kept."""

BODY_S_MAX: Final = 30.0
"""A body comes within this, or its sender is not there any more: it would be held for ever, and
hold back the end of the process."""

PATHS_COUNTED: Final = frozenset(
    {
        "/v1/agent/enroll",
        "/v1/agent/facts",
        "/v1/agent/launch",
        "/v1/agent/directive",
        "/v1/commands",
        "/v1/tokens",
        "/metrics",
        "/healthz",
        "/readyz",
    }
)
WAITING: Final = frozenset({"/v1/agent/directive", "launch_wait"})
"""Routes whose time is mostly waiting."""


class _TooLargeError(Exception):
    """The body passes the limit."""


class BodyLimit:
    """Refuses a body above the limit, at its announced length or at the byte that passes it.

    A body that does not come to its end in time is refused, and so are paths that no database can
    look up.
    """

    def __init__(
        self,
        app: types.ASGIApp,
        *,
        bytes_max: int = base.BODY_BYTES_MAX,
        body_s_max: float = BODY_S_MAX,
    ) -> None:
        self._app: Final = app
        self._bytes_max: Final = bytes_max
        self._body_s_max: Final = body_s_max

    async def __call__(self, scope: types.Scope, receive: types.Receive, send: types.Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if "\x00" in scope["path"]:
            # No name has one, and PostgreSQL cannot even be asked.
            await answers.no_such_path()(scope, receive, send)
            return
        try:
            async with asyncio.timeout(self._body_s_max):
                body = await self._read(scope, receive)
        except TimeoutError:
            await _too_slow(self._body_s_max)(scope, receive, send)
            return
        except _TooLargeError:
            await self._refuse(scope, receive, send)
            return
        if body is None:
            return  # The sender left.
        sent = False

        async def replay() -> types.Message:
            nonlocal sent
            if sent:
                return await receive()
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, replay, send)

    async def _read(self, scope: types.Scope, receive: types.Receive) -> bytes | None:
        if _announced(scope) > self._bytes_max:
            await _drain(receive)
            raise _TooLargeError
        body = bytearray()
        more = True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                return None
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > self._bytes_max:
                body.clear()
                if more:
                    await _drain(receive)
                raise _TooLargeError
        return bytes(body)

    async def _refuse(self, scope: types.Scope, receive: types.Receive, send: types.Send) -> None:
        refused = answers.error(
            413,
            "body_too_large",
            f"The body is larger than {self._bytes_max} bytes.",
            "Send fewer facts in one batch.",
            headers={"Connection": "close"},
        )
        await refused(scope, receive, send)


class LastResort:
    """Answers for a failure of ours, so that nothing of it but a sentence leaves the process."""

    def __init__(self, app: types.ASGIApp) -> None:
        self._app: Final = app

    async def __call__(self, scope: types.Scope, receive: types.Receive, send: types.Send) -> None:
        """One request."""
        started = False

        async def noting(message: types.Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, noting)
        except Exception as exc:
            if started or scope["type"] != "http":
                raise
            await answers.of_bug(exc)(scope, receive, send)


class Counting:
    """Counts requests and their time by route, of a fixed list: a path never makes a series."""

    def __init__(self, app: types.ASGIApp, *, requests: metrics.Requests) -> None:
        self._app: Final = app
        self._requests: Final = requests

    async def __call__(self, scope: types.Scope, receive: types.Receive, send: types.Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        route = _route(scope["path"])
        started_s = time.perf_counter()
        status = "aborted"

        async def noting(message: types.Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = f"{message['status'] // 100}xx"
            await send(message)

        try:
            await self._app(scope, receive, noting)
        finally:
            self._requests.total.labels(route, status).inc()
            if route not in WAITING:
                self._requests.seconds.labels(route).observe(time.perf_counter() - started_s)


def _route(path: str) -> str:
    if path in PATHS_COUNTED:
        return path
    if path.startswith("/v1/agent/launch/"):
        return "launch_wait"
    return "read" if path.startswith("/v1/") else "other"


def _too_slow(within_s: float) -> types.ASGIApp:
    return answers.error(
        408,
        "body_too_slow",
        f"The body did not come within {within_s:g} s.",
        "Send it again.",
        headers={"Connection": "close"},
    )


def _announced(scope: types.Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value[:20])
    return 0


async def _drain(receive: types.Receive) -> None:
    ends_s = time.monotonic() + DRAINED_S_MAX
    left = DRAINED_BYTES_MAX
    while left > 0 and time.monotonic() < ends_s:
        message = await receive()
        if message["type"] != "http.request" or not message.get("more_body", False):
            return
        left -= len(message.get("body", b""))
