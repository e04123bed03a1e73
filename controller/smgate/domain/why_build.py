"""Why a kernel key stands where it stands: its evidence, what is missing, and who must act."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Final

from smgate.domain import evidence, likeness, reach, readings, waits
from smgate.domain.next_steps import next_step
from smgate.domain.policy import Gate
from smgate.domain.state import Fleet
from smgate.domain.state_evidence import GpuSet, KeyEvidence
from smgate.domain.why import NO_CHECK_ON_SILICON, iso
from smgate.domain.why_rollout import show_wait, wall

Row = dict[str, Any]


def _results(found: KeyEvidence, counting: Collection[GpuSet]) -> list[Row]:
    """What was measured of a kernel key, one entry per GPU set."""
    return [
        {
            "node": result.node,
            "chassis": result.chassis,
            "rack": result.rack,
            "pool": result.pool,
            "gpus": list(gpus),
            "at": iso(result.at_us) if result.at_us else None,
            "checks": {name: c.outcome for name, c in sorted(result.worst.items())},
            "reasons": {name: c.reason for name, c in sorted(result.worst.items())},
            "counts": gpus in counting,
            "flaky": sorted(result.flaky),
            "node_fault": gpus in found.faulty_sets,
            "confirmed": gpus in found.confirmed_sets,
        }
        for gpus, result in sorted(found.sets.items())
    ]


def _asked(fleet: Fleet, key: str) -> list[Row]:
    """Launches that were asked to measure this key, the open ones first."""
    until_us = fleet.policy.check_timeout_s * waits.SECOND_US
    found = [
        {
            "node": one.node,
            "launch_id": one.launch_id,
            "gpus": list(one.gpu_uuids),
            "purpose": one.purpose,
            "checks": list(one.checks),
            "finished": sorted(one.finished),
            "state": "open" if one.open else "abandoned" if one.abandoned else "done",
            "since": wall(fleet, one.since_led_us),
            "until": wall(fleet, one.since_led_us + until_us) if one.open else None,
        }
        for one in fleet.wanted.values()
        if one.kernel_key == key
    ]
    return sorted(found, key=lambda row: (row["state"] != "open", row["since"], row["node"]))


UNPROVEN: Final = {
    "negative_control": (
        "its negative control was not caught, so it cannot tell right from wrong",
        "Repair the check on that node, and run it again.",
    ),
    "baseline_proof": (
        "its probe version has not passed the required checks on a baseline SM",
        "Launch on a node of a baseline SM with this probe version, best in the pool.",
    ),
}


def _unproven(found: KeyEvidence) -> list[Row]:
    """Results that count for nothing: they block qualification and revoke nothing."""
    return [
        {
            "code": "check_unproven",
            "node": result.node,
            "gpus": list(gpus),
            "check": check,
            "outcome": one.fact.outcome,
            "probe_version": version,
            "lacks": one.lacks,
            "sentence": f"check_unproven: {check} {one.fact.outcome} on {result.node} with probe "
            f"version {version} counts for nothing, because {UNPROVEN[one.lacks][0]}.",
            "next_step": UNPROVEN[one.lacks][1],
        }
        for gpus, result in sorted(found.sets.items())
        for (check, version), one in sorted(result.unproven.items())
    ]


def explain_key(fleet: Fleet, key: str, now_us: int) -> Row:
    """Where a kernel key stands, on which evidence, what it still needs, and who must act."""
    found = fleet.keys[key]
    gate = evidence.gate_of_key(fleet, found)
    passing = evidence.passing_sets(found, gate, pool_only=True) if gate else []
    lacks = reach.lacking(fleet, found)
    unproven = _unproven(found)
    moves = _moves(fleet, found, gate, now_us)
    return {
        "sentence": " ".join(
            [f"Kernel key {key} is {found.standing}."]
            + [one["sentence"] for one in [*lacks, *unproven]]
        ),
        "kernel_key": key,
        "standing": found.standing,
        "accepted_like": found.accepted_like,
        "as_of_position": fleet.position,
        "now": iso(now_us),
        **_since(fleet, found),
        "fields": likeness.key_fields(found),
        "beside": {
            "driver_version": found.build.driver_version,
            "torch_version": found.build.torch_version,
            "torch_cuda": found.build.torch_cuda,
        },
        "pool_gpu_sets_passed": len(passing),
        "pool_gpu_sets_needed": fleet.policy.min_gpu_sets,
        "domains_passed": sorted(evidence.domains(found, passing)),
        "domains_needed": fleet.policy.min_domains,
        "required_checks": list(gate.required_checks) if gate else [],
        "can_never_qualify_as_things_stand": bool(lacks),
        "pool_lacks": lacks,
        "moves": moves,
        "asked": _asked(fleet, key),
        "nearest_qualified": reach.nearest(fleet, found),
        "results": _results(found, passing),
        "unproven": unproven,
        "units": sorted(
            name
            for name, unit in fleet.units.items()
            if unit.live
            and any(readings.rank_key(fleet, r) == key for r in unit.known_ranks.values())
        ),
        "note": NO_CHECK_ON_SILICON,
    }


def _since(fleet: Fleet, found: KeyEvidence) -> Row:
    """Since when it stands where it stands, and until when its evidence counts."""
    if found.standing == "qualified":
        age_us = fleet.policy.evidence_max_age_s * waits.SECOND_US
        return {"since": iso(found.qualified_at_us), "until": iso(found.qualified_at_us + age_us)}
    since = None
    if found.standing in ("suspect", "failed"):
        since = wall(fleet, found.suspect_led_us)
    return {"since": since, "until": None}


def _moves(fleet: Fleet, found: KeyEvidence, gate: Gate | None, now_us: int) -> list[Row]:
    """Whose move it is, since when and until when: what waits for an end, and what is missing."""
    key = found.key
    of_key = [
        show_wait(fleet, wait, now_us)
        for wait in waits.of_world(fleet, {}, now_us)
        if wait.subject.partition("/")[0] == key
    ]
    return [*of_key, *_missing(fleet, found, gate, now_us)]


def _missing(fleet: Fleet, found: KeyEvidence, gate: Gate | None, now_us: int) -> Iterator[Row]:
    """What no timer watches over, because it begins with somebody who acts."""
    policy, key = fleet.policy, found.key
    if gate is None:
        yield _move("operator", "no_gate", f"No gate is about SM {found.sm}.", "smgate gate show")
        return
    if found.standing == "failed":
        yield _move(
            "operator",
            "build_failed",
            "Its failure is confirmed: nothing measured from now on qualifies it.",
            "Use another build. If the nodes and not the build were at fault: smgate build rule "
            f"{key} --node NODE --as node-fault.",
        )
    if found.standing == "qualified" and (
        now_us - found.qualified_at_us > policy.evidence_max_age_s * waits.SECOND_US
    ):
        yield _move(
            "operator",
            "evidence_old",
            "Its evidence is too old: no new start counts on it.",
            next_step("evidence_old", {"key": key}),
        )
    if found.standing == "suspect":
        yield from _confirmation(fleet, found, gate)
    if found.standing != "unknown":
        return
    passing = evidence.passing_sets(found, gate, pool_only=True)
    racks = evidence.domains(found, passing)
    sets = max(0, policy.min_gpu_sets - len(passing))
    domains = max(0, policy.min_domains - len(racks))
    if sets or domains:
        asked = sum(one.open for one in fleet.wanted.values() if one.kernel_key == key)
        yield _move(
            "operator",
            "evidence_missing",
            f"{len(passing)} of {policy.min_gpu_sets} GPU sets of the pool passed "
            f"{', '.join(gate.required_checks)}, in {len(racks)} of {policy.min_domains} domains; "
            f"{asked} are being asked.",
            f"Start this build behind the launch gate on {max(sets, domains)} more pool nodes "
            "(drained or new): the checks are asked of it by themselves.",
        )


def _confirmation(fleet: Fleet, found: KeyEvidence, gate: Gate) -> Iterator[Row]:
    failed = evidence.open_failures(found, gate)
    if any(found.sets[gpus].flaky for gpus in failed):
        return  # no number of passes clears it: its own wait asks a person to rule
    chassis = sorted({found.sets[gpus].chassis for gpus in failed})
    passed = evidence.passed_since(found, gate, elsewhere_than=chassis)
    nodes = ", ".join(sorted({found.sets[gpus].node for gpus in failed}))
    yield _move(
        "operator",
        "confirmation",
        f"{len(passed)} of {fleet.policy.confirm_passes} GPU sets of other chassis passed since it "
        f"failed on {nodes}; that many make it the node's own fault, one more failure in another "
        "chassis the build's.",
        "Start this build behind the launch gate on pool nodes of other chassis, or rule: "
        f"smgate build rule {found.key} --node {nodes.partition(',')[0]} "
        "--as node-fault|confirmed|cleared",
    )


def _move(owner: str, code: str, sentence: str, step: str) -> Row:
    return {
        "code": code,
        "owner": owner,
        "since": None,
        "until": None,
        "overdue": False,
        "sentence": sentence,
        "next_step": step,
    }
