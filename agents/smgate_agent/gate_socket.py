"""The Unix socket by which launch gates on this node reach the controller without a credential.

HTTP/1.1 over `AF_UNIX`, mode 0660. Who may open the socket may speak for this node; nothing else
is reachable through it.

| request | answer |
| --- | --- |
| `GET /v1/agent/identity` | `{"node", "controller_url", "public_key", "incarnation", "directive", "heard"}`: whom the gate speaks for, the pinned key, the signed directive this node holds (or null), and when the controller was heard last. Answered here, also while the controller is away |
| `POST /v1/agent/launch`, `GET /v1/agent/launch/{id}?wait=S`, `POST /v1/agent/facts` | relayed with the node's credential; status and body of the controller, unchanged |

A controller that cannot be reached is `502` with code `controller_refused`, `controller_timeout`,
`controller_too_large` or `controller_malformed`; more gates at once than are served is `503` with
code `busy`. The gate's own facts travel in its own outbox (its launch id), so they never wait
behind the resident agent's.
"""

from __future__ import annotations

import contextlib
import http.server
import re
import socketserver
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
from typing_extensions import override

from smgate.wire import base, directive
from smgate_agent import controller_link, directive_poll, files, http1, identity
from smgate_agent.launch import contact

RELAYS_MAX: Final = 32
"""Launch gates served at once: more ranks than a node starts; the rest is told to come again."""
ACCEPT_POLL_S: Final = 0.2
"""How late it is noticed that it should stop."""
CLIENT_TIMEOUT_S: Final = 10.0
RELAY_TIMEOUT_S: Final = 75.0
"""Longest wait a gate may ask of the controller (60 s), and the way there and back."""

_MODE: Final = 0o660
_NAME: Final = r"[A-Za-z0-9][A-Za-z0-9._:@+-]{0,119}"
_RELAYED: Final = (
    ("POST", re.compile(r"/v1/agent/launch")),
    ("GET", re.compile(rf"/v1/agent/launch/{_NAME}(?:\?wait=\d{{1,3}}(?:\.\d{{1,3}})?)?")),
    ("POST", re.compile(r"/v1/agent/facts")),
)


class GateSocket(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Listens while it runs; every connection has its own thread."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(
        self,
        path: Path,
        *,
        credential: identity.Credential,
        state_dir: Path,
        new_link: Callable[[], controller_link.Link],
    ) -> None:
        path.unlink(missing_ok=True)  # the agent holds a lock: nobody else listens here
        self.path = path
        self.credential = credential
        self.state_dir = state_dir
        self.new_link = new_link
        self.slots = threading.BoundedSemaphore(RELAYS_MAX)
        super().__init__(str(path), _Handler)

    @override
    def server_bind(self) -> None:
        super().server_bind()
        self.path.chmod(_MODE)

    @override
    def handle_timeout(self) -> None:
        """Nobody came."""

    @override
    def handle_error(self, request: object, client_address: object) -> None:
        """A gate that goes away in the middle is no news."""

    def run(self, stop: threading.Event) -> None:
        """Serve until told to stop."""
        self.timeout = ACCEPT_POLL_S
        try:
            while not stop.is_set():
                self.handle_request()
        finally:
            self.server_close()

    def hide(self) -> None:
        """Take the socket's name away, so that no gate comes any more."""
        with contextlib.suppress(OSError):
            self.path.unlink()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = CLIENT_TIMEOUT_S
    server: GateSocket

    @override
    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: requests are not this process's news, and a path could be long."""

    def do_GET(self) -> None:
        """Answer or relay."""
        if self.path == "/v1/agent/identity":
            self._answer(200, _self(self.server))
        else:
            self._relay(None)

    def do_POST(self) -> None:
        """Relay."""
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            self._refuse(411, "length_required", "The body has no Content-Length.")
        elif int(length) > base.BODY_BYTES_MAX:
            self._refuse(413, "body_too_large", "The body is larger than the controller reads.")
        else:
            self._relay(self.rfile.read(int(length)))

    def _relay(self, body: bytes | None) -> None:
        allowed = any(
            self.command == method and pattern.fullmatch(self.path) for method, pattern in _RELAYED
        )
        if not allowed:
            self._refuse(404, "not_found", "This socket does not relay that request.")
            return
        if not self.server.slots.acquire(blocking=False):
            self._refuse(503, "busy", "Too many launches ask at once.")
            return
        link = self.server.new_link()
        try:
            answer = link.request(self.command, self.path, timeout_s=RELAY_TIMEOUT_S, body=body)
        except http1.HttpError as exc:
            self._refuse(502, f"controller_{exc.code}", "The controller did not answer.")
        else:
            self._answer(answer.status, answer.body)
        finally:
            link.close()
            self.server.slots.release()

    def _refuse(self, status: int, code: str, message: str) -> None:
        problem = base.Problem(
            code=code, message=message, next_step="Ask again, or go on by the local rule."
        )
        self.close_connection = True
        self._answer(status, base.encode(base.ErrorBody(error=problem)))

    def _answer(self, status: int, body: bytes) -> None:
        with contextlib.suppress(OSError):
            self.send_response_only(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            if self.close_connection:
                self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(body)


def _self(server: GateSocket) -> bytes:
    try:
        held = files.read_bounded(server.state_dir / directive_poll.DIRECTIVE_FILE)
        signed = base.decode(held, directive.SignedDirective)
    except (OSError, base.MalformedError):
        signed = None
    credential = server.credential
    heard = None
    with contextlib.suppress(OSError, msgspec.DecodeError):
        heard = msgspec.json.decode(files.read_bounded(server.state_dir / contact.CONTACT_FILE))
    return msgspec.json.encode(
        {
            "node": credential.node,
            "controller_url": credential.controller_url,
            "public_key": credential.public_key,
            "incarnation": credential.incarnation,
            "directive": signed,
            "heard": heard,
        }
    )
