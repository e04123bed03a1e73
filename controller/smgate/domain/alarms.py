"""Alarms: computed apart from the decision table, for every unit in every mode.

One episode per (gate, SM, cause), however many units: pages are per episode, never per node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from smgate.domain import context, decisions, exposure, rules_ours
from smgate.domain.events import Event
from smgate.domain.state import Episode, Fleet, Instance, Unit
from smgate.domain.waits import SECOND_US

SENTENCES: Final = {
    "memory_fallback": "MXFP4 experts are materialised in BF16.",
    "override_not_in_effect": "A server runs another runner than its launch was told.",
    "uncontrolled": "A server runs or would run the target with no grant.",
    "exposed": "A server runs the target and the decision is not the target.",
    "unit_disagrees": "Ranks of one unit resolved different runners.",
    "drain_failed": "A restart onto the safe value failed.",
    "adopted": "Servers were first seen already on the target; a person must rule on them.",
    "unit_unsteerable": "A server came without a launch gate, so it cannot be told anything.",
    "model_unknown": "A server's model was never read.",
    "sm_unknown": "The SM of a GPU was never known.",
    "sm_mixed": "A unit has GPUs of different SMs.",
    "no_safe_value": "A safe value was wanted and there is none for this SM, a2a and version.",
    "override_defeated": "An explicit flag beats the file the override is written to.",
    "gpu_overlap": "Two live units hold the same GPU.",
    "build_suspect": "A self-test failed and is being confirmed.",
    "build_failed": "A self-test failed in two chassis.",
    "breaker_open": "Too much went bad at once.",
    "rollout_halted": "A rollout was halted by a bad sign.",
}
"""Every cause an alarm can have, with its sentence."""

LOUD_CODES: Final = ("sm_unknown", "sm_mixed", "override_defeated", "unit_unsteerable")
"""Decision codes that are alarms of their own on an SM the gate is about."""

Condition = tuple[str, str, str, str]
"""(gate, SM, cause, unit)"""


def delivered_wrong(unit: Unit, instance: Instance) -> bool:
    """True if the instance runs another runner than its launch was told to append."""
    launch = unit.launch
    if launch is None or launch.decided is None or instance.effective is None:
        return False
    if instance.launch_id not in launch.launch_ids or launch.decided.form != "append":
        return False
    return instance.effective.runner != launch.decided.value


def _unit_causes(fleet: Fleet, unit: Unit) -> Iterator[str]:
    live = unit.live_instances()
    if any(i.fallback is not None for i in unit.instances.values()):
        yield "memory_fallback"
    # One that died of it says so until the next launch: a crash loop is one alarm, not many.
    told = (i for i in unit.instances.values() if i.live or i.failed)
    if any(delivered_wrong(unit, i) for i in told):
        yield "override_not_in_effect"
    if exposure.uncontrolled(fleet, unit):
        yield "uncontrolled"
    if exposure.exposed(fleet, unit):
        yield "exposed"
    yield from _persons_causes(fleet, unit)
    override = unit.override
    if override is not None:
        codes = {override.code, override.would.code if override.would else override.code}
        if not live:  # a server that ended needs no steering
            codes.discard("unit_unsteerable")
        yield from (code for code in LOUD_CODES if code in codes)
        if override.no_safe_value:
            yield "no_safe_value"
        if "model_unknown" in codes and exposure.is_candidate(fleet, exposure.unit_sm(fleet, unit)):
            yield "model_unknown"
    if any(_shared(fleet, uuid) for instance in live for uuid in instance.gpu_uuids):
        yield "gpu_overlap"


def _persons_causes(fleet: Fleet, unit: Unit) -> Iterator[str]:
    """What only a person can end."""
    if unit.id in fleet.drains and fleet.drains[unit.id].failed is not None:
        yield "drain_failed"
    if _disagrees(fleet, unit):
        yield "unit_disagrees"
    if unit.adoption == "adopted":
        yield "adopted"


def _disagrees(fleet: Fleet, unit: Unit) -> bool:
    """Ranks attested different pairs, or a rank's own reading contradicts what was decided.

    A rank that came after the decision gets the same value; where its own launch rules that value
    out, the ranks will differ, and nobody else says so before they hang.
    """
    launch = unit.launch
    if launch is None:
        return False
    if launch.launch_ids == unit.disagreed_launch_ids:
        return True
    if launch.decided is None or launch.decided.form != "append" or len(launch.ranks) == 1:
        return False
    targets = {gate.target for gate in fleet.gates.values()}
    decided: context.Kind = "target" if launch.decided.value in targets else "safe"
    ctx = context.of_unit(fleet, unit, fleet.now_us)
    answers = (
        rule(ctx, member)
        for member in ctx.members
        if member.rank is not None and member.rank in launch.ranks.values()
        for rule in rules_ours.OF_THE_LAUNCH
    )
    levels = context.CAREFULNESS
    return any(a is not None and levels.index(a.kind) < levels.index(decided) for a in answers)


def _shared(fleet: Fleet, uuid: str) -> bool:
    """True if two live units with a server hold a GPU."""
    names = fleet.gpu_units.get(uuid, ())
    if len(names) <= 1:
        return False
    units = [fleet.units[name] for name in names]
    return sum(1 for unit in units if unit.live and unit.live_instances()) > 1


def of_unit(fleet: Fleet, unit: Unit, now_us: int) -> tuple[Condition, ...]:
    """The alarm conditions that hold for one unit now."""
    causes = list(_unit_causes(fleet, unit)) if unit.live else []
    if not causes:
        return ()
    ctx = context.of_unit(fleet, unit, now_us)
    gate = ctx.gate.id if ctx.gate is not None else "none"
    sm = ctx.sm or exposure.unit_sm(fleet, unit) or "unknown"
    return tuple((gate, sm, cause, unit.id) for cause in causes)


def of_world(fleet: Fleet) -> list[Condition]:
    """The alarm conditions that are no unit's own."""
    found: list[Condition] = []
    for key in sorted(fleet.keys):
        evidence = fleet.keys[key]
        if evidence.standing in ("suspect", "failed"):
            found.append(("none", evidence.sm, f"build_{evidence.standing}", key))
    for name in sorted(fleet.rollouts):
        rollout = fleet.rollouts[name]
        if rollout.phase == "halted" and rollout.halted_code != "by_person":
            found.append((rollout.plan.gate, rollout.plan.sm, "rollout_halted", name))
    if fleet.breaker_position is not None:
        found.extend(("none", "all", "breaker_open", name) for name in fleet.breaker_units)
    return found


