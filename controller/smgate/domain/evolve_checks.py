"""Fold of self-test results into the evidence for a kernel key: the worst result per GPU set wins."""

from __future__ import annotations

from smgate.domain import keys, readings
from smgate.domain.events import Recorded
from smgate.domain.facts import CheckFinished
from smgate.domain.state import Fleet, KeyEvidence, Node, Rank, SetEvidence

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
    for wanted in fleet.wanted.values():
        if wanted.launch_id == fact.launch_id and fact.check in wanted.checks:
            wanted.finished.add(fact.check)
    if key is None or fact.sm is None or not gpus:
        return
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
    reported = node.reported
    gpus = keys.gpu_set(fact.gpu_uuids)
    chassis = fact.chassis or (reported.chassis if reported else None) or node.name
    result = evidence.sets.get(gpus)
    if result is None:
        result = evidence.sets[gpus] = SetEvidence(
            node=node.name,
            chassis=chassis,
            rack=reported.rack if reported else None,
            pool=bool(reported and reported.pool),
        )
    if fact.outcome == "skipped":
        return  # absence, not evidence
    before = result.worst.get(fact.check)
    settled = before is not None and before.outcome in BAD_OUTCOMES
    if not settled and not _unproven(fleet, fact):
        result.worst[fact.check] = fact
        result.at_us = recorded.at_us
    if fact.outcome in BAD_OUTCOMES:
        result.failed_position = recorded.position
        if fact.check in _required_checks(fleet, evidence.sm):
            for uuid in gpus:
                fleet.gpu_memory.setdefault(
                    (uuid, evidence.key), ("self_test_failed", recorded.position)
                )
    else:
        result.passed_position = recorded.position


def _required_checks(fleet: Fleet, sm: str) -> set[str]:
    return {
        check
        for gate in fleet.gates.values()
        if sm in gate.candidate_sms or sm in gate.baseline_sms
        for check in gate.required_checks
    }


def _unproven(fleet: Fleet, fact: CheckFinished) -> bool:
    """A pass of a controlled check without its negative control caught is no evidence."""
    controlled = {c for gate in fleet.gates.values() for c in gate.controlled_checks}
    return (
        fact.outcome == "passed" and fact.check in controlled and fact.negative_control != "caught"
    )
