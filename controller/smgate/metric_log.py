"""Owns the metrics of what stands beside the log: where the next start begins, and who has seen more."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from smgate.metric_families import Metric, counter, gauge


@dataclass(frozen=True, slots=True)
class Beside:
    """How what stands beside the log compares with it."""

    position: int
    """Where the newest is that this release goes on from; 0 if there is none."""
    failures: int
    """Times that this process could not keep one."""
    nodes_ahead: int
    """Nodes that hold more of this log than it has."""


def of_log(beside: Beside) -> Iterator[Metric]:
    """All of it, at 0 before there is any."""
    yield gauge(
        "smgate_snapshot_position",
        "Position of the newest snapshot that this release starts from; 0 if none.",
        beside.position,
    )
    yield counter(
        "smgate_snapshot_failures",
        "Snapshots that this process could not keep.",
        (),
        {(): beside.failures},
    )
    yield gauge(
        "smgate_nodes_ahead_of_log",
        "Nodes that told this process of more than the log has: it lost its end.",
        beside.nodes_ahead,
    )
