"""A small HTTP/1.1 client with a limit on everything: whole time, headers, body.

`http.client` alone bounds each read, not the exchange: a peer that sends a byte a second holds
it for ever. Here every read gets what is left of one deadline.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import socket
import ssl
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, cast
from urllib.parse import urlsplit

from typing_extensions import override

from smgate_agent import clock

BODY_BYTES_MAX: Final = 4 << 20
"""A real `/server_info` is below 100 KiB, a directive below 1 MiB."""

_CONNECT_TIMEOUT_MAX_S: Final = 5.0


class HttpError(Exception):
    """No usable answer. `code` is stable: `refused`, `timeout`, `too_large`, `malformed`."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Status, body and headers of one exchange."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    """By their names in small letters."""


class _DeadlineReader(io.RawIOBase):
    """Reads a socket until one moment, however many reads that takes."""

    def __init__(self, sock: socket.socket, clock_: clock.Clock) -> None:
        self._sock = sock
        self._clock = clock_
        self.deadline_s = 0.0

    @override
    def readable(self) -> bool:
        return True

    @override
    def readinto(self, buffer: object) -> int:
        left_s = self.deadline_s - self._clock.monotonic_s()
        if left_s <= 0:
            raise TimeoutError
        self._sock.settimeout(left_s)
        return self._sock.recv_into(cast("bytearray", buffer))


class _Readable:
    """What `http.client.HTTPResponse` needs of a socket."""

    def __init__(self, reader: io.BufferedReader) -> None:
        self._reader = reader

    def makefile(self, *_: object, **__: object) -> io.BufferedReader:
        return self._reader


class Client:
    """One connection to one server, kept open between requests; not shared by threads."""

    def __init__(
        self, url: str, *, clock_: clock.Clock, ca_file: str | None = None, keep_alive: bool = True
    ) -> None:
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._tls = parts.scheme == "https"
        self._port = parts.port or (443 if self._tls else 80)
        self._prefix = parts.path.rstrip("/")
        self._authority = parts.netloc
        self._clock = clock_
        self._ca_file = ca_file
        self._keep_alive = keep_alive
        self._lock = threading.Lock()
        self._sock: socket.socket | None = None
        self._closed = False

    def close(self) -> None:
        """Close for good; a request that waits in another thread ends at once."""
        with self._lock:
            self._closed = True
        self._disconnect()

    def _disconnect(self) -> None:
        with self._lock:
            sock, self._sock = self._sock, None
        if sock is not None:
            with contextlib.suppress(OSError):  # not connected any more
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def request(
        self,
        method: str,
        path: str,
        *,
        timeout_s: float,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        body_bytes_max: int = BODY_BYTES_MAX,
    ) -> Answer:
        """One exchange, within `timeout_s`.

        A connection the server closed while it was idle is opened again, once.

        Raises:
            HttpError: no usable answer.
        """
        deadline_s = self._clock.monotonic_s() + timeout_s
        message = self._head(method, path, headers or {}, body) + (body or b"")
        reused = self._sock is not None
        try:
            return self._exchange(method, message, deadline_s, body_bytes_max)
        except HttpError as exc:
            if not reused or self._closed or exc.code != "refused":
                raise
        return self._exchange(method, message, deadline_s, body_bytes_max)

    def _head(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None
    ) -> bytes:
        lines = [f"{method} {self._prefix}{path} HTTP/1.1", f"Host: {self._authority}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if body is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        if not self._keep_alive:
            lines.append("Connection: close")
        assert not any("\r" in line or "\n" in line for line in lines), "header injection"
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    def _exchange(
        self, method: str, message: bytes, deadline_s: float, body_bytes_max: int
    ) -> Answer:
        keep = False
        try:
            sock = self._connected(deadline_s)
            sock.settimeout(max(0.001, deadline_s - self._clock.monotonic_s()))
            sock.sendall(message)
            reader = _DeadlineReader(sock, self._clock)
            reader.deadline_s = deadline_s
            readable = cast("socket.socket", _Readable(io.BufferedReader(reader)))
            response = http.client.HTTPResponse(readable, method=method)
            response.begin()
            body = response.read(body_bytes_max + 1)
            if len(body) > body_bytes_max:
                raise HttpError("too_large")
            if response.length:
                raise HttpError("malformed")  # ended before its Content-Length
            keep = self._keep_alive and not response.will_close and response.isclosed()
            headers = {name.lower(): value for name, value in response.getheaders()}
            return Answer(status=response.status, body=body, headers=headers)
        except TimeoutError as exc:
            raise HttpError("timeout") from exc
        except OSError as exc:
            raise HttpError("refused") from exc
        except (http.client.HTTPException, ValueError) as exc:
            raise HttpError("malformed") from exc
        finally:
            if not keep:
                self._disconnect()

    def _connected(self, deadline_s: float) -> socket.socket:
        if self._sock is not None:
            return self._sock
        left_s = min(_CONNECT_TIMEOUT_MAX_S, deadline_s - self._clock.monotonic_s())
        sock = socket.create_connection((self._host, self._port), timeout=max(0.001, left_s))
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls:
                context = ssl.create_default_context(cafile=self._ca_file)
                sock = context.wrap_socket(sock, server_hostname=self._host)
        except BaseException:
            sock.close()
            raise
        with self._lock:
            if not self._closed:
                self._sock = sock
                return sock
        sock.close()
        raise HttpError("refused")
