"""A tiny controller for tests of the agent: keeps facts as the contract says, and can be told to fail."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from typing import Any

from nacl.signing import SigningKey

from smgate.wire import base, directive, facts

TOKEN = "join-PLANTED-1"
CREDENTIAL = "cred-PLANTED-2"


def error(code: str) -> bytes:
    problem = base.Problem(code=code, message="no", next_step="none")
    return base.encode(base.ErrorBody(error=problem))


class FakeController:
    """Use as a context manager. `script` answers are taken first, one per request to /facts."""

    def __init__(self, *, node: str = "node-1", key: SigningKey | None = None) -> None:
        self.node = node
        self.key = key or SigningKey.generate()
        self.incarnation = "log-1"
        self.streams: dict[str, dict[int, facts.Fact]] = {}
        self.arrived: list[tuple[str, facts.Payload]] = []
        self.script: list[tuple[int, bytes]] = []
        self.directive: directive.Directive | None = None
        self.baking: str | None = None
        """Whose intervals count; None: as a controller that says nothing of it."""
        self.signing_key = self.key
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        self.changed = threading.Condition()
        owner = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: object) -> None:
                pass

            def do_GET(self) -> None:
                owner._handle(self, b"")

            def do_POST(self) -> None:
                owner._handle(self, self.rfile.read(int(self.headers["Content-Length"])))

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )

    def __enter__(self) -> FakeController:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self.changed:
            self.changed.notify_all()
        self._server.shutdown()
        self._server.server_close()

    @property
    def stored(self) -> list[facts.Payload]:
        return [
            stream[sequence].payload
            for stream in self.streams.values()
            for sequence in sorted(stream)
        ]

    def payloads(self, kind: type[Any]) -> list[Any]:
        return [payload for payload in self.stored if isinstance(payload, kind)]

    def publish(self, new: directive.Directive) -> None:
        with self.changed:
            self.directive = new
            self.changed.notify_all()

    def wait_for(self, condition: Any, *, timeout_s: float = 10.0) -> bool:
        with self.changed:
            return self.changed.wait_for(condition, timeout_s)

    def sign(self, new: directive.Directive) -> bytes:
        signed = base.encode(new)
        signature = self.signing_key.sign(signed).signature.hex()
        return base.encode(directive.SignedDirective(signed=signed.decode(), signature=signature))

    def _handle(self, handler: http.server.BaseHTTPRequestHandler, body: bytes) -> None:
        with self.changed:
            headers = {name.lower(): value for name, value in handler.headers.items()}
            self.requests.append((handler.command, handler.path, headers, body))
            self.changed.notify_all()
        try:
            status, answer = self._answer(handler.path, headers, body)
        finally:
            with self.changed:
                self.changed.notify_all()
        with contextlib.suppress(OSError):
            handler.send_response(status)
            handler.send_header("Content-Length", str(len(answer)))
            if self.baking is not None and handler.path.startswith("/v1/agent/directive"):
                handler.send_header(directive.BAKING_HEADER, self.baking)
            handler.end_headers()
            handler.wfile.write(answer)

    def _answer(self, path: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        bearer = headers.get("authorization", "").removeprefix("Bearer ")
        if path == "/v1/agent/enroll":
            return self._enroll(bearer, body)
        if bearer != CREDENTIAL:
            return 401, error("token_unknown")
        if path == "/v1/agent/facts":
            return self._facts(body)
        if path.startswith("/v1/agent/directive"):
            return self._directive(path)
        return 200, json.dumps({"path": path, "body": body.decode()}).encode()

    def _enroll(self, bearer: str, body: bytes) -> tuple[int, bytes]:
        if bearer != TOKEN:
            return 401, error("token_unknown")
        request = base.decode(body, directive.EnrollRequest)
        answer = directive.EnrollAnswer(
            node=request.node,
            credential=CREDENTIAL,
            public_key=self.key.verify_key.encode().hex(),
            incarnation=self.incarnation,
        )
        return 200, base.encode(answer)

    def _facts(self, body: bytes) -> tuple[int, bytes]:
        if self.script:
            return self.script.pop(0)
        batch = base.decode(body, facts.FactsBatch)
        if batch.node != self.node:
            return 403, error("another_node")
        stream = self.streams.setdefault(batch.outbox_id, {})
        if batch.facts[0].sequence > len(stream) + 1:
            return 409, error("sequence_gap")
        repeated = 0
        for fact in batch.facts:
            if fact.sequence in stream:
                if stream[fact.sequence] != fact:
                    return 409, error("conflict")
                repeated += 1
            else:
                self.arrived.append((batch.outbox_id, fact.payload))
            stream[fact.sequence] = fact
        head = facts.ChainHead(position=1, chain="00000000")
        return 200, base.encode(
            facts.Acknowledgement(
                acknowledged_through=batch.facts[-1].sequence, repeated=repeated, head=head
            )
        )

    def _directive(self, path: str) -> tuple[int, bytes]:
        generation = int(path.partition("generation=")[2].partition("&")[0])
        wait_s = float(path.partition("wait=")[2])

        def newer() -> bool:
            return self.directive is not None and self.directive.generation != generation

        if self.wait_for(newer, timeout_s=wait_s):
            assert self.directive is not None
            return 200, self.sign(self.directive)
        return 204, b""
