"""The closed union of all events, and an event with its place in the log.

Past tense, frozen, keyword-only. The stored name of each is a literal in `smgate.log.codec`.
Durations are in seconds, instants in microseconds since the Unix epoch by the log's own clock.
"""

from __future__ import annotations

from typing import NamedTuple

from smgate.domain.decisions import Decision
from smgate.domain.facts import Fact
from smgate.domain.redaction import Erased
from smgate.domain.rulings import Ruling

Event = Fact | Ruling | Decision | Erased


class Recorded(NamedTuple):
    """One event with its place in the log. `actor` is `node:NAME`, `operator:NAME` or `controller`.

    A named tuple, as a fold makes one for each event: a frozen class takes five times as long.
    """

    position: int
    at_us: int
    occurred_at_us: int
    stream: str
    version: int
    actor: str
    event: Event
