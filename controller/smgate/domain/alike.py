"""Units that the rules cannot tell apart: what they say of one they say of all.

A fleet is thousands of servers of a few kinds, and a full plan asks the rules about each of them. So
one look keeps what they said of a unit, by all of it that a rule may read, and asks again only for a
unit that differs. By default everything of a unit, a launch and a node counts; left out is what is
named below: who it is, and when something was. A unit that is special in any way is always asked.

`plan` asks about every unit, and tests compare; one of them compares all units that are alike.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Hashable
from typing import Any, Final

from smgate.domain import exposure, readings, restoring
from smgate.domain.facts import LaunchPlanned
from smgate.domain.state import Fleet, Grant, Rank, Unit
from smgate.domain.state_nodes import Node
from smgate.domain.values import Build, Model

_NOT_OF_UNIT: Final = frozenset(
    {
        *("id", "position", "override", "override_position", "ever_granted", "taken_back"),
        *("hands_off_position", "pin_position", "adopted_position", "adopted_led_us"),
        *("launch", "known_ranks", "instances", "disagreed_launch_ids"),  # `Alike.of` reads these
        *("grant", "former_grants"),  # as `Unit.grants`
    }
)
_NOT_OF_LAUNCH: Final = frozenset(
    {
        *("launch_id", "gpus", "unit_name", "workload", "rendezvous", "held_generation"),
        *("build", "model", "layout"),  # the kernel key has the layout, `Alike.of` reads the others
    }
)
_NOT_OF_NODE: Final = frozenset(
    {"name", "position", "machine_id", "last_contact_us", "reported", "gaps"}
)


def _fields(kind: Any, left_out: Collection[str] = ()) -> Callable[[Any], tuple[Hashable, ...]]:  # noqa: ANN401
    read: Callable[[Any], tuple[Hashable, ...]] = operator.attrgetter(
        *(name for name in kind.__slots__ if name not in left_out)
    )
    return read


_OF_UNIT: Final = _fields(Unit, _NOT_OF_UNIT)
_OF_LAUNCH: Final = _fields(LaunchPlanned, _NOT_OF_LAUNCH)
_OF_NODE: Final = _fields(Node, _NOT_OF_NODE)
_OF_GRANT: Final = _fields(Grant, {"position", "since_led_us", "baked_s", "golden"})
_OF_BUILD: Final = _fields(Build, {"artifact_pins"})
_OF_MODEL: Final = _fields(Model)


class Alike:
    """Tells which units are alike, at one moment of one fleet."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet: Final = fleet
        self._remembered: Final = {uuid for uuid, _ in fleet.gpu_memory}
        rollouts = fleet.rollouts.values()
        self._waves: Final = [wave.members for one in rollouts for wave in one.waves]
        self._covered: Final = [one.covered for one in rollouts if one.covered]
        self._of_racks: Final = any(one.plan.select.racks for one in rollouts)

    def of(self, unit: Unit) -> Hashable | None:
        """Equal for units that are alike; None for one that is to be looked at by itself."""
        rank = self._rank(unit)
        node = None if rank is None else self._fleet.nodes.get(rank.node)
        if rank is None or node is None or node.gaps or unit.pin is not None:
            return None
        if unit.id in self._fleet.guard.held or restoring.in_doubt(self._fleet, unit):
            return None
        sms = readings.rank_sms(self._fleet, rank)
        key = readings.key_on(rank, sms)
        model = self._fleet.model_of(rank.planned)
        if key is None or model is None:
            return None
        # Asked of few fleets: names of GPUs lie all over the memory.
        if self._remembered and not self._remembered.isdisjoint(rank.gpu_uuids):
            return None
        return (
            key,
            sms,
            _OF_BUILD(rank.planned.build),
            _OF_MODEL(model),
            _OF_LAUNCH(rank.planned),
            _OF_NODE(node),
            _OF_UNIT(unit),
            tuple(map(_OF_GRANT, unit.grants)),
            unit.launch.decided.code if unit.launch and unit.launch.decided else None,
            self._attested(unit, rank),
            self._place(unit, node),
        )

    def _rank(self, unit: Unit) -> Rank | None:
        """The one rank of a unit that has one, has launched it, and runs nothing beside it."""
        launch = unit.launch
        if launch is None or launch.nnodes != 1 or len(unit.known_ranks) != 1:
            return None
        rank = launch.ranks.get(0)
        if rank is None or unit.known_ranks.get(0) is not rank or len(unit.instances) > 1:
            return None
        for instance in unit.instances.values():
            if instance.launch_id is None:
                return None
        return rank

    def _attested(self, unit: Unit, rank: Rank) -> str | None:
        """The a2a backend that the server of this launch resolved."""
        for instance in unit.instances.values():
            if instance.launch_id == rank.planned.launch_id and instance.live:
                return None if instance.effective is None else instance.effective.a2a
        return None

    def _place(self, unit: Unit, node: Node) -> tuple[Hashable, ...]:
        """Where it stands in the rollouts, and whether it counts as exposed itself."""
        found: list[Hashable] = [unit.id in members for members in self._waves]
        if self._covered:
            names = (unit.id, unit.id.rpartition(":")[0])
            found += [covered.isdisjoint(names) for covered in self._covered]
        if self._of_racks and node.reported is not None:
            found.append(node.reported.rack)
        if self._fleet.policy.bake_lease_s is not None:
            found += [self._verified(grant) for grant in unit.grants]
        if self._fleet.policy.exposure_limit_units is not None:
            found.append(exposure.may_run_target(self._fleet, unit))
        return tuple(found)

    def _verified(self, grant: Grant) -> bool:
        """Whether a grant needs no lease any more."""
        rollout = self._fleet.rollouts.get(grant.rollout or "")
        return rollout is None or exposure.verified(grant, rollout.plan)
