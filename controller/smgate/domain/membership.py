"""Who is in a wave: whom a rollout could take, in which order, and how far each wave goes."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Sequence
from typing import Any

from smgate.domain import census, cohort, context, exposure, readings, rules, rules_start
from smgate.domain.rules_start import ALL_PERCENT
from smgate.domain.state import Fleet, Unit
from smgate.domain.state_counts import Kinds
from smgate.domain.state_rollouts import Rollout, Wave

NO_BAR_TO_MEMBERSHIP = frozenset(
    {"wave_not_open", "max_in_flight", "exposure_limit", "freeze", "breaker_open", "rollout_paused"}
)
"""Refusals that concern the moment, not the unit: a member may wait for them to pass."""


def eligible(fleet: Fleet, rollout: Rollout, now_us: int) -> list[str]:
    """Units this rollout could grant if their wave were open, and those it has granted."""
    return [name for name in sorted(fleet.units) if _eligible(fleet, rollout, name, now_us)]


def anybody(fleet: Fleet, rollout: Rollout, names: Iterable[str], now_us: int) -> bool:
    """True if any of these is eligible, and named by the next wave if that names its members."""
    return any(
        _eligible(fleet, rollout, name, now_us) and _named(fleet, rollout, name) for name in names
    )


def _eligible(fleet: Fleet, rollout: Rollout, name: str, now_us: int) -> bool:
    unit = fleet.units[name]
    if not unit.live:
        return False
    grant = readings.grant_in_force(fleet, unit)
    if grant is not None:
        return grant.rollout == rollout.plan.id
    return _could_join(fleet, rollout, name, now_us)


def _could_join(fleet: Fleet, rollout: Rollout, unit: str, now_us: int) -> bool:
    decision = rules.decide_unit(fleet, unit, now_us)
    if decision.event.would is not None:  # observe mode: nothing would come of it
        return False
    codes = {code for code, _ in decision.refusals}
    judged_last = decision.raw.kind == "safe" and decision.raw.code in codes
    return (
        (judged_last or decision.raw.starts)
        and codes <= NO_BAR_TO_MEMBERSHIP
        and rules_start.covers(rollout, context.of_unit(fleet, fleet.units[unit], now_us))
    )


def opening(fleet: Fleet, rollout: Rollout, names: Iterable[str]) -> tuple[str, ...]:
    """The members of the next wave, out of the eligible units.

    A rollout that superseded another begins where that one stood. What it carried over and has
    baked is taken in at once, and the rest of that first; units of those kernel keys are counted
    apart from others, so that they go on from what they had reached and a new key has its canaries.
    """
    order = cohort.in_cohort_order(rollout.plan.id, names)
    carried = {
        unit
        for unit in order
        if not any(unit in wave.members for wave in rollout.waves)
        and exposure.granted_by(fleet, fleet.units[unit], rollout) is not None
    }
    baked = [u for u in order if u in carried and exposure.good(fleet, fleet.units[u], rollout)]
    known: list[str] = []
    new: list[str] = []
    for unit in order:
        keys = readings.launch_keys(fleet, fleet.units[unit]) or {""}
        (known if keys <= rollout.carried_keys else new).append(unit)
    return (
        *baked,
        *_widening(fleet, rollout, known, baked=baked, carried=carried),
        *_widening(fleet, rollout, new, baked=(), carried=carried),
    )


def _widening(
    fleet: Fleet,
    rollout: Rollout,
    order: Sequence[str],
    *,
    baked: Sequence[str],
    carried: set[str],
) -> tuple[str, ...]:
    plan = rollout.plan
    before = {unit for wave in rollout.waves for unit in wave.units}.union(baked)
    taken = [unit for unit in order if unit in before]
    fresh = [unit for unit in order if unit not in before]
    if plan.spread_by != "none":
        fresh = cohort.spread(fresh, {u: domains(fleet, rollout, u) for u in fresh})
    fresh.sort(key=lambda unit: unit not in carried)
    planned = plan.waves[len(rollout.waves)]
    if planned.select is not None:
        return tuple(unit for unit in fresh if _named(fleet, rollout, unit))
    weights = {unit: gpu_count(fleet.units[unit]) for unit in order}
    return cohort.next_members(planned, fresh, taken=taken, weights=weights)


def upcoming(fleet: Fleet, rollout: Rollout, names: Sequence[str]) -> dict[str, Any] | None:
    """What the next wave would take in, out of the eligible units; None if there is none."""
    number = len(rollout.waves)
    if rollout.ended or number == len(rollout.plan.waves):
        return None
    units = opening(fleet, rollout, names)
    sentence = f"Wave {number} would take {len(units)} of {len(names)} eligible units."
    if not units and (number == 0 or awaits_named(fleet, rollout)):
        sentence = f"Wave {number} waits: no unit that it could take is eligible."
    return {"wave": number, "units": list(units), "sentence": sentence}


def _named(fleet: Fleet, rollout: Rollout, unit: str, number: int | None = None) -> bool:
    """True if a wave, the next one unless another is said, names this unit or names nobody.

    No clock is asked for that.
    """
    number = len(rollout.waves) if number is None else number
    select = rollout.plan.waves[number].select
    if select is None:
        return True
    ctx = context.of_unit(fleet, fleet.units[unit], fleet.now_us)
    return rules_start.selects(select, rollout.selected[number], ctx)


def awaits_named(fleet: Fleet, rollout: Rollout) -> bool:
    """True if the next wave names units, and none that it could still take may enter yet.

    To pass it by would be to pass on missing data. Who runs the target by another grant, or was
    taken out by a person, is not waited for.
    """
    number = len(rollout.waves)
    if rollout.plan.waves[number].select is None:
        return False

    def kinds_of(name: str) -> Kinds:
        unit = fleet.units[name]
        if not unit.live or not _named(fleet, rollout, name):
            return ()
        awaited = (
            not unit.taken_out
            and readings.grant_in_force(fleet, unit) is None
            and not any(name in wave.members for wave in rollout.waves)
        )
        return ("named", "awaited") if awaited else ("named",)

    named = census.taken(fleet, ("named", rollout.plan.id, str(number)), fleet.units, kinds_of)
    return not named.totals["named"] or named.totals["awaited"] > 0


def joining(
    fleet: Fleet, rollout: Rollout, wave: Wave, names: Iterable[str], now_us: int
) -> tuple[str, ...]:
    """Whom the open wave takes in late: units that were not eligible when it opened.

    Who was, and was not taken, stands behind the wave's last member in the order, and waits. So a
    late unit enters if its place is before that one's: as if it had been there. Asked unit by
    unit, so that one's answer never hangs on who else became eligible.
    """
    planned = rollout.plan.waves[wave.number]
    room = None
    if planned.count is not None:
        room = max(0, planned.count - sum(len(one.units) for one in rollout.waves))
    if room == 0:
        return ()
    fresh = [name for name in names if fleet.units[name].live]
    for one in rollout.waves:
        fresh = [name for name in fresh if name not in one.members]
    if not fresh:
        return ()
    if planned.percent is not None and planned.percent < ALL_PERCENT:
        # What was carried over stands at any place, so no place says who came late.
        fresh = [] if rollout.carried else _before_the_last(fleet, rollout, fresh)
    fresh = [name for name in fresh if _named(fleet, rollout, name, wave.number)]
    found = [
        name
        for name in cohort.in_cohort_order(rollout.plan.id, fresh)
        if readings.grant_in_force(fleet, fleet.units[name]) is None
        and _could_join(fleet, rollout, name, now_us)
    ]
    return tuple(found[:room])


def _before_the_last(fleet: Fleet, rollout: Rollout, names: list[str]) -> list[str]:
    """Those whose place is before the last member's; where waves are spread, of their own domain.

    Members that a wave named stand at any place, so theirs say nothing.
    """
    salt = rollout.plan.id
    last = _last_places(fleet, rollout)
    return [
        name
        for name in names
        if cohort.cohort_hash(salt, name)
        < max(last.get(domain, 0) for domain in _stands_in(fleet, rollout, name))
    ]


def _last_places(fleet: Fleet, rollout: Rollout) -> dict[str, int]:
    """The place of the last member of each domain."""
    salt = rollout.plan.id

    def kinds_of(unit: str) -> Kinds:
        place = cohort.cohort_hash(salt, unit)
        return tuple((domain, place) for domain in _stands_in(fleet, rollout, unit))

    placed = [w for w in rollout.waves if rollout.plan.waves[w.number].select is None]
    members = ChainMap(*(wave.places for wave in placed))
    places = census.taken(fleet, ("places", salt), members, kinds_of)
    if not places.worked_out:
        for domain, place in places.totals:
            places.worked_out[domain] = max(place, places.worked_out.get(domain, 0))
    return places.worked_out


def _stands_in(fleet: Fleet, rollout: Rollout, unit: str) -> set[str]:
    """The domains that count for the order: one for all, where waves are not spread."""
    return {""} if rollout.plan.spread_by == "none" else domains(fleet, rollout, unit)


def gpu_count(unit: Unit) -> int:
    """How many GPUs a unit holds: its weight in a share. One that named none counts as one."""
    return max(1, len({uuid for rank in unit.known_ranks.values() for uuid in rank.gpu_uuids}))


def domains(fleet: Fleet, rollout: Rollout, unit: str) -> set[str]:
    """The failure domains a unit stands in. A chassis of no known rack is its own, as in evidence."""
    found = set()
    for rank in fleet.units[unit].known_ranks.values():
        node = fleet.nodes.get(rank.node)
        reported = node.reported if node is not None else None
        rack = reported.rack if reported is not None else None
        chassis = (reported.chassis if reported is not None else None) or rank.node
        found.add(f"rack {rack}" if rack and rollout.plan.spread_by == "rack" else chassis)
    return found or {unit}
