"""What a server served between two readings of its `/metrics`: pure sums of counters.

Only in a bake, so only where an instance declares `bake_interval_s`. A counter that fell is a
server that started again: that interval is not known and is not reported.
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
