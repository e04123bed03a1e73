"""The talk with the controller about one launch: report it, wait for its decision, say what was done.

Silence ends it after a few seconds. Once the controller has answered, it may take until the gate's
deadline, because it waits for the unit's other ranks.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from smgate_agent.launch import link, shapes, state

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Json = dict[str, Any]

SILENCE_S = 6.0
HOLD_S = 20
PAUSES_S = (0.2, 0.5, 1.0, 2.0)
FACTS_S = 1.0


class NoDecisionError(Exception):
    """No usable decision came; `code` says why."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


@dataclass
class Conversation:
    """One launch's talk. `held` is the directive to beat: an older one is not believed."""

    endpoints: Sequence[link.Endpoint]
    identity: state.Identity
    launch: Json
    held: Json | None
    until: float
    answered: bool = False
    _facts: list[Json] = field(default_factory=list)
    _attempts: int = 0

    def report(self) -> Json:
        """Report the launch; the answer may already carry the decision.

        Raises:
            NoDecisionError: nobody usable answered.
        """
        body = {
            "wire_version": shapes.WIRE_VERSION,
            "node": self.identity.node,
            "occurred_at_us": _now_us(),
            "launch": self.launch,
        }
        return self._answer("POST", "/v1/agent/launch", body, hold_s=0)

    def decision(self, answer: Json) -> tuple[Json, Json, Json]:
        """Wait for a directive that speaks of this launch: (unit entry, directive, signed form).

        Raises:
            NoDecisionError: the time is up, or what came cannot be believed.
        """
        while True:
            if answer["directive"] is not None:
                found = self._mine(answer["directive"])
                if found is not None:
                    return found
            left = self.until - time.monotonic()
            if left <= 1:
                raise NoDecisionError("deadline")
            hold_s = max(1, min(HOLD_S, int(left - 1)))
            began = time.monotonic()
            path = f"/v1/agent/launch/{self.launch['launch_id']}?wait={hold_s}"
            answer = self._answer("GET", path, None, hold_s=hold_s)
            if time.monotonic() - began < 1:  # it did not hold the request: do not hammer it
                time.sleep(min(float(answer["retry_after_s"]), 2.0))

    def _mine(self, signed: Json) -> tuple[Json, Json, Json] | None:
        try:
            directive = state.verified(signed, self.identity)
        except shapes.MalformedError as exc:
            raise NoDecisionError(str(exc)) from exc
        if state.is_older(directive, self.held):
            raise NoDecisionError("directive_stale")
        for entry in directive["units"]:
            if self.launch["launch_id"] in entry["launch_ids"]:
                return entry, directive, signed
        return None

    def add_fact(self, payload: Json) -> None:
        """Queue a fact behind the launch, which is sequence 1 of its own outbox."""
        self._facts.append(
            {"sequence": 2 + len(self._facts), "occurred_at_us": _now_us(), "payload": payload}
        )

    def send_facts(self, *, timeout_s: float = FACTS_S) -> None:
        """Send all queued facts once. Repeats are harmless and so is loss."""
        if not self._facts or not self.answered:
            return
        body = {
            "wire_version": shapes.WIRE_VERSION,
            "node": self.identity.node,
            "outbox_id": self.launch["launch_id"],
            "facts": self._facts,
        }
        try:
            link.exchange(self._endpoint(), "POST", "/v1/agent/facts", body, timeout_s=timeout_s)
        except link.ExchangeError:
            return

    def _answer(self, method: str, path: str, body: Json | None, *, hold_s: int) -> Json:
        content = self._patiently(
            lambda timeout_s: link.exchange(
                self._endpoint(), method, path, body, timeout_s=hold_s + timeout_s
            )
        )
        try:
            answer = shapes.launch_answer(content)
        except shapes.MalformedError as exc:
            raise NoDecisionError("answer_malformed") from exc
        self.answered = True
        return answer

    def _patiently(self, attempt: Callable[[float], bytes]) -> bytes:
        """Try until `SILENCE_S` have passed since the last failure-free moment."""
        silent_until = min(self.until, time.monotonic() + SILENCE_S)
        for turn in range(1_000):
            left = silent_until - time.monotonic()
            try:
                return attempt(max(0.1, left))
            except link.ExchangeError as exc:
                pause = PAUSES_S[min(turn, len(PAUSES_S) - 1)]
                self._attempts += 1
                another = turn + 1 < len(self.endpoints)
                if not (exc.retry or another) or time.monotonic() + pause >= silent_until:
                    raise NoDecisionError(exc.code) from exc
                time.sleep(pause)
        raise NoDecisionError("deadline")

    def _endpoint(self) -> link.Endpoint:
        """The agent's socket and the controller in turn: one that fails is not asked again next."""
        return self.endpoints[self._attempts % len(self.endpoints)]


def _now_us() -> int:
    """The sender's clock: shown to people, never decided on."""
    return time.time_ns() // 1_000
