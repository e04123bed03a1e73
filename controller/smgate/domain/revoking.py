"""Taking back what a rollout granted: which grants those are, and what is left when they are gone.

It narrows, and says nothing bad of a kernel or a GPU: no bad sign, no halt. What the GPUs remember
keeps every rollout from offering the same kernel key there again, until two people clear it. A server
that runs stays as it is until it starts again.
"""

from __future__ import annotations

from smgate.domain.events import Recorded
from smgate.domain.revocation import GrantRevoked
from smgate.domain.state import TAKEN_BACK_HERE, Fleet, Grant, Unit
from smgate.domain.state_rollouts import Rollout


def grants(rollout: Rollout, unit: Unit) -> list[Grant]:
    """What a rollout gave this unit: in a wave, or by standing once it had completed."""
    return [
        grant
        for grant in unit.grants
        if grant.rollout == rollout.plan.id or _stands_by(rollout, grant)
    ]


def _stands_by(rollout: Rollout, grant: Grant) -> bool:
    ran = set(grant.kernel_keys) <= set(rollout.completed_keys)
    return (
        grant.standing
        and rollout.phase == "completed"
        and (ran or rollout.plan.on_new_build == "trust_pool")
    )


def gpus(unit: Unit) -> set[str]:
    """The GPUs of a unit, by its launch and its last readings."""
    return {uuid for rank in unit.ranks.values() for uuid in rank.gpu_uuids}


def take(fleet: Fleet, recorded: Recorded, event: GrantRevoked) -> None:
    """Fold: the grants are gone, and nothing offers their kernel keys on these GPUs again."""
    rollout = fleet.rollouts[event.rollout]
    for name in event.units:
        unit = fleet.units[name]
        for grant in grants(rollout, unit):
            unit.drop_grant(grant.kernel_keys)
            for uuid in gpus(unit):
                for key in grant.kernel_keys:
                    fleet.remember(uuid, key, TAKEN_BACK_HERE, recorded.position)
        for wave in rollout.watched:
            if name in wave.members:
                wave.revoked.add(name)
