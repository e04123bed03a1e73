"""Fold of what the controller decided."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from smgate.domain import (
    decisions,
    evolve_changes,
    evolve_checks,
    evolve_drains,
    exposure,
    guard,
    readings,
    restoring,
)
from smgate.domain.events import Recorded
from smgate.domain.state import TAKEN_BACK_HERE, Fleet, Grant
from smgate.domain.state_alarms import Episode
from smgate.domain.state_evidence import WantedCheck
from smgate.domain.state_rollouts import Wave

Handler = Callable[[Fleet, Recorded, Any], None]


def _leadership(fleet: Fleet, recorded: Recorded, event: decisions.LeadershipTaken) -> None:
    fleet.epoch = event.epoch
    fleet.guard.rules_version = event.rules_version
    before_us = fleet.away_us
    fleet.away_us += event.away_us
    if event.away_us:
        fleet.aways.append((fleet.led_us(recorded.at_us), before_us))
    _stop_clocks(fleet, fleet.led_us(recorded.at_us))
    for node in fleet.nodes.values():
        if node.silent:  # it stays so until it is heard; its silence did not grow meanwhile
            node.last_contact_us += event.away_us
        else:  # nobody listened: silence starts to count from now
            node.last_contact_us = max(node.last_contact_us, recorded.at_us)


def _stop_clocks(fleet: Fleet, led_us: int) -> None:
    """What was reported or ordered while nobody led begins now: the led clock stood still."""
    for unit in fleet.units.values():
        if unit.launch is not None:
            unit.launch.opened_led_us = min(unit.launch.opened_led_us, led_us)
        for grant in unit.grants:
            grant.since_led_us = min(grant.since_led_us, led_us)
    for rollout in fleet.rollouts.values():
        rollout.since_led_us = min(rollout.since_led_us, led_us)
        for wave in rollout.waves:
            wave.since_led_us = min(wave.since_led_us, led_us)
    for evidence in fleet.keys.values():
        for result in evidence.sets.values():
            result.flaky_led_us = min(result.flaky_led_us, led_us)
    for probe in fleet.unproven_probes.values():
        probe.since_led_us = min(probe.since_led_us, led_us)
    for change in fleet.waiting_changes():
        change.since_led_us = min(change.since_led_us, led_us)
    evolve_drains.stop_clocks(fleet, led_us)
    fleet.bad_signs[:] = [(min(at, led_us), unit) for at, unit in fleet.bad_signs]


def _went_silent(fleet: Fleet, recorded: Recorded, event: decisions.NodeWentSilent) -> None:
    if event.node in fleet.nodes:
        fleet.nodes[event.node].silent = True


def _returned(fleet: Fleet, recorded: Recorded, event: decisions.NodeReturned) -> None:
    if event.node in fleet.nodes:
        fleet.nodes[event.node].silent = False


def _unreachable(fleet: Fleet, recorded: Recorded, event: decisions.FleetUnreachable) -> None:
    for name in event.nodes:
        if name in fleet.nodes:
            fleet.nodes[name].silent = True
            fleet.inventory.unreachable[name] = None


def _reachable(fleet: Fleet, recorded: Recorded, event: decisions.FleetReachable) -> None:
    for name in event.nodes:
        fleet.inventory.unreachable.pop(name, None)
        if name in fleet.nodes:
            fleet.nodes[name].silent = False


def _wanted(fleet: Fleet, recorded: Recorded, event: decisions.SelfTestWanted) -> None:
    wanted = fleet.wanted[(event.kernel_key, event.launch_id)] = WantedCheck(
        kernel_key=event.kernel_key,
        launch_id=event.launch_id,
        node=event.node,
        gpu_uuids=event.gpu_uuids,
        checks=event.checks,
        purpose=event.purpose,
        position=recorded.position,
        since_led_us=fleet.led_us(recorded.at_us),
    )
    fleet.launch_wants.setdefault(event.launch_id, []).append(wanted)


def _qualified(fleet: Fleet, recorded: Recorded, event: decisions.BuildQualified) -> None:
    evidence = fleet.keys[event.kernel_key]
    evidence.standing = "qualified"
    evidence.accepted_like = None  # it was measured itself
    evidence.qualified_at_us = recorded.at_us
    evidence.qualified_position = recorded.position
    for other in fleet.keys.values():
        if other.accepted_like == event.kernel_key:
            other.qualified_at_us = recorded.at_us  # its evidence is as old as it is there


def _suspected(fleet: Fleet, recorded: Recorded, event: decisions.BuildSuspected) -> None:
    evidence = fleet.keys[event.kernel_key]
    evidence.standing = "suspect"
    evolve_checks.lose_evidence(fleet, event.kernel_key)
    evidence.suspect_led_us = fleet.led_us(recorded.at_us)
    evidence.suspect_position = recorded.position


def _failed(fleet: Fleet, recorded: Recorded, event: decisions.BuildFailed) -> None:
    fleet.keys[event.kernel_key].standing = "failed"
    evolve_checks.lose_evidence(fleet, event.kernel_key)


def _cleared(fleet: Fleet, recorded: Recorded, event: decisions.BuildCleared) -> None:
    evidence = fleet.keys[event.kernel_key]
    evidence.standing = "unknown"
    evidence.faulty_sets.add(event.node_fault_gpu_uuids)


def _granted(fleet: Fleet, recorded: Recorded, event: decisions.Granted) -> None:
    unit = fleet.units[event.unit]
    unit.take_grant(
        Grant(
            kernel_keys=event.kernel_keys,
            rollout=event.rollout,
            wave=event.wave,
            position=recorded.position,
            since_led_us=fleet.led_us(recorded.at_us),
            standing=event.code == "standing",
            launched=unit.launch is not None and unit.launch.decided is None,
        )
    )


def _grant_ended(fleet: Fleet, recorded: Recorded, event: decisions.GrantEnded) -> None:
    unit = fleet.units[event.unit]
    grant = unit.drop_grant(event.kernel_keys)
    for uuid in event.gpu_uuids:
        for key in event.kernel_keys:
            fleet.remember(uuid, key, event.code, recorded.position)
    if event.code in ("pinned_off", TAKEN_BACK_HERE):
        return  # a person decided: no sign about the others
    fleet.bad_signs.append((fleet.led_us(recorded.at_us), event.unit))
    if grant is None or grant.rollout is None:
        return
    for wave in fleet.rollouts[grant.rollout].watched:
        if event.unit in wave.members:  # also of a wave that passed before: it went bad after all
            wave.bad.add(event.unit)


def _target_faulted(fleet: Fleet, recorded: Recorded, event: decisions.TargetFaulted) -> None:
    for uuid in event.gpu_uuids:
        for key in event.kernel_keys:
            fleet.remember(uuid, key, "fault_in_service", recorded.position)
    fleet.bad_signs.append((fleet.led_us(recorded.at_us), event.unit))


def _wave_opened(fleet: Fleet, recorded: Recorded, event: decisions.WaveOpened) -> None:
    fleet.rollouts[event.rollout].waves.append(
        Wave(
            number=event.wave,
            units=event.units,
            eligible=event.eligible,
            position=recorded.position,
            since_led_us=fleet.led_us(recorded.at_us),
        )
    )


def _wave_joined(fleet: Fleet, recorded: Recorded, event: decisions.WaveJoined) -> None:
    waves = fleet.rollouts[event.rollout].waves
    wave = waves[event.wave]
    waves[event.wave] = replace(
        wave, units=wave.units + event.units, late=wave.late.union(event.units)
    )


def _wave_judged(fleet: Fleet, recorded: Recorded, event: decisions.WaveJudged) -> None:
    wave = fleet.rollouts[event.rollout].waves[event.wave]
    wave.verdict = event.verdict
    wave.good = event.good


def _completed(fleet: Fleet, recorded: Recorded, event: decisions.RolloutCompleted) -> None:
    rollout = fleet.rollouts[event.rollout]
    rollout.phase = "completed"
    rollout.phase_position = recorded.position
    rollout.completed_keys = event.kernel_keys


def _override_set(fleet: Fleet, recorded: Recorded, event: decisions.OverrideSet) -> None:
    guard.take_override(fleet, recorded, event)
    restoring.settle(fleet, event)
    unit = fleet.units[event.unit]
    unit.override = event
    unit.override_position = recorded.position
    evolve_drains.note_taken_back(fleet, unit, recorded)
    launch = unit.launch
    if launch is not None and set(event.launch_ids) & set(launch.launch_ids):
        launch.decided = event
        launch.decided_position = recorded.position
        grant = readings.grant_in_force(fleet, unit)
        if grant is not None and exposure.is_target(fleet, event):
            grant.launched = True


def _tripped(fleet: Fleet, recorded: Recorded, event: decisions.BreakerTripped) -> None:
    fleet.breaker_position = recorded.position
    fleet.breaker_led_us = fleet.led_us(recorded.at_us)
    fleet.breaker_units = event.units


def _episode_opened(fleet: Fleet, recorded: Recorded, event: decisions.EpisodeOpened) -> None:
    episode = fleet.episodes[event.episode] = Episode(
        id=event.episode,
        gate=event.gate,
        sm=event.sm,
        cause=event.cause,
        units=event.units,
        sentence=event.sentence,
        opened_us=recorded.at_us,
        position=recorded.position,
    )
    fleet.open_episodes[episode.gate, episode.sm, episode.cause] = episode.id


def _episode_updated(fleet: Fleet, recorded: Recorded, event: decisions.EpisodeUpdated) -> None:
    episode = fleet.episodes[event.episode]
    if event.units:
        episode.units = event.units
        episode.absent_led_us = None
    else:
        episode.absent_led_us = fleet.led_us(recorded.at_us)


def _episode_closed(fleet: Fleet, recorded: Recorded, event: decisions.EpisodeClosed) -> None:
    episode = fleet.episodes[event.episode]
    episode.closed_us = recorded.at_us
    fleet.open_episodes.pop((episode.gate, episode.sm, episode.cause), None)


def _timed_out(fleet: Fleet, recorded: Recorded, event: decisions.WaitTimedOut) -> None:
    fleet.timed_out.add(event.wait)
    if event.code == "wanted_check":
        key, _, launch_id = event.subject.partition("/")
        wanted = fleet.wanted.get((key, launch_id))
        if wanted is not None:
            wanted.abandoned = True
    elif event.code == "change_asked":
        evolve_changes.end(fleet, recorded, event.subject, "lapsed")
    elif event.code == "break_glass":
        evolve_changes.end(fleet, recorded, event.subject, "undone")


def _adopted(fleet: Fleet, recorded: Recorded, event: decisions.Adopted) -> None:
    unit = fleet.units[event.unit]
    unit.adoption = "adopted"
    unit.adopted_led_us = fleet.led_us(recorded.at_us)
    unit.adopted_position = recorded.position


def _disagreed(fleet: Fleet, recorded: Recorded, event: decisions.UnitDisagreed) -> None:
    unit = fleet.units[event.unit]
    unit.disagreed_launch_ids = event.launch_ids
    for uuid in event.gpu_uuids:
        for key in event.kernel_keys:
            fleet.remember(uuid, key, "unit_disagreed_here", recorded.position)


def _opening_recorded(fleet: Fleet, recorded: Recorded, event: decisions.OpeningRecorded) -> None:
    """What was folded already, for who cannot fold it."""


HANDLERS: dict[type, Handler] = {
    decisions.LeadershipTaken: _leadership,
    decisions.LogRestored: restoring.begin,
    decisions.OpeningRecorded: _opening_recorded,
    decisions.NodeWentSilent: _went_silent,
    decisions.NodeReturned: _returned,
    decisions.FleetUnreachable: _unreachable,
    decisions.FleetReachable: _reachable,
    decisions.SelfTestWanted: _wanted,
    decisions.BuildQualified: _qualified,
    decisions.BuildSuspected: _suspected,
    decisions.BuildFailed: _failed,
    decisions.BuildCleared: _cleared,
    decisions.Granted: _granted,
    decisions.GrantEnded: _grant_ended,
    decisions.TargetFaulted: _target_faulted,
    decisions.WaveOpened: _wave_opened,
    decisions.WaveJoined: _wave_joined,
    decisions.WaveJudged: _wave_judged,
    decisions.RolloutCompleted: _completed,
    decisions.OverrideSet: _override_set,
    decisions.BreakerTripped: _tripped,
    decisions.EpisodeOpened: _episode_opened,
    decisions.EpisodeUpdated: _episode_updated,
    decisions.EpisodeClosed: _episode_closed,
    decisions.WaitTimedOut: _timed_out,
    decisions.Adopted: _adopted,
    decisions.UnitDisagreed: _disagreed,
}
