"""Controls: what makes a check able to tell right from wrong, on this run and for its probe version.

The negative control is in every run: the same output against a deliberately wrong reference must
fail. The positive control is the baseline's: a probe version counts on a candidate SM once it has
passed the required controlled checks on a baseline SM, where the target is known to be right.
"""

from __future__ import annotations

from collections.abc import Iterator

from smgate.domain.facts import CheckFinished
from smgate.domain.policy import Gate
from smgate.domain.state import Fleet
from smgate.domain.state_evidence import Unproven


def misses_control(fleet: Fleet, fact: CheckFinished) -> bool:
    """A controlled check that could not tell right from wrong is no evidence, either way.

    A failure whose control did not run is one all the same: a check that stops early never gets
    to its control.
    """
    controlled = {c for gate in fleet.gates.values() for c in gate.controlled_checks}
    if fact.check not in controlled:
        return False
    if fact.outcome == "failed":
        return fact.negative_control == "missed"
    return fact.outcome == "passed" and fact.negative_control != "caught"


def is_baseline(fleet: Fleet, sm: str | None) -> bool:
    """True if some gate names this SM as one where the target is known to be right."""
    return any(sm in gate.baseline_sms for gate in fleet.gates.values())


def proven(fleet: Fleet, gate: Gate, probe_version: str) -> bool:
    """True if a probe version passed every required controlled check on a baseline SM."""
    return all(
        any((sm, probe_version, check) in fleet.baseline_passes for sm in gate.baseline_sms)
        for check in gate.required_checks
        if check in gate.controlled_checks
    )


def lacks_baseline(fleet: Fleet, fact: CheckFinished) -> bool:
    """True if a result waits for its probe version to pass on a baseline SM.

    A baseline's own failure waits too: where the target is known to be right, a probe that never
    passed is more likely the wrong one.
    """
    if fleet.policy.baseline_proof != "required":
        return False
    for gate in fleet.gates.values():
        waits = fact.sm in gate.candidate_sms or (
            fact.sm in gate.baseline_sms and fact.outcome != "passed"
        )
        controlled = fact.check in gate.controlled_checks
        if waits and controlled and not proven(fleet, gate, fact.probe_version):
            return True
    return False


def held(fleet: Fleet) -> Iterator[Unproven]:
    """Every result that waits for a baseline's."""
    for evidence in fleet.keys.values():
        for result in evidence.sets.values():
            for one in result.unproven.values():
                if one.lacks == "baseline_proof":
                    yield one
