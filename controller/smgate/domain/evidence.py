"""The standing of kernel keys: qualified by count, suspect on the first failure, failed on the second.

A count, because a wrong kernel fails everywhere: three distinct GPU sets of the pool find a kernel
that is wrong on this SM as surely as three hundred would.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Literal

from smgate.domain import decisions, readings
from smgate.domain.events import Event
from smgate.domain.evolve_checks import BAD_OUTCOMES
from smgate.domain.policy import Gate
from smgate.domain.state import Fleet, Rank, Unit
from smgate.domain.state_evidence import GpuSet, KeyEvidence, SetEvidence
from smgate.domain.waits import SECOND_US

Purpose = Literal["qualify", "confirm", "prove"]
CONFIRM_ASKS_MAX = 3
"""Other GPU sets asked to confirm a first failure."""


def gate_of_key(fleet: Fleet, evidence: KeyEvidence) -> Gate | None:
    """The gate whose required checks judge this key."""
    for name in sorted(fleet.gates):
        gate = fleet.gates[name]
        if evidence.sm in gate.candidate_sms + gate.baseline_sms:
            return gate
    return None


def passed(result: SetEvidence, gate: Gate) -> bool:
    """True if every required check of this GPU set has passed and none has failed."""
    return all(
        check in result.worst and result.worst[check].outcome == "passed"
        for check in gate.required_checks
    )


def failed_check(result: SetEvidence, gate: Gate) -> str | None:
    """The first required check that failed on this GPU set."""
    for check in gate.required_checks:
        if check in result.worst and result.worst[check].outcome in BAD_OUTCOMES:
            return check
    return None


def passing_sets(
    evidence: KeyEvidence, gate: Gate, *, pool_only: bool, since: int = 0
) -> list[GpuSet]:
    """Disjoint GPU sets that passed, in a stable order: a GPU is never counted twice.

    With `since`, only those that passed every required check after that position in the log.
    """
    used: set[str] = set()
    found = []
    for gpus in sorted(evidence.sets):
        result = evidence.sets[gpus]
        if (pool_only and not result.pool) or not _passed_since(result, gate, since):
            continue
        if passed(result, gate) and not used.intersection(gpus):
            used.update(gpus)
            found.append(gpus)
    return found


def domains(evidence: KeyEvidence, sets: list[GpuSet]) -> set[str]:
    """The racks of these GPU sets; a chassis of no known rack is its own."""
    return {evidence.sets[g].rack or evidence.sets[g].chassis for g in sets}


def open_failures(evidence: KeyEvidence, gate: Gate) -> list[GpuSet]:
    """GPU sets with a failure that was not ruled the node's own."""
    return [
        gpus
        for gpus in sorted(evidence.sets)
        if gpus not in evidence.faulty_sets and failed_check(evidence.sets[gpus], gate) is not None
    ]


def judge(fleet: Fleet, evidence: KeyEvidence) -> Event | None:
    """The next change of a key's standing, or None."""
    gate = gate_of_key(fleet, evidence)
    if gate is None or evidence.standing == "failed":
        return None
    failures = open_failures(evidence, gate)
    if failures:
        return _judge_failures(fleet, evidence, gate, failures)
    if evidence.standing not in ("unknown", "qualified"):
        return None
    # A qualified key is qualified anew, so that its evidence is young again, once enough of the pool
    # has measured all of it since.
    passing = _measured(evidence, gate)
    racks = domains(evidence, passing)
    if len(passing) < fleet.policy.min_gpu_sets or len(racks) < fleet.policy.min_domains:
        return None
    return decisions.BuildQualified(kernel_key=evidence.key, gpu_sets=tuple(passing))


def _measured(evidence: KeyEvidence, gate: Gate) -> list[GpuSet]:
    """The pool's GPU sets that count for qualifying a key, or for qualifying it anew."""
    return passing_sets(evidence, gate, pool_only=True, since=_since(evidence))


def _since(evidence: KeyEvidence) -> int:
    """What was measured before this position has qualified the key already."""
    own = evidence.standing == "qualified" and evidence.accepted_like is None
    return evidence.qualified_position if own else 0


def _judge_failures(
    fleet: Fleet, evidence: KeyEvidence, gate: Gate, failures: list[GpuSet]
) -> Event | None:
    first = failures[0]
    chassis = sorted({evidence.sets[g].chassis for g in failures})
    if evidence.standing != "suspect":
        check = failed_check(evidence.sets[first], gate)
        assert check is not None
        return decisions.BuildSuspected(
            kernel_key=evidence.key,
            gpu_uuids=first,
            check=check,
            reason=evidence.sets[first].worst[check].reason,
        )
    if len(chassis) > 1:
        return decisions.BuildFailed(kernel_key=evidence.key, chassis=tuple(chassis))
    others = passed_since(evidence, gate, elsewhere_than=chassis)
    alone = len(failures) == 1 and not evidence.sets[first].flaky  # flaky: only a person rules
    if alone and len(others) >= fleet.policy.confirm_passes:
        return decisions.BuildCleared(
            kernel_key=evidence.key, node_fault_gpu_uuids=first, passed_gpu_sets=tuple(others)
        )
    return None


def _passed_since(result: SetEvidence, gate: Gate, position: int) -> bool:
    """True if every required check passed after this position: what ran before is no answer."""
    return all(result.passed.get(check, 0) > position for check in gate.required_checks)


def is_old(fleet: Fleet, evidence: KeyEvidence, now_us: int) -> bool:
    """True of a qualified key whose evidence starts nothing any more."""
    age_us = now_us - evidence.qualified_at_us
    return evidence.standing == "qualified" and age_us > fleet.policy.evidence_max_age_s * SECOND_US


