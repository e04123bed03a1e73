"""Commands about one kernel key: rulings on what was measured, and what it is like."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from smgate.domain import commands, evolve_checks, keys, likeness, rulings
from smgate.domain.errors import RejectedError
from smgate.domain.events import Event
from smgate.domain.state import Fleet
from smgate.domain.state_evidence import GpuSet, KeyEvidence


def find_key(fleet: Fleet, key: str) -> KeyEvidence:
    """A kernel key that a launch or a check has made.

    Raises:
        RejectedError: `unknown_build`.
    """
    found = fleet.keys.get(key)
    if found is None:
        raise RejectedError(
            code="unknown_build",
            message=f"No kernel key {key!r}.",
            next_step="See `smgate build ls`.",
        )
    return found


def _gpu_set(fleet: Fleet, evidence: KeyEvidence, command: commands.RuleBuild) -> GpuSet:
    """The GPU set that is ruled on: named by its GPUs, or by a node that has only one."""
    if bool(command.gpu_uuids) == (command.node is not None):
        raise RejectedError(
            code="bad_ruling",
            message="A ruling is on one GPU set.",
            next_step="Give either the node or the GPU UUIDs.",
        )
    bad = evolve_checks.failed_sets(fleet, evidence)
    if command.ruling == "cleared":  # what is held for a proof can be forgotten too
        bad = sorted({*bad, *(g for g, result in evidence.sets.items() if result.unproven)})
    asked = keys.gpu_set(command.gpu_uuids)
    found = [g for g in bad if g == asked or evidence.sets[g].node == command.node]
    if not found:
        raise RejectedError(
            code="no_failure",
            message=f"Kernel key {evidence.key} has no failed result there.",
            next_step=f"smgate build why {evidence.key} lists what was measured where.",
        )
    if len(found) > 1:
        raise RejectedError(
            code="ambiguous_gpu_set",
            message=f"Node {command.node} has {len(found)} GPU sets with a failed result.",
            next_step=f"Give the GPU UUIDs, such as {','.join(found[0])}.",
        )
    return found[0]


def _rule(fleet: Fleet, command: commands.RuleBuild, by: str) -> tuple[Event, ...]:
    evidence = find_key(fleet, command.kernel_key)
    gpus = _gpu_set(fleet, evidence, command)
    ruled = {"node_fault": evidence.faulty_sets, "confirmed": evidence.confirmed_sets}
    if gpus in ruled.get(command.ruling, ()):
        return ()
    return (
        rulings.CheckRuled(
            kernel_key=evidence.key, gpu_uuids=gpus, ruling=command.ruling, reason=command.reason
        ),
    )


def _accept(fleet: Fleet, command: commands.AcceptBuild, by: str) -> tuple[Event, ...]:
    evidence, like = find_key(fleet, command.kernel_key), find_key(fleet, command.like)
    if evidence.standing == "qualified":
        return ()
    if evidence.standing != "unknown":
        raise RejectedError(
            code=f"build_{evidence.standing}",
            message=f"Kernel key {evidence.key} is {evidence.standing}: it was measured itself.",
            next_step=f"smgate build rule {evidence.key}, where its failure was no failure.",
        )
    if like.standing != "qualified":
        raise RejectedError(
            code="build_not_qualified",
            message=f"Kernel key {like.key} is {like.standing}.",
            next_step="Name a key that is qualified: smgate build ls.",
        )
    if like.accepted_like is not None:
        raise RejectedError(
            code="not_measured",
            message=f"Kernel key {like.key} was itself accepted as like {like.accepted_like}.",
            next_step=f"Compare with what was measured: --like {like.accepted_like}.",
        )
    differs = likeness.differences(evidence, like)
    other = [name for name in differs if name not in likeness.MAY_DIFFER]
    if other:
        raise RejectedError(
            code="too_different",
            message=f"They differ in {', '.join(other)}: that is another kernel, or may be.",
            next_step=f"Run the checks on pool nodes: smgate build why {evidence.key}.",
        )
    return (
        rulings.BuildAccepted(
            kernel_key=evidence.key, like=like.key, differs=differs, reason=command.reason
        ),
    )


Handler = Callable[[Fleet, Any, str], tuple[Event, ...]]

HANDLERS: Final[dict[type, Handler]] = {
    commands.RuleBuild: _rule,
    commands.AcceptBuild: _accept,
}