def open_episodes(fleet: Fleet) -> dict[tuple[str, str, str], Episode]:
    """Episodes that are not closed, by (gate, SM, cause)."""
    return {(e.gate, e.sm, e.cause): e for e in fleet.episodes.values() if e.closed_us is None}


def episodes(fleet: Fleet, conditions: Iterable[Condition], now_us: int) -> list[Event]:
    """Episodes to open, update or close now, given every condition that holds."""
    wanted: dict[tuple[str, str, str], list[str]] = {}
    for gate, sm, cause, name in conditions:
        wanted.setdefault((gate, sm, cause), []).append(name)
    standing = open_episodes(fleet)
    found: list[Event] = []
    for key in sorted(wanted):
        units = tuple(sorted(set(wanted[key])))
        if key not in standing:
            gate, sm, cause = key
            found.append(
                decisions.EpisodeOpened(
                    episode=f"{cause}/{sm}/{gate}/{fleet.position}",
                    gate=gate,
                    sm=sm,
                    cause=cause,
                    units=units,
                    sentence=SENTENCES[cause],
                )
            )
        elif standing[key].units != units or standing[key].absent_led_us is not None:
            found.append(decisions.EpisodeUpdated(episode=standing[key].id, units=units))
    for key in sorted(set(standing) - set(wanted)):
        episode = standing[key]
        if episode.absent_led_us is None:
            found.append(decisions.EpisodeUpdated(episode=episode.id, units=()))
        elif quiet_left_us(fleet, episode, now_us) <= 0:
            found.append(decisions.EpisodeClosed(episode=episode.id))
    return found


def quiet_left_us(fleet: Fleet, episode: Episode, now_us: int) -> int:
    """How long an episode whose cause is absent stays open."""
    assert episode.absent_led_us is not None
    quiet_us = fleet.policy.episode_quiet_s * SECOND_US
    return quiet_us - (fleet.led_us(now_us) - episode.absent_led_us)
