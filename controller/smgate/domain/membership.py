"""Who is in a wave: whom a rollout could take, in which order, and how far each wave goes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from smgate.domain import cohort, context, exposure, readings, rules, rules_start
from smgate.domain.policy import Selector
from smgate.domain.rules_start import ALL_PERCENT
from smgate.domain.state import Fleet, Rollout, Unit, Wave

NO_BAR_TO_MEMBERSHIP = frozenset(
    {"wave_not_open", "max_in_flight", "exposure_limit", "freeze", "breaker_open", "rollout_paused"}
)
"""Refusals that concern the moment, not the unit: a member may wait for them to pass."""


def eligible(fleet: Fleet, rollout: Rollout, now_us: int) -> list[str]:
    """Units this rollout could grant if their wave were open, and those it has granted."""
    found = []
    for name in sorted(fleet.units):
        unit = fleet.units[name]
        if not unit.live:
            continue
        grant = readings.grant_in_force(fleet, unit)
        if (
            _could_join(fleet, rollout, name, now_us)
            if grant is None
            else grant.rollout == rollout.plan.id
        ):
            found.append(name)
    return found


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
        return tuple(unit for unit in fresh if _names(fleet, planned.select, unit))
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


def _names(fleet: Fleet, select: Selector, unit: str) -> bool:
    """True if a wave that names its members names this unit. No clock is asked for that."""
    return rules_start.selects(select, context.of_unit(fleet, fleet.units[unit], fleet.now_us))


def awaits_named(fleet: Fleet, rollout: Rollout) -> bool:
    """True if the next wave names units, and none that it could still take may enter yet.

    To pass it by would be to pass on missing data. Who runs the target by another grant, or was
    taken out by a person, is not waited for.
    """
    select = rollout.plan.waves[len(rollout.waves)].select
    if select is None:
        return False
    named = [n for n, unit in fleet.units.items() if unit.live and _names(fleet, select, n)]
    return not named or any(
        not fleet.units[name].taken_out
        and readings.grant_in_force(fleet, fleet.units[name]) is None
        and not any(name in wave.members for wave in rollout.waves)
        for name in named
    )


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
    fresh = [
        name
        for name in names
        if fleet.units[name].live and not any(name in one.members for one in rollout.waves)
    ]
    if not fresh or room == 0:
        return ()
    if planned.percent is not None and planned.percent < ALL_PERCENT:
        # What was carried over stands at any place, so no place says who came late.
        fresh = [] if rollout.carried else _before_the_last(fleet, rollout, fresh)
    if planned.select is not None:
        fresh = [name for name in fresh if _names(fleet, planned.select, name)]
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
    placed = [w for w in rollout.waves if rollout.plan.waves[w.number].select is None]
    if rollout.plan.spread_by == "none":
        end = max(cohort.last_place(salt, wave.units) for wave in placed)
        return [name for name in names if cohort.cohort_hash(salt, name) < end]
    last: dict[str, int] = {}
    for unit in (unit for wave in placed for unit in wave.units if unit in fleet.units):
        for domain in domains(fleet, rollout, unit):
            last[domain] = max(cohort.cohort_hash(salt, unit), last.get(domain, 0))
    return [
        name
        for name in names
        if cohort.cohort_hash(salt, name)
        < max(last.get(domain, 0) for domain in domains(fleet, rollout, name))
    ]


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
