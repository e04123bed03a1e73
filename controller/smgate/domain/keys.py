"""Names computed from facts: the kernel key, the unit, the GPU set.

The launch gate holds its own copy of `kernel_key`; golden vectors keep the two equal.
"""

from __future__ import annotations

import functools
import hashlib
import json
import operator
from collections.abc import Callable
from typing import Final

from smgate.domain.facts import InstanceChanged, LaunchPlanned
from smgate.domain.values import Build, Layout

KEY_HEX_DIGITS = 16
KEYS_KEPT = 4_096
"""Kernel keys remembered: every launch and every check has one, and few are distinct."""
GPU_SETS_KEPT = 131_072
"""GPU sets remembered: what a node says names its GPUs again and again."""


def canonical_digest(value: object) -> str:
    """First 16 hex digits of SHA-256 over canonical JSON (sorted keys, no spaces, UTF-8)."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_HEX_DIGITS]


def driver_branch(driver_version: str | None) -> str | None:
    """The branch: "580" of "580.159.04"; None if unknown."""
    return None if driver_version is None else driver_version.partition(".")[0]


def layout_class(layout: Layout, a2a: str) -> dict[str, object]:
    """The per-rank shape of the experts, and the a2a backend: part of the kernel key."""
    tensor_ranks = max(1, layout.tp // layout.ep)
    return {
        "a2a": a2a,
        "experts_per_rank": layout.experts // layout.ep,
        "hidden_size": layout.hidden_size,
        "intermediate_per_rank": layout.intermediate_size // tensor_ranks,
        "top_k": layout.top_k,
    }


def missing_essentials(build: Build) -> tuple[str, ...]:
    """Fields of a build without which it has no kernel key.

    `torch_cuda` is not part of the key, but decides whether SGLang can run the target at all.
    """
    names = ("sglang_version", "flashinfer_version", "driver_version", "torch_cuda")
    return tuple(name for name in names if getattr(build, name) is None)


def kernel_key(*, sm: str | None, build: Build, layout: Layout, a2a: str) -> str | None:
    """Hash of what a kernel result depends on, or None if any of the essentials is unknown.

    Equal key, same evidence; so a build with an unknown essential has no key at all: two
    different builds must never share one because both were unread.
    """
    branch = driver_branch(build.driver_version)
    if sm is None or missing_essentials(build):
        return None
    pins = tuple(sorted(build.artifact_pins.items()))
    return _hashed(sm, a2a, layout, branch, pins, *_OF_BUILD(build))


_OF_BUILD: Final[Callable[[Build], tuple[str | None, ...]]] = operator.attrgetter(
    "cuda_toolkit",
    "cute_dsl_version",
    "flashinfer_commit",
    "flashinfer_version",
    "jit_cache_version",
    "sglang_version",
)


@functools.lru_cache(maxsize=KEYS_KEPT)
def _hashed(  # noqa: PLR0913  all that a kernel result depends on
    sm: str,
    a2a: str,
    layout: Layout,
    branch: str | None,
    pins: tuple[tuple[str, str], ...],
    cuda_toolkit: str | None,
    cute_dsl_version: str | None,
    flashinfer_commit: str | None,
    flashinfer_version: str | None,
    jit_cache_version: str | None,
    sglang_version: str | None,
) -> str:
    shape = layout_class(layout, a2a)
    del shape["a2a"]
    return canonical_digest(
        {
            "a2a": a2a,
            "artifact_pins": dict(pins),
            "cuda_toolkit": cuda_toolkit,
            "cute_dsl_version": cute_dsl_version,
            "driver_branch": branch,
            "flashinfer_commit": flashinfer_commit,
            "flashinfer_version": flashinfer_version,
            "jit_cache_version": jit_cache_version,
            "layout": shape,
            "sglang_version": sglang_version,
            "sm": sm,
        }
    )


@functools.lru_cache(maxsize=GPU_SETS_KEPT)
def gpu_set(uuids: tuple[str, ...]) -> tuple[str, ...]:
    """A GPU set in its one order."""
    return tuple(sorted(set(uuids)))


def unit_id(node: str, planned: LaunchPlanned | InstanceChanged, uuids: tuple[str, ...]) -> str:
    """The unit a rank belongs to.

    Of one node: the node and its sorted GPU UUIDs. Of several: the name given with `--unit`, else
    the workload's stable name, else the rendezvous address. A one-node unit ignores given names:
    in most stacks all pods of a deployment carry identical arguments.
    """
    if planned.nnodes > 1:
        name = planned.unit_name or planned.workload or planned.rendezvous
        if name is not None:
            return name
    return f"{node}:{_gpus_digest(uuids)}"


@functools.lru_cache(maxsize=GPU_SETS_KEPT)
def _gpus_digest(uuids: tuple[str, ...]) -> str:
    gpus = gpu_set(uuids)
    return canonical_digest(list(gpus))[:8] if gpus else "nogpu"
