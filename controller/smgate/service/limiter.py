"""Owns how many requests each caller may make."""

from __future__ import annotations

from typing import Final

import limits
import limits.storage
import limits.strategies

from smgate.service import credentials, refusal


class Limiter:
    """Counts requests per token, and per address where there is no valid token."""

    def __init__(self, *, node: int, operator: int, unknown: int) -> None:
        self._strategy: Final = limits.strategies.FixedWindowRateLimiter(
            limits.storage.MemoryStorage()
        )
        self._node: Final = limits.RateLimitItemPerMinute(node)
        self._operator: Final = limits.RateLimitItemPerMinute(operator)
        self._unknown: Final = limits.RateLimitItemPerMinute(unknown)

    def admit(self, who: credentials.Credential) -> None:
        """Count one request of a token.

        Raises:
            RefusedError: `too_many_requests`.
        """
        item = self._node if who.kind == "node" else self._operator
        self._hit(item, who.id)

    def admit_unknown(self, address: str) -> None:
        """Count one request without a valid token.

        Raises:
            RefusedError: `too_many_requests`.
        """
        self._hit(self._unknown, f"address/{address}")

    def _hit(self, item: limits.RateLimitItem, key: str) -> None:
        if not self._strategy.hit(item, key):
            raise refusal.RefusedError(
                429,
                "too_many_requests",
                f"More than {item.amount} requests a minute.",
                next_step="Wait a minute, and send more facts in one batch.",
                retry_after_s=30,
            )
