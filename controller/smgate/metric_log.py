"""Owns the metrics of what stands beside the log: how far the next start has to fold from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from smgate.metric_families import Metric, counter, gauge


@dataclass(frozen=True, slots=True)
class Snapshots:
    """How the snapshots of the fold stand."""

    position: int
    """Where the newest is that this release goes on from; 0 if there is none."""
    failures: int
    """Times that this process could not keep one."""


def of_snapshots(snapshots: Snapshots) -> Iterator[Metric]:
    """Both, at 0 before there is any."""
    yield gauge(
        "smgate_snapshot_position",
        "Position of the newest snapshot that this release starts from; 0 if none.",
        snapshots.position,
    )
    yield counter(
        "smgate_snapshot_failures",
        "Snapshots that this process could not keep.",
        (),
        {(): snapshots.failures},
    )
