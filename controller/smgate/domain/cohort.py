"""Which units go first: a salted hash per rollout, so that no unit is everybody's canary.

The order is published as vectors in `tests/golden/cohort.json`; changing it is a breaking change.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from smgate.domain import policy


def cohort_hash(salt: str, unit: str) -> int:
    """A unit's place in a rollout: first 8 bytes of SHA-256("salt/unit"), big-endian."""
    return int.from_bytes(hashlib.sha256(f"{salt}/{unit}".encode()).digest()[:8], "big")


def in_cohort_order(salt: str, units: Iterable[str]) -> list[str]:
    """Units in the order the rollout takes them. Independent of the order given."""
    return sorted(units, key=lambda unit: (cohort_hash(salt, unit), unit))


def spread(order: Sequence[str], domains: Mapping[str, Iterable[str]]) -> list[str]:
    """The same units, so that any beginning of the list is of as many domains as can be.

    One of each failure domain, then a second of each, and so on; within a round as they came. A
    unit that stands in several domains comes in the round of the fullest of them.
    """
    used: Counter[str] = Counter()
    rounds: dict[str, int] = {}
    for unit in order:
        number = rounds[unit] = max(used[domain] for domain in domains[unit])
        used.update({domain: number + 1 - used[domain] for domain in domains[unit]})
    return sorted(order, key=rounds.__getitem__)


def next_members(
    wave: policy.Wave, fresh: Sequence[str], *, taken: Collection[str], weights: Mapping[str, int]
) -> tuple[str, ...]:
    """By whom a wave widens a rollout that has taken these, at least one if any is needed.

    Waves are cumulative. A count is of units; a share is of their weights: of the GPUs they hold.
    """
    if wave.count is not None:
        return tuple(fresh[: max(0, wave.count - len(taken))])
    assert wave.percent is not None, "validated when the plan was proposed"
    reached = sum(weights[unit] for unit in taken)
    total = reached + sum(weights[unit] for unit in fresh)
    wanted = math.ceil(policy.share(wave.percent, total))
    found: list[str] = []
    for unit in fresh:
        if reached >= wanted:
            break
        found.append(unit)
        reached += weights[unit]
    return tuple(found)
