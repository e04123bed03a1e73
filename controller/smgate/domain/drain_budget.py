"""How many units of an SM may be down for a restart onto the safe value, and what stands before one."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Literal

from smgate.domain import census, exposure, readings
from smgate.domain.state import Fleet, Unit
from smgate.domain.state_counts import Kinds

NAMES_SHOWN: Final = 3


def restarter(unit: Unit) -> str:
    """Who restarts the unit: what its first rank's launch says."""
    assert unit.launch is not None
    return unit.launch.ranks[min(unit.launch.ranks)].planned.restarter


def silent_nodes(fleet: Fleet, unit: Unit) -> list[str]:
    """Nodes of the unit that were not heard for too long: they cannot be told anything."""
    nodes = unit.override.nodes if unit.override is not None else ()
    return [name for name in nodes if name in fleet.nodes and fleet.nodes[name].silent]


def serves(fleet: Fleet, unit: Unit) -> bool:
    """True if the unit is known to serve: every server of its launch that is known, and one of rank 0.

    What is not known to serve counts as down: a silent node, a launch whose server is not up yet.
    """
    launch = unit.launch
    current = [
        instance
        for instance in unit.instances.values()
        if (instance.launch_id in launch.launch_ids if launch is not None else instance.live)
    ]
    if any(fleet.nodes[i.node].silent for i in current if i.node in fleet.nodes):
        return False
    return any(i.node_rank == 0 for i in current) and all(i.state == "serving" for i in current)


def serves_safely(fleet: Fleet, unit: Unit) -> bool:
    """True if it serves, and every rank attested the safe value it was told."""
    return is_safe(fleet, unit) and serves(fleet, unit)


def is_safe(fleet: Fleet, unit: Unit) -> bool:
    """True if every rank of the unit attested the safe value that is decided for it."""
    if unit.launch is None or not exposure.is_safe_value(fleet, unit.override):
        return False
    assert unit.override is not None
    live = unit.live_instances()
    attested = {i.node_rank for i in live if i.effective is not None}
    return len(attested) >= unit.launch.nnodes and all(
        i.effective is not None and i.effective.runner == unit.override.value for i in live
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stands:
    """What stands before the order for a unit that needs one, and who can change it."""

    code: Literal["declined", "external", "silent", "budget"]
    owner: str
    sentence: str
    next_step: str


@dataclass(slots=True, kw_only=True)
class Budget:
    """How many units of one SM may be down: what counts, and what is left of it."""

    sm: str
    live: int
    down: set[str]
    """Units that are not known to serve, whoever took them down."""
    ordered: set[str]
    """Units with an order of ours, one that failed among them: a person must look there first."""
    max_units_down: int
    min_serving_share: Fraction

    def stands(self, unit: str) -> Stands | None:
        """Why this unit may not be restarted now; None if it may.

        A unit that does not serve takes nothing away when it is restarted, so others that are down
        do not hold it up: servers that hang would else wait for each other for ever.
        """
        if self.ordered:
            names = f"{len(self.ordered)} ordered or failed ({_some(self.ordered)})"
        else:
            names = f"{len(self.down)} down or restarting ({_some(self.down)})"
        full = len(self.ordered) >= self.max_units_down
        if unit not in self.down:
            full = full or len(self.down) >= self.max_units_down
            if not full and self.live - len(self.down) - 1 < self.min_serving_share * self.live:
                return Stands(
                    code="budget",
                    owner="approver",
                    sentence=f"{self.live - len(self.down)} of {self.live} live units of SM {self.sm} "
                    f"serve, and min_serving_share is {float(self.min_serving_share):g}.",
                    next_step="Restart the server by hand, or publish a policy with a lower "
                    "min_serving_share.",
                )
        if not full:
            return None
        return Stands(
            code="budget",
            owner="operator",
            sentence=f"of SM {self.sm} {names}, and max_units_down is {self.max_units_down}.",
            next_step="Wait for them, or bring them back: smgate drain ls.",
        )

    def take(self, unit: str) -> None:
        """The unit is ordered: from here on it is down."""
        self.ordered.add(unit)
        self.down.add(unit)


def budget(fleet: Fleet, sm: str) -> Budget:
    """The budget of one SM as it stands. Counted are live units of a gate that smgate steers."""
    policy = fleet.policy
    counted = census.taken(fleet, ("service",), fleet.units, lambda name: _service(fleet, name))
    ordered = {name for name in fleet.drains if ("live", sm) in counted.of_unit.get(name, ())}
    down = {kind[2] for kind in counted.totals if kind[:2] == ("down", sm)}
    # An open order may be carried out at any moment: it counts as down from the start.
    down |= {name for name in ordered if fleet.drains[name].failed is None}
    return Budget(
        sm=sm,
        live=counted.totals["live", sm],
        down=down,
        ordered=ordered,
        max_units_down=policy.max_units_down,
        min_serving_share=Fraction(str(policy.min_serving_share)),
    )


def _service(fleet: Fleet, name: str) -> Kinds:
    """That a unit is live on its SM, and by name that it is down."""
    unit = fleet.units[name]
    if not _counts(fleet, unit):
        return ()
    sm = exposure.unit_sm(fleet, unit) or "unknown"
    return (("live", sm),) if serves(fleet, unit) else (("live", sm), ("down", sm, name))


def _counts(fleet: Fleet, unit: Unit) -> bool:
    if not unit.live or unit.excluded or unit.released:
        return False
    ranks = unit.launch.ranks.values() if unit.launch is not None else ()
    nodes = {rank.node for rank in ranks} or {i.node for i in unit.live_instances()}
    if not nodes or all(fleet.nodes[name].retired for name in nodes):
        return False
    return any(readings.target_of(fleet, i) is not None for i in unit.instances.values()) or any(
        fleet.gate_of(getattr(fleet.model_of(rank.planned), "architecture", None)) is not None
        for rank in ranks
    )


def _some(names: set[str]) -> str:
    """The first few names, and how many more."""
    shown = ", ".join(sorted(names)[:NAMES_SHOWN])
    return shown + (f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else "")
