"""Machines and the servers on them, folded."""

from __future__ import annotations

from dataclasses import dataclass, field

from smgate.domain.facts import NodeReported
from smgate.domain.state_evidence import GpuSet
from smgate.domain.values import Pair


@dataclass(slots=True, kw_only=True)
class Node:
    """One enrolled machine."""

    name: str
    position: int
    reported: NodeReported | None = None
    machine_id: str | None = None
    silent: bool = False
    last_contact_us: int = 0
    gaps: set[str] = field(default_factory=set)
    outboxes: tuple[str, ...] = ()
    """What its agent sent from, the present one last (`clones`)."""
    returned_led_us: int | None = None
    """When it last went back to an outbox that it had left."""
    retired: bool = False


@dataclass(slots=True, kw_only=True)
class Instance:
    """One running server process tree on one node."""

    node: str
    id: str
    unit: str
    state: str
    position: int
    node_rank: int = 0
    launch_id: str | None = None
    gpu_uuids: GpuSet = ()
    restarts: int = 0
    served: bool = False
    failed: bool = False
    """It ended, and not because somebody stopped it."""
    unhealthy_led_us: int | None = None
    """Since when it does not answer as a healthy server does."""
    effective: Pair | None = None
    architecture: str | None = None
    mxfp4: bool | None = None
    sglang_version: str | None = None
    weight_bytes: int | None = None
    fallback: str | None = None
    fallback_excess_bytes: int = 0
    fallback_position: int = 0
    tokens_per_s: float = 0.0

    @property
    def live(self) -> bool:
        """False once it exited."""
        return self.state != "exited"
