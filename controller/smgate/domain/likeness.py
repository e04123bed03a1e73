"""What sets two kernel keys apart, field by field, and the nearest key that is qualified.

A person may accept that one key is like another (`build accept --like`) only where they differ in
`MAY_DIFFER`: how the same kernels are packaged, and how one model is cut over its ranks. What
brings other kernels, another compiler, another driver or another model is never like.
"""

from __future__ import annotations

from typing import Any, Final

from smgate.domain import keys
from smgate.domain.state import Fleet
from smgate.domain.state_evidence import KeyEvidence

MAY_DIFFER: Final = (
    "jit_cache_version",
    "cute_dsl_version",
    "experts_per_rank",
    "intermediate_per_rank",
)

Differences = dict[str, tuple[str, str]]
"""Field to the two values of it, as text."""


def key_fields(evidence: KeyEvidence) -> dict[str, str]:
    """Every field that makes this kernel key, as text."""
    build = evidence.build
    fields: dict[str, Any] = {
        "sm": evidence.sm,
        "sglang_version": build.sglang_version,
        "flashinfer_version": build.flashinfer_version,
        "flashinfer_commit": build.flashinfer_commit,
        "artifact_pins": ",".join(f"{n}={d}" for n, d in sorted(build.artifact_pins.items())),
        "jit_cache_version": build.jit_cache_version,
        "cute_dsl_version": build.cute_dsl_version,
        "cuda_toolkit": build.cuda_toolkit,
        "driver_branch": keys.driver_branch(build.driver_version),
        **keys.layout_class(evidence.layout, evidence.a2a),
    }
    return {name: "unknown" if value is None else str(value) for name, value in fields.items()}


def differences(one: KeyEvidence, other: KeyEvidence) -> Differences:
    """The fields in which two kernel keys differ."""
    mine, theirs = key_fields(one), key_fields(other)
    return {name: (mine[name], theirs[name]) for name in mine if mine[name] != theirs[name]}


def nearest_qualified(fleet: Fleet, evidence: KeyEvidence) -> KeyEvidence | None:
    """The qualified key that differs in the fewest fields, of the same SM if there is one."""
    qualified = (e for e in fleet.keys.values() if e.standing == "qualified" and e is not evidence)
    return min(
        qualified,
        key=lambda e: (e.sm != evidence.sm, len(differences(evidence, e)), e.key),
        default=None,
    )
