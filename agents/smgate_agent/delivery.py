"""Bring the outbox to the controller: batches, acknowledgements, and what each refusal means.

`verdict` is the pure part. A controller that is away, busy or restored never makes the agent
lose a fact: it waits, sends again from what it kept, or moves to a new outbox and says so.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable
from typing import Final

from smgate.wire import base, facts
from smgate_agent import controller_link, http1, outbox

TIMEOUT_S: Final = 30.0
BACKOFF_FIRST_S: Final = 0.5
BACKOFF_MAX_S: Final = 60.0
"""A fleet that comes back asks over a minute, not at once."""
IDLE_S: Final = 30.0
"""Longest sleep while nothing is appended; bounds how late a missed wake-up is noticed."""

_OK: Final = 200
_UNAUTHORIZED: Final = frozenset({401, 403})
_CLIENT_ERRORS: Final = (400, 500)
_BUSY: Final = frozenset({408, 425, 429})
_TOO_MUCH: Final = frozenset({400, 413, 422})
"""Of a batch; fewer facts may be taken, by whoever it was that refused these."""


class Verdict(enum.StrEnum):
    """What to do after one answer."""

    ACKNOWLEDGED = "acknowledged"
    SEND_AGAIN = "send_again"
    SEND_LESS = "send_less"
    REWIND = "rewind"
    RENEW = "renew"
    LEAVE_OUT = "leave_out"
    UNAUTHORIZED = "unauthorized"


ACTS: Final = {
    (403, "not_your_outbox"): Verdict.RENEW,  # this machine, or its state, is a copy of another's
    (409, "conflict"): Verdict.RENEW,
    (409, "sequence_gap"): Verdict.REWIND,
    (413, "body_too_large"): Verdict.LEAVE_OUT,
    (422, "malformed"): Verdict.LEAVE_OUT,
}
"""The refusals on which facts are moved or one is given up. On any other, a later controller's or
a proxy's, they are kept as they are and sent again."""


def verdict(status: int, body: bytes) -> Verdict:
    """What an answer to a batch asks for."""
    if status == _OK:
        return Verdict.ACKNOWLEDGED
    known = ACTS.get((status, controller_link.problem_code(body) or ""))
    if known is not None:
        return known
    if status in _UNAUTHORIZED:
        return Verdict.UNAUTHORIZED
    return Verdict.SEND_LESS if status in _TOO_MUCH else Verdict.SEND_AGAIN


def _is_refusal(status: int, what: Verdict) -> bool:
    """A refusal that nothing is done about, and that is no sign of a busy controller."""
    kept = what in {Verdict.SEND_AGAIN, Verdict.SEND_LESS}
    return kept and status not in _BUSY and _CLIENT_ERRORS[0] <= status < _CLIENT_ERRORS[1]


def backoff_s(failures: int, jitter: float) -> float:
    """Wait before the next try: doubling, capped, spread over the upper half by `jitter` (0..1)."""
    whole = min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2.0 ** min(failures, 16))
    return whole * (0.5 + jitter / 2)


class Deliverer:
    """One thread's work: send batches until it is told to stop."""

    def __init__(
        self,
        *,
        link: controller_link.Link,
        outbox_: outbox.Outbox,
        jitter: Callable[[], float],
        stop: threading.Event,
        keep: Callable[[facts.ChainHead], object] = lambda _: None,
    ) -> None:
        self._link = link
        self._outbox = outbox_
        self._jitter = jitter
        self._stop = stop
        self._keep = keep
        self._limit = base.BATCH_FACTS_MAX
        self._rewound = False

    def run(self) -> None:
        """Send what is pending, wait for more; failures wait longer each time."""
        failures = 0
        while not self._stop.is_set():
            self._outbox.appended.clear()
            more, failed = self.step()
            failures = failures + 1 if failed else 0
            if failed:
                self._stop.wait(backoff_s(failures, self._jitter()))
            elif not more:
                self._outbox.appended.wait(IDLE_S)

    def step(self) -> tuple[bool, bool]:
        """Send one batch. Returns whether there may be more at once, and whether it failed."""
        outbox_id, batch = self._outbox.pending(limit=self._limit)
        if not batch:
            return False, False
        message = facts.FactsBatch(node=self._link.node, outbox_id=outbox_id, facts=batch)
        try:
            answer = self._link.request(
                "POST", "/v1/agent/facts", timeout_s=TIMEOUT_S, body=base.encode(message)
            )
        except http1.HttpError as exc:
            self._link.failed(f"controller_{exc.code}", reachable=False)
            return True, True
        return self._act(answer, outbox_id, batch)

    def _act(
        self, answer: http1.Answer, outbox_id: str, batch: tuple[facts.Fact, ...]
    ) -> tuple[bool, bool]:
        what = verdict(answer.status, answer.body)
        if what is Verdict.ACKNOWLEDGED:
            return self._acknowledged(answer.body, outbox_id)
        self._link.failed(
            controller_link.problem_code(answer.body) or f"http_{answer.status}",
            reachable=True,
            refused=_is_refusal(answer.status, what),
        )
        match what:
            case Verdict.REWIND if not self._rewound and self._outbox.rewind():
                self._rewound = True
            case Verdict.REWIND | Verdict.RENEW:
                self._rewound = False
                self._outbox.renew()
            case Verdict.SEND_LESS | Verdict.LEAVE_OUT if len(batch) > 1:
                self._limit = max(1, len(batch) // 2)
            case Verdict.LEAVE_OUT:
                self._outbox.renew(without=batch[0].sequence)
            case _:
                pass  # kept, and sent again after a wait
        return True, True

    def _acknowledged(self, body: bytes, outbox_id: str) -> tuple[bool, bool]:
        try:
            acknowledgement = base.decode(body, facts.Acknowledgement)
        except base.MalformedError:
            self._link.failed("acknowledgement_malformed", reachable=False)
            return True, True
        self._outbox.acknowledge(outbox_id=outbox_id, through=acknowledgement.acknowledged_through)
        self._keep(acknowledgement.head)
        self._rewound = False
        self._limit = min(base.BATCH_FACTS_MAX, self._limit * 2)
        self._link.reached()
        return True, False
