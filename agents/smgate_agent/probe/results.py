"""The one shape of a check's result."""

from __future__ import annotations

from typing import Any

Numbers = dict[str, float]
REASON_CHARACTERS_MAX = 80


def result(
    outcome: str, reason: str, numbers: Numbers | None = None, *, control: str = "not_run"
) -> dict[str, Any]:
    """Outcome, stable reason, numbers, and what the negative control did: caught, missed, not_run."""
    return {
        "outcome": outcome,
        "reason": reason[:REASON_CHARACTERS_MAX].lower(),
        "numbers": numbers or {},
        "negative_control": control,
    }
