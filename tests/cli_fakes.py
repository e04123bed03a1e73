"""A small API server that answers what a test says, and a way to run a command line against it."""

from __future__ import annotations

import contextlib
import dataclasses
import http.server
import io
import json
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any

from typing_extensions import override

from smgate import clock
from smgate.cli import app, console

Answer = tuple[int, Any] | tuple[int, Any, dict[str, str]]
Responder = Callable[["Request"], Answer]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any


class FakeApi:
    """Routes are `METHOD /path`; a list is answered in turn and its last one repeats."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.routes: dict[str, Responder | list[Answer] | Answer] = {}
        self.requests: list[Request] = []

    def sent(self, route: str) -> list[Request]:
        return [one for one in self.requests if f"{one.method} {one.path}" == route]

    @property
    def commands(self) -> list[dict[str, Any]]:
        return [one.body for one in self.sent("POST /v1/commands")]

    def answer(self, request: Request) -> Answer:
        self.requests.append(request)
        route = self.routes.get(f"{request.method} {request.path}")
        if route is None:
            return refusal(404, "unknown_path", f"Nothing at {request.path}.")
        if callable(route):
            return route(request)
        if isinstance(route, list):
            return route.pop(0) if len(route) > 1 else route[0]
        return route


def refusal(status: int, code: str, message: str, next_step: str = "Look again.") -> Answer:
    return status, {"error": {"code": code, "message": message, "next_step": next_step}}


def listed(*rows: dict[str, Any], position: int = 812) -> Answer:
    return 200, {"apiVersion": "v1", "items": list(rows), "position": position}


@contextlib.contextmanager
def serving() -> Iterator[FakeApi]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            parts = urllib.parse.urlsplit(self.path)
            raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            request = Request(
                method=self.command,
                path=parts.path,
                query=dict(urllib.parse.parse_qsl(parts.query)),
                headers={name.lower(): value for name, value in self.headers.items()},
                body=json.loads(raw) if raw else None,
            )
            status, body, *more = api.answer(request)
            if body is HANG_UP:
                self.close_connection = True
                return
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            for name, value in (more[0] if more else {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_DELETE = _serve  # noqa: N815  http.server's own names

        @override
        def log_message(self, *_: object) -> None:
            return

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    api = FakeApi(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield api
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


HANG_UP = object()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def error(self) -> dict[str, Any]:
        """The JSON error of -o json."""
        parsed: dict[str, Any] = json.loads(self.err.splitlines()[-1])["error"]
        return parsed


class Cli:
    """Runs command lines as a person with this environment would."""

    def __init__(self, url: str | None) -> None:
        self.environ = {"HOME": "/nonexistent"}
        if url is not None:
            self.environ["SMGATE_URL"] = url
        self.clock = clock.ManualClock(now_us=1_800_000_000_000_000)

    def __call__(self, *arguments: str, asked: str = "", terminal: bool = False) -> Result:
        out, err = io.StringIO(), io.StringIO()
        streams = console.Console(
            self.environ, out=out, err=err, asked=io.StringIO(asked), terminal=terminal
        )
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = app.run(arguments, environ=self.environ, console=streams, clock=self.clock)
        return Result(code=code, out=out.getvalue(), err=err.getvalue())
