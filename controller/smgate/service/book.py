"""Owns what each node is to be told: its units' overrides and the modes, as the log has them.

A small fold beside the fleet's. A node's content changes only together with its generation, so two
directives of one generation never differ.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from smgate.domain import decisions, rulings
from smgate.domain.events import Recorded
from smgate.domain.state import Fleet
from smgate.domain.values import Mode

EVERY_NODE: Final = "*"
"""The topic of a change that concerns all nodes."""


_TOLD: Final = frozenset(
    {
        decisions.OverrideSet,
        decisions.DrainOrdered,
        decisions.DrainFinished,
        decisions.DrainFailed,
        decisions.SelfTestWanted,
        rulings.GateModeSet,
        rulings.GatePublished,
    }
)
"""All other events, which is nearly all there are, concern nobody who waits."""


def node_topic(node: str) -> str:
    """What a waiting node listens to."""
    return f"node/{node}"


def launch_topic(launch_id: str) -> str:
    """What a waiting launch gate listens to."""
    return f"launch/{launch_id}"


@dataclass(slots=True)
class Page:
    """One node's page: the decisions for its units, each with its position."""

    generation: int = 0
    units: dict[str, tuple[decisions.OverrideSet, int]] = field(default_factory=dict)
    drains: dict[str, tuple[decisions.DrainOrdered, int]] = field(default_factory=dict)


@dataclass(slots=True)
class Book:
    """Pages of all nodes. Written by one fold; a generation may be read without its lock."""

    pages: dict[str, Page] = field(default_factory=dict)
    unit_nodes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    drain_nodes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    modes_position: int = 0
    modes: dict[str, Mode] = field(default_factory=dict)

    def generation(self, node: str) -> int:
        """Highest position among the events that made this node's content."""
        page = self.pages.get(node)
        return max(self.modes_position, 0 if page is None else page.generation)

    def units(self, node: str) -> dict[str, tuple[decisions.OverrideSet, int]]:
        """The node's units with their decisions."""
        page = self.pages.get(node)
        return {} if page is None else page.units

    def drains(self, node: str) -> dict[str, tuple[decisions.DrainOrdered, int]]:
        """The node's units that are ordered to restart onto the safe value."""
        page = self.pages.get(node)
        return {} if page is None else page.drains

    def take(self, fleet: Fleet, recorded: Recorded) -> set[str]:
        """Take in one event that `fleet` already holds; the topics whose listeners it concerns."""
        event = recorded.event
        if type(event) not in _TOLD:
            return set()
        if isinstance(event, decisions.OverrideSet):
            return self._override(fleet, event, recorded.position)
        if isinstance(event, decisions.DrainOrdered):
            return self._order(event, recorded.position)
        if isinstance(event, decisions.DrainFinished | decisions.DrainFailed):
            return self._end_order(event.unit, recorded.position)
        if isinstance(event, decisions.SelfTestWanted):
            return {launch_topic(event.launch_id)}
        self.modes_position = recorded.position
        self.modes = _modes(fleet)
        return {EVERY_NODE}

    def _override(self, fleet: Fleet, event: decisions.OverrideSet, position: int) -> set[str]:
        topics = {launch_topic(launch_id) for launch_id in event.launch_ids}
        for node in sorted({*event.nodes, *self.unit_nodes.get(event.unit, ())}):
            page = self.pages.setdefault(node, Page())
            page.generation = position
            page.units = {
                unit: kept
                for unit, kept in page.units.items()
                if unit != event.unit and fleet.units[unit].live
            }
            if node in event.nodes:
                page.units[event.unit] = (event, position)
            topics.add(node_topic(node))
        self.unit_nodes[event.unit] = event.nodes
        return topics

    def _order(self, event: decisions.DrainOrdered, position: int) -> set[str]:
        for node in event.nodes:
            page = self.pages.setdefault(node, Page())
            page.generation = position
            page.drains[event.unit] = (event, position)
        self.drain_nodes[event.unit] = event.nodes
        return {node_topic(node) for node in event.nodes}

    def _end_order(self, unit: str, position: int) -> set[str]:
        nodes = self.drain_nodes.pop(unit, ())
        for node in nodes:
            page = self.pages[node]
            page.generation = position
            del page.drains[unit]
        return {node_topic(node) for node in nodes}


def _modes(fleet: Fleet) -> dict[str, Mode]:
    """Mode per SM: enforce only if every gate that names the SM says so."""
    modes: dict[str, Mode] = {}
    for name in sorted(fleet.gates):
        gate = fleet.gates[name]
        named = {sm for gate_id, sm in fleet.modes if gate_id == name}
        for sm in sorted({*gate.baseline_sms, *gate.candidate_sms, *named}):
            mode = fleet.mode_of(name, sm)
            modes[sm] = mode if modes.get(sm, mode) == mode else "observe"
    return modes
