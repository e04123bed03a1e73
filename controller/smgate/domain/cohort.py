"""Which units go first: a salted hash per rollout, so that no unit is everybody's canary.

The order is published as vectors in `tests/golden/cohort.json`; changing it is a breaking change.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable

from smgate.domain import policy


def cohort_hash(salt: str, unit: str) -> int:
    """A unit's place in a rollout: first 8 bytes of SHA-256("salt/unit"), big-endian."""
    return int.from_bytes(hashlib.sha256(f"{salt}/{unit}".encode()).digest()[:8], "big")


def in_cohort_order(salt: str, units: Iterable[str]) -> list[str]:
    """Units in the order the rollout takes them. Independent of the order given."""
    return sorted(units, key=lambda unit: (cohort_hash(salt, unit), unit))


def wave_size(wave: policy.Wave, eligible: int) -> int:
    """Cumulative number of units that a wave brings the rollout to, at least one if any is left."""
    if wave.count is not None:
        return min(wave.count, eligible)
    assert wave.percent is not None, "validated when the plan was proposed"
    return min(eligible, math.ceil(policy.share(wave.percent, eligible)))
