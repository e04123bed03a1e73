"""Fold of self-test results into the evidence for a kernel key: the worst result per GPU set wins."""

from __future__ import annotations

from dataclasses import replace

from smgate.domain import keys, proof, readings
from smgate.domain.events import Recorded
from smgate.domain.facts import CheckFinished
from smgate.domain.rulings import BuildAccepted, CheckRuled
from smgate.domain.state import Fleet, Rank
from smgate.domain.state_evidence import (
    GpuSet,
    KeyEvidence,
    SetEvidence,
    Unproven,
    UnprovenProbe,
)
from smgate.domain.state_nodes import Node

BAD_OUTCOMES = ("failed", "error", "timeout")
"""A crash or a timeout of a check counts as its failure."""


def note_key(fleet: Fleet, rank: Rank, recorded: Recorded) -> None:
    """A launch introduces its kernel key, before any evidence exists."""
    key, sm = readings.rank_key(fleet, rank), readings.rank_sm(fleet, rank)
    if key is not None and sm is not None and key not in fleet.keys:
        fleet.keys[key] = KeyEvidence(
            key=key,
            sm=sm,
            build=rank.planned.build,
            layout=rank.planned.layout,
            a2a=readings.rank_a2a(rank),
            position=recorded.position,
        )


def take_check(fleet: Fleet, node: Node, recorded: Recorded, fact: CheckFinished) -> None:
    """Take one finished check into the evidence of its kernel key."""
    key = keys.kernel_key(sm=fact.sm, build=fact.build, layout=fact.layout, a2a=fact.a2a)
    gpus = keys.gpu_set(fact.gpu_uuids)
    for wanted in fleet.launch_wants.get(fact.launch_id or "", ()):
        if fact.check in wanted.checks:
            wanted.finished.add(fact.check)
    known = {fleet.gpu_sms.get(uuid) for uuid in gpus} - {None}
    if key is None or fact.sm is None or not gpus or not known <= {fact.sm}:
        return  # of no key, or of another SM than its GPUs are: no evidence
    evidence = fleet.keys.get(key)
    if evidence is None:
        evidence = fleet.keys[key] = KeyEvidence(
            key=key,
            sm=fact.sm,
            build=fact.build,
            layout=fact.layout,
            a2a=fact.a2a,
            position=recorded.position,
        )
    _take_result(fleet, evidence, node, recorded, fact)


def _take_result(
    fleet: Fleet, evidence: KeyEvidence, node: Node, recorded: Recorded, fact: CheckFinished
) -> None:
    gpus = keys.gpu_set(fact.gpu_uuids)
    result = _set_of(evidence, node, gpus, fact)
    if fact.outcome == "skipped":
        return  # absence, not evidence
    one = Unproven(
        fact=fact,
        position=recorded.position,
        at_us=recorded.at_us,
        since_led_us=fleet.led_us(recorded.at_us),
        lacks="negative_control",
    )
    if proof.misses_control(fleet, fact):
        result.unproven[(fact.check, fact.probe_version)] = one
    elif proof.lacks_baseline(fleet, fact):
        _hold(fleet, result, replace(one, lacks="baseline_proof"))
    else:
        _count(fleet, evidence, gpus, one)
        if fact.outcome == "passed" and proof.is_baseline(fleet, fact.sm):
            fleet.baseline_passes.add((evidence.sm, fact.probe_version, fact.check))
            release(fleet)


def _hold(fleet: Fleet, result: SetEvidence, one: Unproven) -> None:
    """Keep a result until its probe version is proven: the worst of them, as of those that count."""
    name = (one.fact.check, one.fact.probe_version)
    before = result.unproven.get(name)
    bad = before is not None and before.fact.outcome in BAD_OUTCOMES
    if before is None or before.lacks != "baseline_proof" or not bad:
        result.unproven[name] = one
    fleet.unproven_probes.setdefault(
        one.fact.probe_version,
        UnprovenProbe(position=one.position, since_led_us=fleet.led_us(one.at_us)),
    )


def release(fleet: Fleet) -> None:
    """Count what was held and waits for nothing any more, in the order it was measured."""
    if not fleet.unproven_probes:
        return
    for evidence in fleet.keys.values():
        for gpus, result in evidence.sets.items():
            ready = [
                one
                for one in result.unproven.values()
                if one.lacks == "baseline_proof" and not proof.lacks_baseline(fleet, one.fact)
            ]
            for one in sorted(ready, key=lambda one: one.position):
                _count(fleet, evidence, gpus, one)
    _note_waiting(fleet)


def _note_waiting(fleet: Fleet) -> None:
    """A probe version waits only as long as a result of it is held."""
    waiting = {one.fact.probe_version for one in proof.held(fleet)}
    for version in fleet.unproven_probes.keys() - waiting:
        del fleet.unproven_probes[version]


