"""Owns trying another policy on the log: two folds to a moment, and the rest read beside both."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from smgate.domain import policy as policies, whatif
from smgate.domain.events import Recorded
from smgate.log import archived, codec, port
from smgate.service import fold, refusal

PAGE: Final = 1_000
EVENTS_MAX: Final = 200_000
"""Events decided anew at most in one request: minutes of work."""


def try_policy(
    store: port.Store, past: archived.ArchivedLog, policy: policies.Policy, *, since: int
) -> dict[str, Any]:
    """What another policy would have decided behind a position. Appends nothing.

    Raises:
        RefusedError: `too_much`.
        RejectedError: the policy is not valid.
    """
    policies.validate_policy(policy)
    head = store.head()
    if head.position - since > EVENTS_MAX:
        raise refusal.RefusedError(
            422,
            "too_much",
            f"{head.position - since} events happened since, at most {EVENTS_MAX} are looked at.",
            next_step="Give a later --since.",
        )
    then, would = (fold.fleet_at(store, since, past=past) for _ in range(2))
    rest = _rest(past, since, head.position)
    shown = whatif.compare(then, would, rest, other=policy, until_us=head.recorded_at_us)
    return {"apiVersion": "v1", "as_of_position": head.position, **shown}


def _rest(store: archived.Log, after: int, through: int) -> Iterator[Recorded]:
    while after < through and (page := store.read(after=after, limit=PAGE)):
        for record in page:
            if record.position <= through:
                yield codec.recorded(record)
        after = page[-1].position
