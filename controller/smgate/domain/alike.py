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

from smgate.domain import exposure, readings, restoring, rules
from smgate.domain.decisions import OverrideSet
from smgate.domain.facts import LaunchPlanned
from smgate.domain.state import Fleet, Grant, Rank, Unit
from smgate.domain.state_nodes import Node
from smgate.domain.values import Build, GivenFor, Model

_NOT_OF_UNIT: Final = frozenset(
    {
        *("id", "position", "override", "override_position", "ever_granted", "taken_back"),
        *("hands_off_position", "pin_position", "adopted_position", "adopted_led_us"),
        *("launch", "known_ranks", "instances", "disagreed_launch_ids"),  # `Alike.of` reads these
        *("grant", "former_grants"),  # as `Unit.grants`
        *("appended_for", "pin"),  # read by itself; pinned ones are looked at one by one
    }
)
_NOT_OF_LAUNCH: Final = frozenset(
    {
        *("launch_id", "gpus", "unit_name", "workload", "rendezvous", "held_generation"),
        *("build", "model", "layout"),  # the kernel key has the layout, `_kind` reads the others
    }
)
_NOT_OF_NODE: Final = frozenset(
    {
        *("name", "position", "machine_id", "last_contact_us", "reported", "gaps"),
        *("outboxes", "returned_led_us"),  # told by an alarm, asked by no rule
    }
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
_OF_APPENDED: Final = _fields(GivenFor)


class Alike:
    """Tells which units are alike, at one moment of one fleet."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet: Final = fleet
        self._remembered: Final = {uuid for uuid, _ in fleet.gpu_memory}
        rollouts = fleet.rollouts.values()
        self._waves: Final[dict[str, int]] = {}
        """The waves that a unit is in, a bit each."""
        for bit, wave in enumerate(wave for one in rollouts for wave in one.waves):
            for name in wave.places:
                self._waves[name] = self._waves.get(name, 0) | 1 << bit
        self._covered: Final = [one.covered for one in rollouts if one.covered]
        self._of_racks: Final = any(one.plan.select.racks for one in rollouts)
        policy = fleet.policy
        self._limited: Final = policy.exposure_limit_units is not None
        self._leased: Final = policy.bake_lease_s is not None
        self._placed: Final = bool(self._covered) or self._of_racks or self._limited or self._leased

    def of(self, unit: Unit) -> Hashable | None:
        """Equal for units that are alike; None for one that is to be looked at by itself."""
        fleet, rank = self._fleet, _only_rank(unit)
        if rank is None or unit.pin is not None or unit.id in fleet.guard.held:
            return None
        if restoring.in_doubt(fleet, unit):
            return None
        planned, node, attested = rank.planned, fleet.nodes.get(rank.node), None
        kind = rank.kind if rank.sms_read == fleet.sms_read else None
        kind = kind or _kind(fleet, rank)
        if kind is None or node is None or node.gaps:
            return None
        for instance in unit.instances.values():
            if instance.launch_id == planned.launch_id:
                if instance.live and instance.effective is not None:
                    attested = instance.effective.a2a
            elif instance.launch_id is None:
                return None
        # Asked of few fleets: names of GPUs lie all over the memory.
        if self._remembered and not self._remembered.isdisjoint(rank.gpu_uuids):
            return None
        launch, grant, appended = unit.launch, unit.grant, unit.appended_for
        return (
            kind,
            _OF_NODE(node),
            _OF_UNIT(unit),
            appended and _OF_APPENDED(appended),
            grant and tuple(map(_OF_GRANT, unit.grants)),
            launch and launch.decided and launch.decided.code,
            attested,
            self._waves.get(unit.id),
            self._placed and self._place(unit, node),
        )

    def _place(self, unit: Unit, node: Node) -> tuple[Hashable, ...]:
        """Where it stands in the rollouts, and whether it counts as exposed itself."""
        found: list[Hashable] = []
        if self._covered:
            names = (unit.id, unit.id.rpartition(":")[0])
            found += [covered.isdisjoint(names) for covered in self._covered]
        if self._of_racks and node.reported is not None:
            found.append(node.reported.rack)
        if self._leased:
            found += [self._verified(grant) for grant in unit.grants]
        if self._limited:
            found.append(exposure.may_run_target(self._fleet, unit))
        return tuple(found)

    def _verified(self, grant: Grant) -> bool:
        """Whether a grant needs no lease any more."""
        rollout = self._fleet.rollouts.get(grant.rollout or "")
        return rollout is None or exposure.verified(grant, rollout.plan)


def _only_rank(unit: Unit) -> Rank | None:
    """The one rank of a unit that has one, has launched it, and runs nothing beside it."""
    launch, known = unit.launch, unit.known_ranks
    if launch is None or launch.nnodes != 1 or len(known) != 1 or len(unit.instances) > 1:
        return None
    rank = launch.ranks.get(0)
    return rank if known.get(0) is rank else None


def _kind(fleet: Fleet, rank: Rank) -> object | None:
    """One object for all launches that are alike on GPUs of the same SMs; None if too little is known."""
    planned, sms = rank.planned, readings.rank_sms(fleet, rank)
    key = readings.key_on(rank, sms)
    if key is None or fleet.model_of(planned) is None:
        return None
    model = planned.model and _OF_MODEL(planned.model)  # else by the digest, the same for all
    read = (key, sms, _OF_BUILD(planned.build), model, _OF_LAUNCH(planned))
    rank.kind = fleet.kinds.setdefault(read, object())
    return rank.kind


Stands = Callable[[Fleet, Unit, OverrideSet, int], bool]
"""True if what a unit was told is what the rules say of it now."""


def stands(fleet: Fleet, unit: Unit, told: OverrideSet, now_us: int) -> bool:
    """Ask the rules about this unit."""
    return rules.says(fleet, unit, now_us) == rules.said(told)


_said_to_all: Final[Callable[[OverrideSet], tuple[object, ...]]] = operator.attrgetter(
    *rules.Said._fields[:-1]
)
"""All of a `Said` but its last, the nodes, in which those that are alike differ."""


def once(fleet: Fleet) -> Stands:
    """`stands`, which asks the rules once for all units that are alike."""
    likeness = Alike(fleet)
    kept: dict[Hashable, tuple[object, ...]] = {}

    def stands_so(fleet: Fleet, unit: Unit, told: OverrideSet, now_us: int) -> bool:
        like = likeness.of(unit)
        if like is None:
            return stands(fleet, unit, told, now_us)
        said, known = _said_to_all(told), kept.get(like)
        if known is None:
            known = rules.says(fleet, unit, now_us)[:-1]
            # Of equal ones what was told: others were told the very same objects.
            kept[like] = said if said == known else known
        return said == known and told.nodes == (unit.known_ranks[0].node,)

    return stands_so
