"""The stable names a launch can have: given with `--unit`, its workload's, or its rendezvous."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from smgate_agent.launch import shapes

if TYPE_CHECKING:
    from collections.abc import Mapping

RENDEZVOUS = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._-]*:[0-9]{1,5}|[0-9a-fA-F:.]*[0-9a-fA-F]:[0-9]{1,5}"
)
WORKLOADS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("lws", ("LWS_LEADER_ADDRESS",)),
    ("rbg", ("RBG_LWP_LEADER_ADDRESS",)),
    ("rbg", ("RBG_GROUP_NAME", "RBG_ROLE_NAME", "RBG_ROLE_INDEX")),
    ("slurm", ("SLURM_JOB_ID", "SLURM_STEP_ID")),
)
"""Kind of workload, and the variables that name its group: the same on every rank of a unit."""


def workload(environ: Mapping[str, str]) -> str | None:
    """The workload's name from the variables its controller injects into every rank."""
    for kind, names in WORKLOADS:
        values = [environ.get(name, "") for name in names]
        if all(values):
            return shapes.kept(shapes.NAME, f"{kind}:{'.'.join(values)}")
    return None


def rendezvous(address: str | None) -> str | None:
    """The rendezvous host and port, without scheme and brackets; None if it is neither."""
    if address is None:
        return None
    text = address.removeprefix("tcp://").replace("[", "").replace("]", "")
    if not RENDEZVOUS.fullmatch(text):
        return None
    return shapes.kept(shapes.NAME, text)
