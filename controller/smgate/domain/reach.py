"""What keeps a kernel key from ever being qualified as things stand: what no pool node has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from smgate.domain import keys, likeness, readings
from smgate.domain.state import Fleet
from smgate.domain.state_evidence import KeyEvidence
from smgate.domain.state_nodes import Node


def lacking(fleet: Fleet, evidence: KeyEvidence) -> list[dict[str, Any]]:
    """Fields of a key that nothing on the pool has, so that no check there can ever make it.

    Empty for a key that is not waiting for evidence, or that the pool has tested. A driver that a
    pool node did not report may be the right one; so it is not said to be missing.
    """
    tested = any(result.pool for result in evidence.sets.values())
    if evidence.standing != "unknown" or tested:
        return []
    pool = [n for n in fleet.nodes.values() if n.reported and n.reported.pool and not n.retired]
    of_sm = [node for node in pool if evidence.sm in _sms(fleet, node)]
    if not of_sm:
        has = {sm for node in pool for sm in _sms(fleet, node)}
        return [_lack("sm", evidence.sm, has, "Put a node of this SM into the pool.")]
    found = []
    branch = keys.driver_branch(evidence.build.driver_version) or "unknown"
    drivers = {_branch(node) for node in of_sm}
    if branch not in drivers and "unknown" not in drivers:
        found.append(
            _lack("driver_branch", branch, drivers, "Install this driver branch on a pool node.")
        )
    layout, seen = _layout(evidence), set(_layouts(fleet, {node.name for node in of_sm}))
    if layout not in seen:
        found.append(
            _lack("layout", layout, seen, "Start this layout behind the launch gate on the pool.")
        )
    return found


def nearest(fleet: Fleet, evidence: KeyEvidence) -> dict[str, Any] | None:
    """The nearest qualified key and the fields that differ; None for a key that is qualified."""
    other = likeness.nearest_qualified(fleet, evidence)
    if other is None or evidence.standing == "qualified":
        return None
    differs = likeness.differences(evidence, other)
    return {
        "kernel_key": other.key,
        "differs": {name: {"this": mine, "that": its} for name, (mine, its) in differs.items()},
        "may_be_accepted": evidence.standing == "unknown"
        and other.accepted_like is None
        and set(differs) <= set(likeness.MAY_DIFFER),
    }


def _lack(field: str, needed: str, has: Iterable[str], step: str) -> dict[str, Any]:
    shown = sorted(has)
    return {
        "field": field,
        "needed": needed,
        "pool_has": shown,
        "sentence": f"No pool node has {field} {needed}; the pool has {', '.join(shown) or 'none'}.",
        "next_step": step,
    }


def _sms(fleet: Fleet, node: Node) -> set[str]:
    assert node.reported is not None
    known = (gpu.sm or fleet.sm_of(gpu.uuid) for gpu in node.reported.gpus)
    return {sm for sm in known if sm is not None}


def _branch(node: Node) -> str:
    assert node.reported is not None
    return keys.driver_branch(node.reported.driver_version) or "unknown"


def _layout(evidence: KeyEvidence) -> str:
    shape = keys.layout_class(evidence.layout, evidence.a2a)
    return ", ".join(f"{name} {value}" for name, value in sorted(shape.items()))


def _layouts(fleet: Fleet, names: set[str]) -> Iterator[str]:
    """Layouts that were launched or tested on these nodes, whatever their build."""
    launched = {
        readings.rank_key(fleet, rank)
        for unit in fleet.units.values()
        for rank in unit.known_ranks.values()
        if rank.node in names
    }
    for key, evidence in fleet.keys.items():
        tested = any(result.node in names for result in evidence.sets.values())
        if key in launched or tested:
            yield _layout(evidence)
