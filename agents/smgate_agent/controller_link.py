"""One connection to the controller, with the node's credential on every request."""

from __future__ import annotations

from dataclasses import dataclass

from smgate.wire import base
from smgate_agent import clock, http1, identity


@dataclass(frozen=True, kw_only=True)
class LinkState:
    """How a conversation stands, for status and metrics. `code` is why the last try failed."""

    reachable: bool = False
    code: str | None = None
    refused: bool = False
    """It answered, and will not take what was sent; asking again may change nothing."""
    last_contact_us: int | None = None


class Link:
    """Used by one thread, but may be closed by any, which ends a request that waits."""

    def __init__(
        self,
        credential: identity.Credential,
        *,
        clock_: clock.Clock,
        ca_file: str | None = None,
        keep_alive: bool = True,
    ) -> None:
        self.node = credential.node
        self.state = LinkState()
        self._credential = credential
        self._clock = clock_
        self._client = http1.Client(
            credential.controller_url, clock_=clock_, ca_file=ca_file, keep_alive=keep_alive
        )

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def request(
        self, method: str, path: str, *, timeout_s: float, body: bytes | None = None
    ) -> http1.Answer:
        """One exchange.

        Raises:
            http1.HttpError: no usable answer.
        """
        return self._client.request(
            method,
            path,
            timeout_s=timeout_s,
            headers={"Authorization": f"Bearer {self._credential.credential}"},
            body=body,
        )

    def reached(self) -> None:
        """The controller answered as it should."""
        self.state = LinkState(reachable=True, last_contact_us=self._clock.now_us())

    def failed(self, code: str, *, reachable: bool, refused: bool = False) -> None:
        """It did not answer, or not as it should."""
        contact = self._clock.now_us() if reachable else self.state.last_contact_us
        self.state = LinkState(
            reachable=reachable, code=code, refused=refused, last_contact_us=contact
        )


def problem_code(body: bytes) -> str | None:
    """The code of a refusal, if the body is one."""
    try:
        return base.decode(body, base.ErrorBody).error.code
    except base.MalformedError:
        return None
