"""What a server served between two readings of its `/metrics`: pure sums of counters.

Only where `bake_interval_s` is set, and only while the controller counts it. A counter that fell is
a server that started again: that interval is not known and is not reported.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from smgate.wire import facts

REQUESTS: Final = "sglang:num_requests_total"
FAILURES: Final = "sglang:num_aborted_requests_total"
TOKENS: Final = "sglang:generation_tokens_total"
_COUNTER_MAX: Final = float(1 << 53)


@dataclass(frozen=True, kw_only=True)
class Counters:
    """Sums over a server's label sets at one moment."""

    requests: float
    failures: float
    tokens: float


class Wanted:
    """Whose intervals the controller counts, by its last answer: each is a fact that is kept for ever.

    Where none has told, all are wanted. What was told holds while nobody answers: a bake begins with
    a decision, and that is told by a later answer. One thread tells, others ask.
    """

    def __init__(self) -> None:
        self._names: frozenset[str] | None = None

    def tell(self, header: str | None) -> None:
        """Take what an answer said (`Smgate-Baking`); None if it said nothing of it."""
        self._names = None if header is None else frozenset(header.replace(" ", "").split(","))

    def of(self, instance_id: str) -> bool:
        """True unless the controller said otherwise."""
        names = self._names
        return names is None or instance_id in names


def parse(text: str) -> Counters | None:
    """Read a Prometheus exposition; None if it does not count requests."""
    sums: dict[str, float] = {}
    for line in text.split("\n"):
        if not line.startswith("sglang:"):
            continue
        series, _, value = line.rpartition(" ")
        name = series.partition("{")[0]
        if name not in {REQUESTS, FAILURES, TOKENS}:
            continue
        try:
            number = float(value)
        except ValueError:
            return None
        if not math.isfinite(number) or not 0 <= number <= _COUNTER_MAX:
            return None
        sums[name] = sums.get(name, 0.0) + number
    if REQUESTS not in sums:
        return None
    # A counter with labels appears with its first increment: absent is none so far.
    return Counters(
        requests=sums[REQUESTS], failures=sums.get(FAILURES, 0.0), tokens=sums.get(TOKENS, 0.0)
    )


def interval(
    instance_id: str,
    before: Counters,
    after: Counters,
    *,
    elapsed_s: float,
    restarts: int,
    xids: int,
) -> facts.BakeInterval | None:
    """The interval between two readings; None if it is not one."""
    requests = after.requests - before.requests
    failures = after.failures - before.failures
    tokens = after.tokens - before.tokens
    if min(requests, failures, tokens) < 0 or elapsed_s < 1:
        return None
    return facts.BakeInterval(
        instance_id=instance_id,
        interval_s=round(elapsed_s),
        requests=round(requests),
        failures=round(failures),
        restarts=restarts,
        xids=xids,
        tokens_per_s=round(tokens / elapsed_s, 3),
    )


def is_idle(fact: facts.BakeInterval) -> bool:
    """Nothing was asked of the server, and nothing happened to it."""
    return not (fact.requests or fact.failures or fact.restarts or fact.xids or fact.tokens_per_s)
