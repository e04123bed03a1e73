"""Silence: heartbeats are not facts, so the leader turns their absence into events."""

from __future__ import annotations

from collections.abc import Mapping

from smgate.domain import decisions, rulings
from smgate.domain.events import Event
from smgate.domain.state import Fleet
from smgate.domain.state_nodes import Node
from smgate.domain.waits import SECOND_US

EPHEMERAL_GONE_S = 86_400
"""An autoscaled machine that was not heard for this long does not come back."""


def _gone(node: Node, silence_us: int) -> bool:
    ephemeral = node.reported is not None and node.reported.ephemeral
    return ephemeral and silence_us >= EPHEMERAL_GONE_S * SECOND_US


def last_contact_us(node: Node, contacts: Mapping[str, int]) -> int:
    """The newest sign of life: a heartbeat or a fact; the start of leadership at the earliest."""
    return max(node.last_contact_us, contacts.get(node.name, 0))


def sense(fleet: Fleet, *, contacts: Mapping[str, int], now_us: int) -> tuple[Event, ...]:
    """Nodes that went silent or returned.

    Args:
        fleet: the folded log.
        contacts: last heartbeat per node, microseconds by the log's clock.
        now_us: the leader's time.
    """
    found: list[Event] = []
    limit_us = fleet.policy.silent_after_s * SECOND_US
    for name in sorted(fleet.nodes):
        node = fleet.nodes[name]
        if node.retired:
            continue
        last = last_contact_us(node, contacts)
        silent = now_us - last >= limit_us
        if _gone(node, now_us - last):
            found.append(rulings.NodeRetired(node=name, reason="Ephemeral, and silent for a day."))
            continue
        if silent and not node.silent:
            found.append(decisions.NodeWentSilent(node=name, last_contact_us=last))
        elif not silent and node.silent:
            found.append(decisions.NodeReturned(node=name))
    return tuple(found)
