"""Why a kernel key stands where it stands: its evidence, what is missing, and who must act."""

from __future__ import annotations

from typing import Any, Final

from smgate.domain import evidence, reach, readings
from smgate.domain.state import Fleet
from smgate.domain.state_evidence import KeyEvidence
from smgate.domain.why import NO_CHECK_ON_SILICON, iso


def _results(found: KeyEvidence) -> list[dict[str, Any]]:
    """What was measured of a kernel key, one entry per GPU set."""
    return [
        {
            "node": result.node,
            "chassis": result.chassis,
            "pool": result.pool,
            "gpus": list(gpus),
            "checks": {name: c.outcome for name, c in sorted(result.worst.items())},
            "reasons": {name: c.reason for name, c in sorted(result.worst.items())},
            "flaky": sorted(result.flaky),
            "node_fault": gpus in found.faulty_sets,
            "confirmed": gpus in found.confirmed_sets,
        }
        for gpus, result in sorted(found.sets.items())
    ]


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


def _unproven(found: KeyEvidence) -> list[dict[str, Any]]:
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


def explain_key(fleet: Fleet, key: str, now_us: int) -> dict[str, Any]:
    """Where a kernel key stands and what it still needs."""
    found = fleet.keys[key]
    gate = evidence.gate_of_key(fleet, found)
    passing = evidence.passing_sets(found, gate, pool_only=True) if gate else []
    build = found.build
    lacks = reach.lacking(fleet, found)
    unproven = _unproven(found)
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
        "sm": found.sm,
        "a2a": found.a2a,
        "build": {
            "sglang_version": build.sglang_version,
            "flashinfer_version": build.flashinfer_version,
            "driver_version": build.driver_version,
            "cuda_toolkit": build.cuda_toolkit,
            "torch_cuda": build.torch_cuda,
        },
        "pool_gpu_sets_passed": len(passing),
        "pool_gpu_sets_needed": fleet.policy.min_gpu_sets,
        "required_checks": list(gate.required_checks) if gate else [],
        "can_never_qualify_as_things_stand": bool(lacks),
        "pool_lacks": lacks,
        "nearest_qualified": reach.nearest(fleet, found),
        "results": _results(found),
        "unproven": unproven,
        "units": sorted(
            name
            for name, unit in fleet.units.items()
            if unit.live
            and any(readings.rank_key(fleet, r) == key for r in unit.known_ranks.values())
        ),
        "note": NO_CHECK_ON_SILICON,
    }
