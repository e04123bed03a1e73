"""The HTTP client of the operators' API: one connection, retries that are safe to repeat.

It decides nothing and prints nothing. A command carries an idempotency key, so it may be sent again
when nobody knows whether the first one arrived.
"""

from __future__ import annotations

import dataclasses
import threading
import urllib.parse
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from smgate import clock as clocks

if TYPE_CHECKING:
    import httpx2  # At run time only when a client is made: `smgate --version` needs none.

ATTEMPTS_MAX: Final = 4
"""A leader change takes about a second; what fails for longer is for a person to know."""
PAUSES_S: Final = (0.5, 1.0, 2.0)
RETRY_AFTER_MAX_S: Final = 10.0
"""A person waits at the other end, whatever the server asks for."""
CONNECT_TIMEOUT_MAX_S: Final = 5.0
TRY_AGAIN: Final = frozenset({429, 502, 503, 504})
LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})

JsonObject = dict[str, Any]
Parameters = Mapping[str, str | int | None]


class ApiError(Exception):
    """The controller answered with a refusal: a code, a sentence and a next step."""

    def __init__(self, *, status: int, code: str, message: str, next_step: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.next_step = next_step


class UnreachableError(Exception):
    """No answer. `uncertain` when the request may have arrived all the same."""

    def __init__(self, *, url: str, cause: str, uncertain: bool) -> None:
        super().__init__(f"{url}: {cause}")
        self.url = url
        self.cause = cause
        self.uncertain = uncertain


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One JSON object and when the controller says it gave it (an HTTP date)."""

    body: JsonObject
    date: str | None


def path(*parts: str) -> str:
    """A path below /v1 from names that may hold any character."""
    return "/v1/" + "/".join(urllib.parse.quote(part, safe="") for part in parts)


class Client:
    """One operator's connection to one controller."""

    def __init__(
        self,
        *,
        url: str,
        token: str | None,
        timeout_s: float,
        clock: clocks.Clock,
        attempts_max: int = ATTEMPTS_MAX,
        on_retry: Callable[[str, float], None] | None = None,
    ) -> None:
        self.url: Final = url.rstrip("/")
        self._clock: Final = clock
        self._attempts_max: Final = attempts_max
        self._on_retry: Final = on_retry
        headers = {"Accept": "application/json"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        self._http: Final = _connection(self.url, headers, timeout_s=timeout_s)

    def close(self) -> None:
        """End the connection."""
        self._http.close()

    def get(self, where: str, parameters: Parameters | None = None) -> Answer:
        """Read."""
        given = {name: value for name, value in (parameters or {}).items() if value is not None}
        return self._send("GET", where, repeatable=True, parameters=given)

    def command(self, body: JsonObject) -> Answer:
        """Send one command. With an idempotency key or as a dry run it may be sent again."""
        repeatable = "idempotency_key" in body or body.get("dry_run") is True
        return self._send("POST", "/v1/commands", repeatable=repeatable, body=body)

    def post(self, where: str, body: JsonObject) -> Answer:
        """Send once: what this creates would be created twice by a repeat."""
        return self._send("POST", where, repeatable=False, body=body)

    def delete(self, where: str) -> Answer:
        """Delete; deleting twice is deleting."""
        return self._send("DELETE", where, repeatable=True)

    def _send(
        self,
        method: str,
        where: str,
        *,
        repeatable: bool,
        parameters: Mapping[str, str | int] | None = None,
        body: JsonObject | None = None,
    ) -> Answer:
        import httpx2

        for attempt in range(self._attempts_max):
            last = attempt + 1 == self._attempts_max
            pause_s = PAUSES_S[min(attempt, len(PAUSES_S) - 1)]
            try:
                response = self._http.request(method, where, params=parameters, json=body)
            except httpx2.TransportError as error:
                before = isinstance(error, (httpx2.ConnectError, httpx2.ConnectTimeout))
                slow_read = method == "GET" and isinstance(error, httpx2.ReadTimeout)
                if last or slow_read or not (before or repeatable):
                    raise UnreachableError(
                        url=self.url,
                        cause=_cause(error),
                        uncertain=method != "GET" and not before,
                    ) from error
                why = _cause(error)
            else:
                if last or response.status_code not in TRY_AGAIN:
                    return _answer(response)
                if response.status_code in (502, 504) and not repeatable:
                    return _answer(response)
                why = f"HTTP {response.status_code}"
                pause_s = _retry_after_s(response, default_s=pause_s)
            if self._on_retry is not None:
                self._on_retry(why, pause_s)
            self._clock.wait(threading.Event(), pause_s)
        raise AssertionError("the last attempt returns or raises")


def _connection(url: str, headers: dict[str, str], *, timeout_s: float) -> httpx2.Client:
    import httpx2

    try:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UnreachableError(
                url=url, cause="not an http:// or https:// address", uncertain=False
            )
        return httpx2.Client(
            base_url=url,
            headers=headers,
            timeout=httpx2.Timeout(timeout_s, connect=min(timeout_s, CONNECT_TIMEOUT_MAX_S)),
            # A proxy from the environment is for other machines, never for this one.
            trust_env=parts.hostname not in LOOPBACK,
            # Reading the certificates takes a good part of a command's time; http:// has none.
            verify=parts.scheme == "https",
        )
    except (httpx2.InvalidURL, ValueError) as error:
        raise UnreachableError(url=url, cause=str(error), uncertain=False) from error


def _cause(error: httpx2.TransportError) -> str:
    import httpx2

    if isinstance(error, httpx2.TimeoutException):
        return "no answer in time"
    return str(error) or type(error).__name__


def _retry_after_s(response: httpx2.Response, *, default_s: float) -> float:
    text = response.headers.get("Retry-After", "")
    if not (text.isascii() and text.isdigit()):
        return default_s
    return min(float(text), RETRY_AFTER_MAX_S)


def _answer(response: httpx2.Response) -> Answer:
    status = response.status_code
    try:
        body = response.json() if response.content else {}
    except ValueError:
        body = None
    if response.is_success and isinstance(body, dict):
        return Answer(body=body, date=response.headers.get("Date"))
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        raise ApiError(
            status=status,
            code="not_smgate",
            message=f"{response.url} answered HTTP {status} with something that is not smgate's.",
            next_step="Check the address: it should be the controller's, without a path.",
        )
    raise ApiError(
        status=status,
        code=str(error.get("code", "unknown")),
        message=str(error.get("message", "")),
        next_step=str(error.get("next_step", "")),
    )
