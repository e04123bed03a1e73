"""Waves: when one opens, and how it is judged.

A wave passes only on evidence: a unit that was never heard of is no success, and a wave whose
sample is too small or whose success share was missed is inconclusive, which pauses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from smgate.domain import decisions, exposure, membership, policy, readings, rulings
from smgate.domain.events import Event
from smgate.domain.state import Fleet, Outcome, Rollout, Unit, Wave
from smgate.domain.waits import SECOND_US

OpenVerdict = Literal["passed", "failed", "inconclusive", "running"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Outcomes of one wave. Units that are gone or taken out by a person are in none of these."""

    good: tuple[str, ...]
    bad: tuple[str, ...]
    pending: tuple[str, ...]
    silent: tuple[str, ...] = ()
    """Nobody hears of these: nothing is waited for, and nothing is known that could pass."""
    late: frozenset[str] = frozenset()
    """Those of `pending` and `silent` that the wave passes without: they came while it was open, or
    were lost before they ever started on the target, and so hide nothing about it."""

    @property
    def sample(self) -> int:
        """Units with an outcome: the denominator."""
        return len(self.good) + len(self.bad)


def tally(fleet: Fleet, rollout: Rollout, wave: Wave) -> Tally:
    """Count the outcomes of a wave over its members."""
    kept = fleet.outcomes.setdefault((rollout.plan.id, wave.number), {})
    found: dict[Outcome, list[str]] = {"good": [], "bad": [], "pending": [], "silent": []}
    for name in wave.units:
        outcome = kept.get(name)
        if outcome is None:
            outcome = kept[name] = _outcome(fleet, rollout, wave, name)
        if outcome != "gone":
            found[outcome].append(name)
    return Tally(
        good=tuple(found["good"]),
        bad=tuple(found["bad"]),
        pending=tuple(found["pending"]),
        silent=tuple(found["silent"]),
        late=frozenset(wave.late.intersection((*found["pending"], *found["silent"])))
        | {name for name in found["silent"] if not _started(fleet.units[name])},
    )


def _outcome(fleet: Fleet, rollout: Rollout, wave: Wave, name: str) -> Outcome:
    unit = fleet.units.get(name)
    if name in wave.bad or (unit is not None and fell_back(fleet, unit)):
        return "bad"
    if unit is None or not unit.live or unit.taken_out:
        return "gone"
    if _silent(fleet, unit):
        return "silent"
    return "good" if exposure.good(fleet, unit, rollout) else "pending"


def _silent(fleet: Fleet, unit: Unit) -> bool:
    nodes = [fleet.nodes.get(rank.node) for rank in unit.known_ranks.values()]
    return any(node is None or node.silent for node in nodes)


def _started(unit: Unit) -> bool:
    """It was launched on what it was granted: from then on, silence may hide a bad sign."""
    return any(grant.launched for grant in unit.grants)


def fell_back(fleet: Fleet, unit: Unit) -> bool:
    """A granted launch that was seen in BF16: the override was not delivered.

    What the unit was before, or still is while it waits for its restart, says nothing of that.
    """
    grant = readings.grant_in_force(fleet, unit)
    if grant is None or not grant.launched or unit.launch is None:
        return False
    ids = unit.launch.launch_ids
    return any(i.fallback is not None and i.launch_id in ids for i in unit.instances.values())


def verdict(rollout: Rollout, counted: Tally) -> tuple[OpenVerdict, str]:
    """Judge a wave's outcomes by the plan recorded with the rollout. Boundaries count as reached."""
    plan = rollout.plan
    bad, sample = len(counted.bad), counted.sample
    awaited = [unit for unit in counted.pending if unit not in counted.late]
    members = sample + len(awaited) + len(set(counted.silent) - counted.late)
    needed = plan.min_sample if plan.min_sample is not None else members
    enough = sample > 0 and sample >= needed
    if bad >= plan.failures_max:
        return "failed", f"{bad} of {sample} went bad; {plan.failures_max} halt."
    if bad and enough and bad >= policy.share(plan.failure_percent, sample):
        return "failed", f"{bad} of {sample} went bad; {plan.failure_percent:g} % halt."
    if enough and len(counted.good) >= policy.share(plan.success_percent, sample):
        return "passed", f"{len(counted.good)} of {sample} baked."
    if awaited or (counted.pending and not enough):
        return "running", f"{len(counted.pending)} have no outcome yet, {sample} have."
    if not enough:
        silent = f" {len(counted.silent)} are silent." if counted.silent else ""
        return "inconclusive", f"{sample} have an outcome; {max(1, needed)} are needed.{silent}"
    return (
        "inconclusive",
        f"{len(counted.good)} of {sample} baked; {plan.success_percent:g} % are needed.",
    )


def _end_wave(
    rollout: Rollout, wave: Wave, counted: Tally, result: OpenVerdict, sentence: str
) -> list[Event]:
    assert result != "running"
    found: list[Event] = [
        decisions.WaveJudged(
            rollout=rollout.plan.id,
            wave=wave.number,
            verdict=result,
            good=counted.good,
            bad=counted.bad,
            sentence=sentence,
        )
    ]
    if result == "inconclusive":
        found.append(
            rulings.RolloutPaused(
                rollout=rollout.plan.id, code="wave_inconclusive", reason=sentence
            )
        )
    return found


