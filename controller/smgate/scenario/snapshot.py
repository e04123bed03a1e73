"""What stands at one moment of a scenario: overrides, verdicts, alarms, waits, counts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from smgate.domain import (
    alarms,
    announced,
    changes,
    decisions,
    exposure,
    rules,
    take_back,
    waits,
    waves,
)
from smgate.domain.state import Fleet, Unit
from smgate.domain.state_rollouts import Rollout, Wave
from smgate.domain.waits import SECOND_US
from smgate.domain.why import iso
from smgate.domain.why_rollout import show_wait

Reason = tuple[str, tuple[str, ...]]
"""A sentence, and further codes."""


class Snapshots:
    """Takes one snapshot after another of one fold."""

    def __init__(self) -> None:
        self._reasons: Final = Reasons()

    def take(self, fleet: Fleet, now_us: int, *, held: Mapping[str, int]) -> dict[str, Any]:
        """What stands now; `held` is the position up to which each node was told."""
        self._reasons.look(fleet, now_us)
        return _snapshot(fleet, self._reasons, now_us) | {"take_back": _take_back(fleet, held)}


class Reasons:
    """The sentence and further reasons of each override, worked out anew only where they may differ.

    A unit is not told anew when only these change, so its recorded decision has those of its own
    moment.
    """

    def __init__(self) -> None:
        self._position = -1
        self._old_keys: frozenset[str] = frozenset()
        self._known: Final[dict[str, Reason]] = {}

    def look(self, fleet: Fleet, now_us: int) -> None:
        """Forget what may differ by now."""
        oldest_us = now_us - fleet.policy.evidence_max_age_s * SECOND_US
        old_keys = frozenset(k for k, one in fleet.keys.items() if one.qualified_at_us < oldest_us)
        limited = fleet.policy.exposure_limit_units is not None  # others count for that too
        if fleet.world_position > self._position or old_keys != self._old_keys or limited:
            self._known.clear()
        for unit in fleet.units:
            if fleet.touched.get(unit, 0) > self._position or _waits_for_flights(fleet, unit):
                self._known.pop(unit, None)
        self._position, self._old_keys = fleet.position, old_keys

    def of(self, fleet: Fleet, unit: Unit, now_us: int) -> Reason:
        """The sentence now, and the codes beside the one that decided."""
        if unit.id not in self._known:
            fresh = rules.decide_unit(fleet, unit.id, now_us).event
            told = unit.override
            holds = fresh if told is None or fresh.code == told.code else told
            self._known[unit.id] = (holds.sentence, holds.also)
        return self._known[unit.id]


def _waits_for_flights(fleet: Fleet, unit: str) -> bool:
    """A member of an open wave without a grant: others in flight may hold it up."""
    return fleet.units[unit].grant is None and any(
        unit in wave.units
        for rollout in fleet.rollouts.values()
        if rollout.phase == "running"
        for wave in rollout.waves
    )


def _snapshot(fleet: Fleet, reasons: Reasons, now_us: int) -> dict[str, Any]:
    units = [fleet.units[name] for name in sorted(fleet.units) if fleet.units[name].live]
    return {
        "overrides": {
            unit.id: _override(unit, unit.override, reasons.of(fleet, unit, now_us))
            for unit in units
            if unit.override is not None
        },
        "rollouts": {name: _rollout(fleet, name) for name in sorted(fleet.rollouts)},
        "kernel_keys": {key: fleet.keys[key].standing for key in sorted(fleet.keys)},
        "announced": {
            name: announced.kernel_keys(fleet, fleet.announced[name])
            for name in sorted(fleet.announced)
        },
        "alarms": [
            {
                "cause": episode.cause,
                "gate": episode.gate,
                "sm": episode.sm,
                "units": list(episode.units),
                "since": iso(episode.opened_us),
                "absent": episode.absent_led_us is not None,
            }
            for _, episode in sorted(alarms.open_episodes(fleet).items())
        ],
        "waits": [show_wait(fleet, wait, now_us) for wait in waits.collect(fleet, now_us)],
        "changes": [_change(one) for one in changes.show_open(fleet, now_us)],
        "exposed": [unit.id for unit in units if exposure.exposed(fleet, unit)],
        "uncontrolled": [unit.id for unit in units if exposure.uncontrolled(fleet, unit)],
        "silent": sorted(name for name, node in fleet.nodes.items() if node.silent),
        "freezes": sorted(fleet.freezes),
        "breaker_open": fleet.breaker_position is not None,
    }


def _take_back(fleet: Fleet, held: Mapping[str, int]) -> dict[str, Any]:
    stages = take_back.stages(fleet, held)
    return {sm: dataclasses.asdict(stages[sm]) for sm in sorted(stages)}


def _change(shown: dict[str, Any]) -> dict[str, Any]:
    """An open change; that it is overdue and what to do about it is said with its wait."""
    names = ("id", "kind", "code", "command", "body", "by", "reason", "sentence", "units")
    return {name: shown[name] for name in (*names, "would", "numbers", "since", "until")}


def _override(unit: Unit, override: decisions.OverrideSet, reason: Reason) -> dict[str, Any]:
    would = override.would
    sentence, also = reason
    return {
        "form": override.form,
        "value": override.value,
        "code": override.code,
        "sentence": sentence,
        "also": list(also),
        "would": None
        if would is None
        else {"form": would.form, "value": would.value, "code": would.code},
        "no_safe_value": override.no_safe_value,
        "lease_s": override.lease_s,
        "nodes": list(override.nodes),
        "sm": override.given_for.sm,
        "kernel_key": override.given_for.kernel_key,
        "facts": list(override.facts),
        "as_of_position": override.as_of_position,
        "rules_version": override.rules_version,
        "granted": unit.grant is not None,
        "launch_decided": unit.launch is None or unit.launch.decided is not None,
        "effective": _effective(unit),
    }


def _effective(unit: Unit) -> list[dict[str, Any]]:
    """What the unit's running servers attested, one entry per instance."""
    return [
        {
            "instance": instance.id,
            "node": instance.node,
            "state": instance.state,
            "runner": None if instance.effective is None else instance.effective.runner,
            "a2a": None if instance.effective is None else instance.effective.a2a,
            "memory_fallback": instance.fallback,
        }
        for instance in unit.live_instances()
    ]


def _rollout(fleet: Fleet, name: str) -> dict[str, Any]:
    rollout = fleet.rollouts[name]
    return {
        "phase": rollout.phase,
        "halted_code": rollout.halted_code,
        "author": rollout.author,
        "approver": rollout.approver,
        "approvers": list(rollout.approvers),
        "completed_keys": list(rollout.completed_keys),
        "waves": [_wave(fleet, rollout, wave) for wave in rollout.waves],
    }


def _wave(fleet: Fleet, rollout: Rollout, wave: Wave) -> dict[str, Any]:
    counted = waves.tally(fleet, rollout, wave)
    result, sentence = waves.verdict(rollout, counted.counts)
    # What was good when the wave was judged stays so, unless it went bad after all or was taken back.
    good = {*counted.good, *(set(wave.good) - wave.revoked)} - set(counted.bad)
    return {
        "wave": wave.number,
        "units": list(wave.units),
        "verdict": wave.verdict or result,
        "sentence": sentence if wave.verdict is None else None,
        "good": sorted(good),
        "bad": sorted(counted.bad),
        "pending": sorted(set(counted.pending) - good),
        "silent": sorted(set(counted.silent) - good),
    }