def _count(fleet: Fleet, evidence: KeyEvidence, gpus: GpuSet, one: Unproven) -> None:
    """Take a result that can tell right from wrong: the worst of a GPU set is kept."""
    fact, result = one.fact, evidence.sets[gpus]
    result.unproven.pop((fact.check, fact.probe_version), None)
    before = result.worst.get(fact.check)
    settled = before is not None and before.outcome in BAD_OUTCOMES
    if not settled:
        result.worst[fact.check] = fact
        result.at_us = one.at_us
    elif fact.outcome == "passed":
        if not result.flaky:
            result.flaky_led_us = fleet.led_us(one.at_us)
            result.flaky_position = one.position
        result.flaky.add(fact.check)
    if fact.outcome in BAD_OUTCOMES:
        if fact.check in _required_checks(fleet, evidence.sm):
            for uuid in gpus:
                fleet.remember(uuid, evidence.key, "self_test_failed", one.position)
    else:
        result.passed[fact.check] = one.position


def take_ruling(fleet: Fleet, recorded: Recorded, event: CheckRuled) -> None:
    """Take a person's ruling on one GPU set's result."""
    evidence = fleet.keys.get(event.kernel_key)
    gpus = keys.gpu_set(event.gpu_uuids)
    if evidence is None or gpus not in evidence.sets:
        return
    evidence.faulty_sets.discard(gpus)
    evidence.confirmed_sets.discard(gpus)
    if event.ruling == "confirmed":
        evidence.confirmed_sets.add(gpus)
    elif event.ruling == "node_fault":
        evidence.faulty_sets.add(gpus)
    else:
        _forget(fleet, evidence, gpus)
    before, counted = evidence.standing, counted_failures(fleet, evidence)
    if evidence.confirmed_sets:
        evidence.standing = "failed"
    elif not counted:
        evidence.standing = "unknown" if before in ("suspect", "failed") else before
    elif before == "failed" and len({evidence.sets[g].chassis for g in counted}) == 1:
        evidence.standing = "suspect"
    if evidence.standing != before:
        lose_evidence(fleet, evidence.key)
        evidence.suspect_led_us = fleet.led_us(recorded.at_us)
        evidence.suspect_position = recorded.position


def take_acceptance(fleet: Fleet, recorded: Recorded, event: BuildAccepted) -> None:
    """A key stands on another one's evidence, which is as old as it is there."""
    evidence, like = fleet.keys.get(event.kernel_key), fleet.keys.get(event.like)
    if evidence is not None and like is not None:
        evidence.standing = "qualified"
        evidence.accepted_like = like.key
        evidence.qualified_at_us = like.qualified_at_us


def lose_evidence(fleet: Fleet, key: str) -> None:
    """A key is no longer qualified: what was accepted as like it has to be measured itself."""
    fleet.keys[key].accepted_like = None
    for other in fleet.keys.values():
        if other.accepted_like == key:
            other.accepted_like = None
            if other.standing == "qualified":
                other.standing = "unknown"


def _forget(fleet: Fleet, evidence: KeyEvidence, gpus: GpuSet) -> None:
    """Nothing was measured here. Another set's failure on one of these GPUs is still remembered."""
    del evidence.sets[gpus]
    _note_waiting(fleet)
    required = _required_checks(fleet, evidence.sm)
    failed = {u for g, result in evidence.sets.items() if _fails(result, required) for u in g}
    for uuid in gpus:
        memory = fleet.gpu_memory.get((uuid, evidence.key))
        if memory is not None and memory[0] == "self_test_failed" and uuid not in failed:
            del fleet.gpu_memory[(uuid, evidence.key)]


def _fails(result: SetEvidence, required: set[str]) -> bool:
    return any(c in required and r.outcome in BAD_OUTCOMES for c, r in result.worst.items())


def failed_sets(fleet: Fleet, evidence: KeyEvidence) -> list[GpuSet]:
    """GPU sets with a failure of a required check, whoever's it is."""
    required = _required_checks(fleet, evidence.sm)
    return [g for g in sorted(evidence.sets) if _fails(evidence.sets[g], required)]


def counted_failures(fleet: Fleet, evidence: KeyEvidence) -> list[GpuSet]:
    """GPU sets with a failure of a required check that is not the node's own."""
    return [g for g in failed_sets(fleet, evidence) if g not in evidence.faulty_sets]


def _set_of(evidence: KeyEvidence, node: Node, gpus: GpuSet, fact: CheckFinished) -> SetEvidence:
    """The evidence of one GPU set. Sets that share a GPU are of one chassis, whatever nodes say."""
    reported = node.reported
    rack, pool = (reported.rack, reported.pool) if reported is not None else (None, False)
    found = evidence.sets.get(gpus)
    if found is not None:
        found.rack, found.pool = rack or found.rack, pool or found.pool
        return found
    sharing = [evidence.sets[g].chassis for g in sorted(evidence.sets) if set(g) & set(gpus)]
    named = fact.chassis or (reported.chassis if reported is not None else None) or node.name
    chassis = sharing[0] if sharing else named
    evidence.sets[gpus] = SetEvidence(node=node.name, chassis=chassis, rack=rack, pool=pool)
    return evidence.sets[gpus]


def _required_checks(fleet: Fleet, sm: str) -> set[str]:
    return {
        check
        for gate in fleet.gates.values()
        if sm in gate.candidate_sms or sm in gate.baseline_sms
        for check in gate.required_checks
    }
