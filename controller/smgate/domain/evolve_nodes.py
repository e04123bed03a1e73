"""Fold of who reports: the node that a fact is from."""

from __future__ import annotations

from smgate.domain import clones
from smgate.domain.events import Recorded
from smgate.domain.state import Fleet
from smgate.domain.state_nodes import Node


def node_of(fleet: Fleet, recorded: Recorded) -> Node:
    """The node that sent a fact; created on first sight."""
    name = recorded.actor.removeprefix("node:")
    node = fleet.nodes.get(name)
    if node is None:
        node = fleet.nodes[name] = Node(name=name, position=recorded.position)
        fleet.inventory.without_agent.pop(name, None)
    node.last_contact_us = max(node.last_contact_us, recorded.at_us)
    return node


def reporter(fleet: Fleet, recorded: Recorded) -> Node:
    """The node whose resident agent sent a fact. The launch gate's facts have an outbox per launch."""
    node = node_of(fleet, recorded)
    clones.note(fleet, node, recorded)
    return node
