"""What kernel keys and checks wait for: a person's ruling, a repaired check, a baseline's proof."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from smgate.domain.state import Fleet
from smgate.domain.state_evidence import KeyEvidence, SetEvidence, Unproven

W = TypeVar("W")


def flaky(fleet: Fleet, evidence: KeyEvidence, make: Callable[..., W]) -> Iterator[W]:
    """Results that passed after they failed: each waits for a person's ruling."""
    for gpus in sorted(evidence.sets):
        result = evidence.sets[gpus]
        ruled = gpus in evidence.faulty_sets or gpus in evidence.confirmed_sets
        if not result.flaky or ruled or evidence.standing == "failed":
            continue
        yield make(
            code="flaky",
            subject=f"{evidence.key}/{gpus[0]}",
            owner="approver",
            since_led_us=result.flaky_led_us,
            position=result.flaky_position,
            timeout_s=fleet.policy.confirm_timeout_s,
            sentence=f"{', '.join(sorted(result.flaky))} passed after it failed on {result.node}: "
            "flaky counts as failed until a person rules.",
            next_step=f"smgate build rule {evidence.key} --gpus {','.join(gpus)} "
            "--as node-fault|confirmed|cleared",
        )


def _uncontrolled(fleet: Fleet, make: Callable[..., W]) -> Iterator[W]:
    """Checks that could not tell right from wrong: one wait for each and its probe version."""
    found: dict[tuple[str, str], list[tuple[Unproven, SetEvidence, str]]] = {}
    for evidence in fleet.keys.values():
        for result in evidence.sets.values():
            for name, one in result.unproven.items():
                if one.lacks == "negative_control":
                    found.setdefault(name, []).append((one, result, evidence.key))
    for (check, version), results in sorted(found.items()):
        first, at, key = min(results, key=lambda one: one[0].position)
        others = f" and {len(results) - 1} other GPU sets" if len(results) > 1 else ""
        yield make(
            code="check_unproven",
            subject=f"{version}/{check}",
            owner="operator",
            since_led_us=first.since_led_us,
            position=first.position,
            timeout_s=fleet.policy.confirm_timeout_s,
            sentence=f"{check} of probe version {version} counts for nothing on {at.node}{others}: "
            "its negative control was not caught.",
            next_step="Repair the check and run it again, or forget what it measured: "
            f"smgate build rule {key} --node {at.node} --as cleared",
        )


def unproven(fleet: Fleet, make: Callable[..., W]) -> Iterator[W]:
    """Probe versions whose results are held until a baseline proves them."""
    yield from _uncontrolled(fleet, make)
    for version in sorted(fleet.unproven_probes):
        probe = fleet.unproven_probes[version]
        yield make(
            code="check_unproven",
            subject=version,
            owner="operator",
            since_led_us=probe.since_led_us,
            position=probe.position,
            timeout_s=fleet.policy.confirm_timeout_s,
            sentence=f"Results of probe version {version} count for nothing yet: it has not passed "
            "the required checks on a baseline SM.",
            next_step="Launch on a node of a baseline SM with this probe version, best in the pool; "
            "or forget what it measured: smgate build rule KEY --node NODE --as cleared",
        )
