"""Silence: heartbeats are not facts, so the leader turns their absence into events.

A node that falls silent is one event. Most of the fleet falling silent at once is one event too: then
the network is looked at, or the controller's own, and not three thousand nodes.
"""

from __future__ import annotations

from collections.abc import Mapping

from smgate.domain import decisions, policy, rulings
from smgate.domain.events import Event
from smgate.domain.state import Fleet
from smgate.domain.state_nodes import Node
from smgate.domain.waits import SECOND_US

EPHEMERAL_GONE_S = 86_400
"""An autoscaled machine that was not heard for this long does not come back."""

OUTAGE_NODES_MIN = 5
"""Fewer nodes at once are nodes, not a fleet."""


def last_contact_us(node: Node, contacts: Mapping[str, int]) -> int:
    """The newest sign of life: a heartbeat or a fact; the start of leadership at the earliest."""
    return max(node.last_contact_us, contacts.get(node.name, 0))


def outage_min(known: int, given: policy.Policy) -> int:
    """How many of so many nodes must be out of reach at once to call it an outage of the fleet."""
    share = policy.share(given.outage_percent, of=known)
    return max(OUTAGE_NODES_MIN, -(-share.numerator // share.denominator))


def _gone(fleet: Fleet, node: Node, silence_us: int) -> bool:
    """True of an ephemeral machine long silent by itself: in an outage of the fleet nobody is."""
    ephemeral = node.reported is not None and node.reported.ephemeral
    alone = node.name not in fleet.inventory.unreachable
    return ephemeral and alone and silence_us >= EPHEMERAL_GONE_S * SECOND_US


def sense(fleet: Fleet, *, contacts: Mapping[str, int], now_us: int) -> tuple[Event, ...]:
    """Nodes that went silent or returned, one by one or together.

    Args:
        fleet: the folded log.
        contacts: last heartbeat per node, microseconds by the log's clock.
        now_us: the leader's time.
    """
    found: list[Event] = []
    limit_us = fleet.policy.silent_after_s * SECOND_US
    quiet: dict[str, int] = {}
    late: list[str] = []
    back: list[str] = []
    heard = 0
    for name in sorted(fleet.nodes):
        node = fleet.nodes[name]
        if node.retired:
            continue
        last_us = last_contact_us(node, contacts)
        # Nodes lost at one moment come to their limit one after another, within a long-poll's length.
        is_quiet = now_us - last_us >= limit_us / 2
        if _gone(fleet, node, now_us - last_us):
            found.append(rulings.NodeRetired(node=name, reason="Ephemeral, and silent for a day."))
        elif node.silent:
            if not is_quiet:
                back.append(name)
        else:
            heard += 1
            if is_quiet:
                quiet[name] = last_us
            if now_us - last_us >= limit_us:
                late.append(name)
    if late and len(quiet) >= outage_min(heard, fleet.policy):
        found.append(decisions.FleetUnreachable(nodes=tuple(quiet), known_nodes=heard))
    else:
        found.extend(decisions.NodeWentSilent(node=n, last_contact_us=quiet[n]) for n in late)
    found.extend(_returned(fleet, back))
    return tuple(found)


def _returned(fleet: Fleet, names: list[str]) -> list[Event]:
    """Nodes in contact again; of those that an outage took, all of one look together."""
    together = tuple(name for name in names if name in fleet.inventory.unreachable)
    found: list[Event] = [
        decisions.NodeReturned(node=name)
        for name in names
        if name not in fleet.inventory.unreachable
    ]
    if together:
        left = len(fleet.inventory.unreachable) - len(together)
        found.append(decisions.FleetReachable(nodes=together, unreachable_nodes=left))
    return found
