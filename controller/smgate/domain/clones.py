"""Two machines that report as one node: a copy was started with its identity.

An agent that goes on with a new outbox sends from the old one nothing more. A node that goes back to an
outbox it had left was put back to an earlier state, once; one that does so again has two agents that
take turns. What is known of it is then a mixture of two machines.
"""

from __future__ import annotations

from typing import Final

from smgate.domain.events import Recorded
from smgate.domain.state import Fleet
from smgate.domain.state_nodes import Node

WINDOW_US: Final = 7 * 86_400 * 1_000_000
"""Two returns this close are a clone, and this long without one it is over. An agent at rest says little."""
OUTBOXES_KEPT: Final = 8
"""More than two copies take turns among more outboxes."""


def note(fleet: Fleet, node: Node, recorded: Recorded) -> None:
    """Take one fact of the resident agent."""
    cloned = fleet.inventory.cloned
    if node.outboxes and node.outboxes[-1] == recorded.stream:
        if node.name in cloned and fleet.led_us(recorded.at_us) - cloned[node.name] > WINDOW_US:
            del cloned[node.name]
        return
    if recorded.stream in node.outboxes:
        now_us = fleet.led_us(recorded.at_us)
        before_us, node.returned_led_us = node.returned_led_us, now_us
        if before_us is not None and now_us - before_us <= WINDOW_US:
            cloned[node.name] = now_us
    others = [one for one in node.outboxes if one != recorded.stream]
    node.outboxes = (*others[1 - OUTBOXES_KEPT :], recorded.stream)


def forget(fleet: Fleet, node: Node) -> None:
    """The node is enrolled anew or retired: the credential that a copy has counts no more."""
    fleet.inventory.cloned.pop(node.name, None)
    node.outboxes, node.returned_led_us = (), None