def judge(fleet: Fleet, rollout: Rollout, now_us: int) -> list[Event]:
    """What the outcomes so far mean for a running or paused rollout."""
    wave = rollout.open_wave
    if rollout.phase not in ("running", "paused") or not rollout.watched:
        return []
    trouble = _trouble(fleet, rollout)
    if trouble is not None:
        halted = rulings.RolloutHalted(rollout=rollout.plan.id, code=trouble[0], reason=trouble[1])
        if wave is None:
            return [halted]
        counted = tally(fleet, rollout, wave)
        return [*_end_wave(rollout, wave, counted, "failed", trouble[1]), halted]
    if wave is None or rollout.phase == "paused":
        return []
    counted = tally(fleet, rollout, wave)
    result, sentence = verdict(rollout, counted)
    if result == "running":
        waited = fleet.led_us(now_us) - wave.since_led_us
        if waited < rollout.plan.wave_timeout_s * SECOND_US:
            return []
        result, sentence = "inconclusive", f"The wave's time ran out: {sentence}"
    return _end_wave(rollout, wave, counted, result, sentence)


def _trouble(fleet: Fleet, rollout: Rollout) -> tuple[str, str] | None:
    """A reason to halt now, in a pause too: a pause takes failures in."""
    counted = [(wave, tally(fleet, rollout, wave)) for wave in rollout.watched]
    for _, one in counted:
        for name in one.bad:
            unit = fleet.units.get(name)
            if unit is not None and fell_back(fleet, unit):
                return "memory_fallback", f"Unit {name} was seen in BF16: it was not delivered."
    for wave, one in counted:
        result, sentence = verdict(rollout, one)
        if result == "failed":
            name = "What was carried over" if wave is rollout.carried else f"Wave {wave.number}"
            return "wave_failed", f"{name}: {sentence}"
    failed = {key for key, evidence in fleet.keys.items() if evidence.standing == "failed"}
    granted = sorted(failed & _granted_keys(fleet, rollout)) if failed else []
    if granted:
        return "build_failed", f"Kernel key {granted[0]} failed its self-test in two chassis."
    return None


def advance(fleet: Fleet, rollout: Rollout, now_us: int) -> list[Event]:
    """Open the next wave, or complete the rollout, if nothing stands against it."""
    if rollout.phase != "running" or rollout.open_wave is not None:
        return []
    passed = not rollout.waves or rollout.waves[-1].verdict == "passed"
    if not passed or _evidence_in_doubt(fleet, rollout, now_us):
        return []
    if len(rollout.waves) == len(rollout.plan.waves):
        return [_complete(fleet, rollout)]
    if fleet.freezes or fleet.breaker_position is not None:
        return []
    found = membership.eligible(fleet, rollout, now_us)
    number = len(rollout.waves)
    new = membership.opening(fleet, rollout, found)
    if not new and (number == 0 or membership.awaits_named(fleet, rollout)):
        return []  # nothing to learn from yet: the rollout waits for units
    opened = decisions.WaveOpened(
        rollout=rollout.plan.id, wave=number, units=new, eligible=len(found)
    )
    return [opened] if new else [opened, _adds_nobody(rollout, number)]


def join(fleet: Fleet, rollout: Rollout, names: Sequence[str], now_us: int) -> list[Event]:
    """Let late units into the open wave: those of these names that may have become eligible."""
    wave = rollout.open_wave
    if rollout.phase != "running" or wave is None:
        return []
    if fleet.freezes or fleet.breaker_position is not None:
        return []
    new = membership.joining(fleet, rollout, wave, names, now_us)
    if not new or _evidence_in_doubt(fleet, rollout, now_us):
        return []
    return [decisions.WaveJoined(rollout=rollout.plan.id, wave=wave.number, units=new)]


def _evidence_in_doubt(fleet: Fleet, rollout: Rollout, now_us: int) -> bool:
    """A key it granted is suspect, or its evidence too old.

    Units of that key are not eligible now, so a wave would seem to have nobody left to take in.
    """
    oldest_us = now_us - fleet.policy.evidence_max_age_s * SECOND_US
    return any(
        fleet.keys[key].standing != "qualified" or fleet.keys[key].qualified_at_us < oldest_us
        for key in _granted_keys(fleet, rollout)
        if key in fleet.keys
    )


def _granted_keys(fleet: Fleet, rollout: Rollout) -> set[str]:
    return {
        key
        for unit in fleet.units.values()
        for grant in unit.grants
        if grant.rollout == rollout.plan.id
        for key in grant.kernel_keys
    }


def _adds_nobody(rollout: Rollout, number: int) -> Event:
    named = rollout.plan.waves[number].select is not None
    return decisions.WaveJudged(
        rollout=rollout.plan.id,
        wave=number,
        verdict="passed",
        good=(),
        bad=(),
        sentence="Every unit it names was in an earlier wave, has the target or was taken out."
        if named
        else "Every eligible unit was in an earlier wave, and those passed.",
    )


def _complete(fleet: Fleet, rollout: Rollout) -> Event:
    """The keys it ran: only those that a unit with a good outcome was granted."""
    keys = {
        key
        for wave in rollout.waves
        for name in wave.good
        if (unit := fleet.units.get(name)) is not None
        for grant in unit.grants
        if grant.rollout == rollout.plan.id
        for key in grant.kernel_keys
    }
    return decisions.RolloutCompleted(rollout=rollout.plan.id, kernel_keys=tuple(sorted(keys)))
