"""HTTP to the controller, or to the resident agent's Unix socket: one exchange, bounded.

No redirect is followed, no body above the limit is read, a peer that sends one byte at a time is
cut off by a timer, and nobody waits for a name server that does not answer.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import threading
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

Json = dict[str, Any]

BODY_BYTES_MAX = 1 << 20
HTTP_OK, HTTP_SERVER_ERROR = 200, 500
STATUS_TOO_MANY = 429
USER_AGENT = "smgate-launch"
GRACE_S = 0.2
"""For the timer to cut the exchange off, so that it can say more than silence."""


class ExchangeError(Exception):
    """An exchange failed; `code` says how, `retry` whether trying again may help."""

    def __init__(self, code: str, *, retry: bool) -> None:
        super().__init__(code)
        self.code = code
        self.retry = retry


@dataclass(frozen=True)
class Endpoint:
    """Where to ask. Either a Unix socket or a URL; the credential goes only to the latter."""

    socket_path: str | None = None
    url: str | None = None
    credential: str | None = None
    ca_file: str | None = None


def exchange(
    endpoint: Endpoint, method: str, path: str, body: Json | None, *, timeout_s: float
) -> bytes:
    """One request and its 200 answer.

    Raises:
        ExchangeError: there was no such answer within the time.
    """
    ended: list[bytes | Exception] = []

    def work() -> None:
        try:
            ended.append(_exchange(endpoint, method, path, body, timeout_s))
        except Exception as exc:
            ended.append(exc)

    # A look-up of a name cannot be interrupted; a thread that hangs in one is left behind.
    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    worker.join(timeout_s + GRACE_S)
    if not ended:
        raise ExchangeError("controller_silent", retry=True)
    if isinstance(ended[0], Exception):
        raise ended[0]
    return ended[0]


def _exchange(
    endpoint: Endpoint, method: str, path: str, body: Json | None, timeout_s: float
) -> bytes:
    try:
        connection, prefix = _connection(endpoint, timeout_s)
    except (ssl.SSLError, ValueError, http.client.HTTPException) as exc:
        raise ExchangeError("controller_address_bad", retry=False) from exc
    except OSError as exc:
        raise ExchangeError("agent_socket_unreachable", retry=True) from exc
    cut = threading.Event()
    timer = threading.Timer(timeout_s, _cut, (connection, cut))
    timer.daemon = True
    timer.start()
    try:
        connection.request(method, prefix + path, _encode(body), _headers(endpoint, body))
        answer = connection.getresponse()
        content = answer.read(BODY_BYTES_MAX + 1)
    except (OSError, http.client.HTTPException, ValueError) as exc:
        raise ExchangeError(_code(exc, cut=cut.is_set()), retry=True) from exc
    finally:
        timer.cancel()
        connection.close()
    if cut.is_set() or (answer.length and len(content) <= BODY_BYTES_MAX):
        # A body that ends early reads as a short one, without an error.
        raise ExchangeError("controller_silent" if cut.is_set() else "answer_truncated", retry=True)
    if answer.status != HTTP_OK:
        raise ExchangeError(
            f"controller_status_{answer.status:03d}",
            retry=answer.status >= HTTP_SERVER_ERROR or answer.status == STATUS_TOO_MANY,
        )
    if len(content) > BODY_BYTES_MAX:
        raise ExchangeError("answer_too_large", retry=False)
    return content


def _connection(endpoint: Endpoint, timeout_s: float) -> tuple[http.client.HTTPConnection, str]:
    if endpoint.socket_path is not None:
        connection = http.client.HTTPConnection("localhost", timeout=timeout_s)
        connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.sock.settimeout(timeout_s)
        connection.sock.connect(endpoint.socket_path)
        return connection, ""
    parts = urlsplit(endpoint.url or "")
    if parts.hostname is None or parts.scheme not in ("http", "https"):
        raise ValueError("not an HTTP address")
    prefix = parts.path.rstrip("/")
    if parts.scheme == "http":
        return http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout_s), prefix
    context = ssl.create_default_context(cafile=endpoint.ca_file)
    return (
        http.client.HTTPSConnection(parts.hostname, parts.port, timeout=timeout_s, context=context),
        prefix,
    )


def _headers(endpoint: Endpoint, body: Json | None) -> dict[str, str]:
    headers = {"User-Agent": USER_AGENT, "Accept": "application/json", "Connection": "close"}
    if body is not None:
        headers["Content-Type"] = "application/json"
    if endpoint.credential is not None:
        headers["Authorization"] = f"Bearer {endpoint.credential}"
    return headers


def _encode(body: Json | None) -> bytes | None:
    if body is None:
        return None
    return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode(
        "utf-8", "replace"
    )


def _code(exc: Exception, *, cut: bool) -> str:
    """What the end of an exchange says: whatever was raised after the timer cut it is silence."""
    if cut or isinstance(exc, TimeoutError):
        return "controller_silent"
    return "controller_unreachable" if isinstance(exc, OSError) else "answer_not_http"


def _cut(connection: http.client.HTTPConnection, cut: threading.Event) -> None:
    cut.set()
    sock = connection.sock
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