def passed_since(
    evidence: KeyEvidence, gate: Gate, *, elsewhere_than: Collection[str]
) -> list[GpuSet]:
    """GPU sets of other chassis that passed after the key became suspect."""
    return [
        gpus
        for gpus in passing_sets(evidence, gate, pool_only=False)
        if evidence.sets[gpus].chassis not in elsewhere_than
        and _passed_since(evidence.sets[gpus], gate, evidence.suspect_position)
    ]


def standings(fleet: Fleet) -> list[Event]:
    """Changes of standing over all keys."""
    found = (judge(fleet, fleet.keys[key]) for key in sorted(fleet.keys))
    return [event for event in found if event is not None]


def _undecided(fleet: Fleet, units: Sequence[Unit]) -> Iterator[tuple[Unit, Rank, KeyEvidence]]:
    for unit in units:
        if unit.launch is None or unit.launch.decided is not None:
            continue
        for number in sorted(unit.launch.ranks):
            rank = unit.launch.ranks[number]
            key = readings.rank_key(fleet, rank)
            if key is not None and key in fleet.keys:
                yield unit, rank, fleet.keys[key]


def asks(fleet: Fleet, units: Sequence[Unit], now_us: int) -> list[Event]:
    """Checks to ask of launches that wait: pool nodes for a new key or an old one's, others to confirm."""
    found: list[Event] = []
    asked: dict[tuple[str, str], int] = {}
    undecided = list(_undecided(fleet, units))
    for wanted in fleet.wanted.values() if undecided else ():
        name = _asked_as(wanted.kernel_key, wanted.purpose)
        asked[name] = asked.get(name, 0) + (1 if wanted.open else 0)
    for _, rank, evidence in undecided:
        launch_id = rank.planned.launch_id
        gate = gate_of_key(fleet, evidence)
        if gate is None or (evidence.key, launch_id) in fleet.wanted:
            continue
        purpose = _purpose(fleet, rank, evidence, gate, now_us)
        if purpose is None:
            continue
        name = _asked_as(evidence.key, purpose)
        if asked.get(name, 0) >= _still_needed(fleet, evidence, gate, purpose):
            continue
        asked[name] = asked.get(name, 0) + 1
        found.append(
            decisions.SelfTestWanted(
                kernel_key=evidence.key,
                node=rank.node,
                gpu_uuids=rank.gpu_uuids,
                launch_id=launch_id,
                checks=gate.required_checks,
                purpose=purpose,
            )
        )
    return found


def _asked_as(key: str, purpose: Purpose) -> tuple[str, str]:
    """What a number of asks is counted for: a proof is of the probe, whatever the kernel key."""
    return ("" if purpose == "prove" else key, purpose)


def _still_needed(fleet: Fleet, evidence: KeyEvidence, gate: Gate, purpose: Purpose) -> int:
    """The fewest GPU sets that satisfy the policy, not one more."""
    if purpose == "prove":
        return 1
    if purpose == "confirm":
        return CONFIRM_ASKS_MAX
    passing = _measured(evidence, gate)
    return max(
        fleet.policy.min_gpu_sets - len(passing),
        fleet.policy.min_domains - len(domains(evidence, passing)),
    )


def _proof(fleet: Fleet, rank: Rank, *, may_ask: bool) -> Purpose | None:
    """A baseline's GPU set is asked for one proof of what the newest unproven probe measured."""
    if not may_ask or not fleet.unproven_probes:
        return None
    newest = max(probe.position for probe in fleet.unproven_probes.values())
    asked = any(
        wanted.purpose == "prove"
        and wanted.gpu_uuids == rank.gpu_uuids
        and wanted.position > newest
        for wanted in fleet.wanted.values()
    )
    return None if asked else "prove"


def _purpose(
    fleet: Fleet, rank: Rank, evidence: KeyEvidence, gate: Gate, now_us: int
) -> Purpose | None:
    """Why this launch would be asked, or None: observe mode leaves production launches alone."""
    node = fleet.nodes.get(rank.node)
    pool = bool(node and node.reported and node.reported.pool)
    seen = evidence.sets.get(rank.gpu_uuids)
    failed = seen is not None and failed_check(seen, gate) is not None
    enforced = fleet.mode_of(gate.id, evidence.sm) == "enforce"
    if evidence.sm in gate.baseline_sms:
        return _proof(fleet, rank, may_ask=pool or enforced)
    if failed or evidence.sm not in gate.candidate_sms:
        return None
    passing = _measured(evidence, gate)
    measured = (
        seen is not None and passed(seen, gate) and _passed_since(seen, gate, _since(evidence))
    )
    wanted = evidence.standing == "unknown" or is_old(fleet, evidence, now_us)
    if wanted and pool and not measured:
        enough = len(passing) >= fleet.policy.min_gpu_sets
        rack = (node.reported.rack or node.reported.chassis) if node and node.reported else None
        same = (rack or rank.node) in domains(evidence, passing)
        return None if enough and same else "qualify"  # only another rack is missing then
    if evidence.standing == "suspect" and (pool or enforced):
        return "confirm" if _may_confirm(fleet, rank, evidence, gate) else None
    return None


def _may_confirm(fleet: Fleet, rank: Rank, evidence: KeyEvidence, gate: Gate) -> bool:
    """True if a pass here would count: in no chassis that failed, and not measured since."""
    seen, node = evidence.sets.get(rank.gpu_uuids), fleet.nodes.get(rank.node)
    if seen is not None and _passed_since(seen, gate, evidence.suspect_position):
        return False
    reported = node.reported if node is not None else None
    chassis = seen.chassis if seen else (reported and reported.chassis) or rank.node
    return chassis not in {evidence.sets[g].chassis for g in open_failures(evidence, gate)}
