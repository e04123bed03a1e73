"""Alarms: computed apart from the decision table, for every unit in every mode.

One episode per (gate, SM, cause), however many units: pages are per episode, never per node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from smgate.domain import context, decisions, exposure, fits, rules_ours, sensing
from smgate.domain.decisions import OverrideSet
from smgate.domain.events import Event
from smgate.domain.state import Fleet, Unit
from smgate.domain.state_alarms import Alarm, Episode
from smgate.domain.state_nodes import Instance
from smgate.domain.state_rollouts import Rollout
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
    "does_not_fit": "The experts of a launch do not fit its GPUs as it would run them.",
    "gpu_overlap": "Two live units hold the same GPU.",
    "build_suspect": "A self-test failed and is being confirmed.",
    "build_failed": "A self-test failed in two chassis.",
    "breaker_open": "Too much went bad at once.",
    "rollout_halted": "A rollout was halted by a bad sign.",
    "fleet_unreachable": "Most of the fleet went out of contact at once: look at the network first.",
    "expected_without_agent": "Machines that should exist have no agent.",
    "node_cloned": "Two machines report as one node: a copy was started with its identity.",
}
"""Every cause an alarm can have, with its sentence."""

LOUD_CODES: Final = ("sm_unknown", "sm_mixed", "override_defeated", "unit_unsteerable")
"""Decision codes that are alarms of their own on an SM the gate is about."""
_TELLING: Final = frozenset({*LOUD_CODES, "model_unknown"})

WHOLE_FLEET: Final = "fleet"
"""What an outage of the fleet is about: its thousands of nodes are listed elsewhere."""


class Held:
    """The alarms that hold, and for which units: kept as units are looked at anew."""

    def __init__(self) -> None:
        self._of_unit: dict[str, tuple[Alarm, ...]] = {}
        self.units: dict[Alarm, set[str]] = {}
        self.changed: set[Alarm] = set()
        """Alarms whose units may differ from what their episode says."""

    def look(self, fleet: Fleet, units: Iterable[Unit], now_us: int) -> None:
        """Look at these units anew."""
        for unit in units:
            found = of_unit(fleet, unit, now_us)
            before = self._of_unit.pop(unit.id, ())
            if found:
                self._of_unit[unit.id] = found
            if found != before:
                self._replace(unit.id, before, found)

    def _replace(self, name: str, before: Iterable[Alarm], found: Iterable[Alarm]) -> None:
        for alarm in before:
            self.units[alarm].discard(name)
        for alarm in found:
            self.units.setdefault(alarm, set()).add(name)
        for alarm in (*before, *found):
            self.changed.add(alarm)
            if not self.units.get(alarm, True):
                del self.units[alarm]


def delivered_wrong(unit: Unit, instance: Instance) -> bool:
    """True if the instance runs another runner than its launch was told to append."""
    launch = unit.launch
    if launch is None or launch.decided is None or instance.effective is None:
        return False
    if instance.launch_id not in launch.launch_ids or launch.decided.form != "append":
        return False
    return instance.effective.runner != launch.decided.value


def _unit_causes(fleet: Fleet, unit: Unit) -> Iterator[str]:
    live = fell_back = wrong = False
    for instance in unit.instances.values():
        runs = instance.live
        live = live or runs
        fell_back = fell_back or instance.fallback is not None
        # One that died of it says so until the next launch: a crash loop is one alarm, not many.
        wrong = wrong or ((runs or instance.failed) and delivered_wrong(unit, instance))
    if fell_back:
        yield "memory_fallback"
    if wrong:
        yield "override_not_in_effect"
    if exposure.would_run_target(fleet, unit):
        yield from _causes_on_target(fleet, unit)
    if unit.id in fleet.drains and fleet.drains[unit.id].failed is not None:
        yield "drain_failed"
    if _disagrees(fleet, unit):
        yield "unit_disagrees"
    if unit.adoption == "adopted":
        yield "adopted"
    told = unit.override
    if told is not None and (told.code in _TELLING or told.no_safe_value or told.would is not None):
        yield from _causes_told(fleet, unit, told, live=live)
    if fleet.contested and any(_shared(fleet, instance) for instance in unit.live_instances()):
        yield "gpu_overlap"
    room = fits.of_unit(fleet, unit)
    if room is not None and not room.fits:
        yield "does_not_fit"


def _causes_on_target(fleet: Fleet, unit: Unit) -> Iterator[str]:
    if exposure.uncontrolled(fleet, unit):
        yield "uncontrolled"
    if exposure.exposed(fleet, unit):
        yield "exposed"


def _causes_told(fleet: Fleet, unit: Unit, override: OverrideSet, *, live: bool) -> Iterator[str]:
    """What the decision itself says that a person should look at."""
    codes = {override.code, override.would.code if override.would else override.code}
    if not live:  # a server that ended needs no steering
        codes.discard("unit_unsteerable")
    if not codes.isdisjoint(LOUD_CODES):
        yield from (code for code in LOUD_CODES if code in codes)
    if override.no_safe_value:
        yield "no_safe_value"
    if "model_unknown" in codes and exposure.is_candidate(fleet, exposure.unit_sm(fleet, unit)):
        yield "model_unknown"


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
    decided: context.Kind = "target" if launch.decided.value in fleet.targets else "safe"
    ctx = context.of_unit(fleet, unit, fleet.now_us)
    answers = (
        rule.ask(ctx, member)
        for member in ctx.members
        if member.rank is not None and member.rank in launch.ranks.values()
        for rule in rules_ours.OF_THE_LAUNCH
    )
    levels = context.CAREFULNESS
    return any(
        isinstance(one, context.Answer) and levels.index(one.kind) < levels.index(decided)
        for one in answers
    )


def _shared(fleet: Fleet, instance: Instance) -> bool:
    """True if two live units with a server hold a GPU of this instance."""
    for uuid in fleet.contested.intersection(instance.gpu_uuids):
        units = [fleet.units[name] for name in fleet.gpu_units[uuid]]
        if sum(1 for unit in units if unit.live and unit.live_instances()) > 1:
            return True
    return False


def of_unit(fleet: Fleet, unit: Unit, now_us: int) -> tuple[Alarm, ...]:
    """The alarms that hold for one unit now."""
    causes = list(_unit_causes(fleet, unit)) if unit.live else []
    if not causes:
        return ()
    ctx = context.of_unit(fleet, unit, now_us)
    gate = ctx.gate.id if ctx.gate is not None else "none"
    sm = ctx.sm or exposure.unit_sm(fleet, unit) or "unknown"
    return tuple((gate, sm, cause) for cause in causes)


def _left_behind(fleet: Fleet, rollout: Rollout) -> bool:
    """True of a halt that asks nobody for anything: by a person, or people have gone on since.

    They went on with another rollout there, or smgate changes nothing on that SM any more.
    """
    plan = rollout.plan
    return (
        rollout.halted_code == "by_person"
        or fleet.mode_of(plan.gate, plan.sm) == "observe"
        or any(
            (other.plan.gate, other.plan.sm) == (plan.gate, plan.sm)
            and other.phase in ("running", "paused", "completed", "halted")
            and other.phase_position > rollout.phase_position
            for other in fleet.rollouts.values()
        )
    )


def of_world(fleet: Fleet) -> dict[Alarm, set[str]]:
    """The alarms that are no unit's own, and what they are about."""
    found: dict[Alarm, set[str]] = {}
    for key, evidence in fleet.keys.items():
        if evidence.standing in ("suspect", "failed"):
            alarm = ("none", evidence.sm, f"build_{evidence.standing}")
            found.setdefault(alarm, set()).add(key)
    for name, rollout in fleet.rollouts.items():
        if rollout.phase == "halted" and not _left_behind(fleet, rollout):
            alarm = (rollout.plan.gate, rollout.plan.sm, "rollout_halted")
            found.setdefault(alarm, set()).add(name)
    if fleet.breaker_position is not None and fleet.breaker_units:
        found["none", "all", "breaker_open"] = set(fleet.breaker_units)
    if len(fleet.inventory.unreachable) >= sensing.OUTAGE_NODES_MIN:
        found["none", "all", "fleet_unreachable"] = {WHOLE_FLEET}
    if fleet.inventory.cloned:
        found["none", "all", "node_cloned"] = set(fleet.inventory.cloned)
    for name, sm in fleet.inventory.without_agent.items():
        found.setdefault(("none", sm, "expected_without_agent"), set()).add(name)
    return found


def open_episodes(fleet: Fleet) -> dict[Alarm, Episode]:
    """Episodes that are not closed, by what they are of."""
    return {alarm: fleet.episodes[name] for alarm, name in fleet.open_episodes.items()}


def episodes(fleet: Fleet, held: Held, now_us: int) -> list[Event]:
    """Episodes to open, update or close now, given every alarm that holds for units."""
    world = of_world(fleet)
    standing = open_episodes(fleet)
    wanted = held.units.keys() | world.keys()
    found: list[Event] = []
    for key in sorted(wanted):
        episode = standing.get(key)
        open_and_said = episode is not None and episode.absent_led_us is None
        if open_and_said and key not in held.changed and key not in world:
            continue  # its units, of which it may have many, were compared when they changed
        units = tuple(sorted(held.units.get(key, set()) | world.get(key, set())))
        if episode is None:
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
        elif episode.units != units or episode.absent_led_us is not None:
            found.append(decisions.EpisodeUpdated(episode=episode.id, units=units))
        else:
            held.changed.discard(key)
    for key in sorted(set(standing) - wanted):
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
