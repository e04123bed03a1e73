"""Owns reading one unit's history off the log: its records in order, without folding it anew."""

from __future__ import annotations

import collections
from typing import Any, Final

import msgspec

from smgate.domain import history, why
from smgate.log import archived, codec, port
from smgate.service import records
from smgate.views import shape

PAGE: Final = 5_000


def of_unit(store: archived.Log, scope: history.Scope, *, after: int, limit: int) -> dict[str, Any]:
    """The newest `limit` events about a unit behind a position, in log order.

    Most records are passed over undecoded: they are neither of the unit's nodes nor name it.
    """
    actors = {records.node_actor(node) for node in scope.nodes}
    # As they stand in the records: what the leader asks of a launch names the node, not the unit.
    named = [msgspec.json.encode(name)[1:-1] for name in (scope.unit, *sorted(scope.nodes))]
    kept: collections.deque[dict[str, Any]] = collections.deque(maxlen=limit)
    found, position = 0, after
    while page := store.read(after=position, limit=PAGE):
        for record in page:
            if record.actor not in actors and not any(name in record.data for name in named):
                continue
            recorded = codec.recorded(record)
            if scope.concerns(recorded):
                found += 1
                kept.append({**history.row(recorded), "type": record.type})
        position = page[-1].position
    return {
        "apiVersion": "v1",
        "unit": scope.unit,
        "items": list(kept),
        "left_out": found - len(kept),
        "position": position,
    }


LATE_MAX: Final = 200_000
"""Records looked through for what arrived late: a week of a large fleet at rest."""


def arrived_later(
    store: archived.Log, scope: history.Scope, *, after: int, by_us: int
) -> dict[str, Any]:
    """Facts about a unit that had happened by a moment and stand behind a position of the log.

    Args:
        store: the log.
        scope: read off the head, so that it knows launches reported since.
        after: the last position that was known.
        by_us: the moment; compared with the nodes' own clocks.
    """
    actors = {records.node_actor(node) for node in scope.nodes}
    kept: list[dict[str, Any]] = []
    position = after
    while position - after < LATE_MAX and (page := store.read(after=position, limit=PAGE)):
        for record in page:
            if record.occurred_at_us > by_us or record.actor not in actors:
                continue
            recorded = codec.recorded(record)
            if scope.concerns(recorded):
                happened = {"type": record.type, "happened": why.iso(record.occurred_at_us)}
                kept.append({**history.row(recorded), **happened})
        position = page[-1].position
    return {"arrived_later": kept, "arrived_later_looked_through": position}


OF_JOIN_TOKENS: Final = ("node_enrolled",)
"""What thousands of machines do with a token that a person made; shown when it is asked for."""


def rulings(
    store: archived.Log, *, by: str | None, kind: str | None, after: int, limit: int
) -> dict[str, Any]:
    """The newest `limit` rulings of people behind a position, in log order.

    Args:
        store: the log; people's rulings are many streams of it, and are found on the way through.
        by: only this person's.
        kind: only events of this type, such as `pin_set`.
        after: a position.
        limit: how many are shown.
    """
    actor = None if by is None else records.operator_actor(by)
    kept: collections.deque[port.StoredRecord] = collections.deque(maxlen=limit)
    found, position = 0, after
    while page := store.read(after=position, limit=PAGE):
        position = page[-1].position
        wanted = [
            record
            for record in page
            if records.of_people(record.stream)
            and actor in (None, record.actor)
            and (record.type not in OF_JOIN_TOKENS if kind is None else record.type == kind)
        ]
        found += len(wanted)
        kept.extend(wanted)
    return {
        "apiVersion": "v1",
        "items": [_ruling(record) for record in kept],
        "left_out": found - len(kept),
        "position": store.head().position,
    }


def _ruling(record: port.StoredRecord) -> dict[str, Any]:
    data = msgspec.json.decode(record.data)
    return {
        "position": record.position,
        "at": why.iso(record.recorded_at_us),
        "by": record.actor.partition(":")[2] or record.actor,
        "author": record.counter_actor and record.counter_actor.partition(":")[2],
        "type": record.type,
        "reason": data.get("reason"),
        "data": data,
    }


def event(record: port.StoredRecord) -> dict[str, Any]:
    """A record as the API gives it."""
    return {
        "position": record.position,
        "type": record.type,
        "schema_version": record.schema_version,
        "stream": record.stream,
        "version": record.version,
        "actor": record.actor,
        "counter_actor": record.counter_actor,
        "recorded_at": shape.iso(record.recorded_at_us),
        "occurred_at": _occurred(record.occurred_at_us),
        "leaf": record.leaf.hex(),
        "data": msgspec.json.decode(record.data) if record.data else None,
    }


def _occurred(at_us: int) -> str | None:
    """A node's clock may say anything; what no calendar has is left out."""
    try:
        return shape.iso(at_us)
    except OverflowError:
        return None
