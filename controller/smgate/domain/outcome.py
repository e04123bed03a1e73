"""The outcome table: what SGLang can run MXFP4 experts on, and which value is safe.

`tests/sglang/test_outcome.py` compares this module with SGLang's own `Mxfp4MoEMethod` for every
runner, a2a, SM and torch CUDA it names, so a value that kills a server is never called safe by
reading alone. A version, runner or a2a that was not run there has no answer here: `not_run`.
"""

from __future__ import annotations

import functools
from typing import Final, Literal

TARGET: Final = "flashinfer_mxfp4"
SAFE: Final = "marlin"

Refusal = Literal["not_run", "no_device_class", "no_fused_function"]

REFUSALS: Final[dict[Refusal, str]] = {
    "not_run": "Nobody ran this combination of SGLang version, runner and a2a backend.",
    "no_device_class": (
        "SGLang sees none of SM90, SM100 or SM120 here, and this runner needs one of them: "
        "the server dies (flashinfer_mxfp4 at construction, marlin after loading)."
    ),
    "no_fused_function": (
        "This runner has no fused function for this a2a backend: the server dies at construction."
    ),
}

VERSIONS_RUN: Final = frozenset(
    {"0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23"},
)
"""Run by the tests: 0.5.23 always, 0.5.18 by `make test-all`, the rest where SMGATE_TEST_SGLANG names
them, which nothing does by itself: they were run whole when their rules were written down."""

RUNNERS_RUN: Final = frozenset({"auto", "triton", SAFE, TARGET, "deep_gemm"})
A2A_RUN: Final = frozenset({"none", "deepep", "mooncake", "megamoe", "flashinfer"})

SAFE_SMS: Final = frozenset({"9.0", "10.0", "10.3", "10.7", "12.0", "12.1"})
"""Where marlin is the safe value. 8.0 and 11.0 have none; SGLang would build it on 10.1, but
nobody serves the gate's model there."""

_TARGET_WITHOUT_RUNNER: Final = frozenset({"0.5.18", "0.5.19"})
"""Here SM100 runs the target without a MoeRunner: a wrong a2a is not noticed at construction."""

CASES_KEPT: Final = 4096
"""Answers kept: a fleet asks for every unit and has few distinct cases."""

_ONLY_FUSED: Final = frozenset({SAFE, TARGET})
_CLASS_OF_MAJOR: Final = {9: "sm90", 10: "sm100", 12: "sm120"}
_FIRST_CUDA: Final = {"sm90": (12, 3), "sm100": (12, 8), "sm120": (12, 8)}


def split_sm(sm: str) -> tuple[int, int]:
    """Compute capability "major.minor" as two numbers; ValueError for anything else."""
    major, dot, minor = sm.partition(".")
    if not (dot and major.isascii() and minor.isascii() and major.isdigit() and minor.isdigit()):
        raise ValueError(f"SM {sm!r} is not major.minor")
    return int(major), int(minor)


def cuda_at_least(torch_cuda: str | None, wanted: tuple[int, int]) -> bool:
    """Whether torch was built for this CUDA or a newer one; None is a torch without CUDA."""
    if torch_cuda is None:
        return False
    parts = torch_cuda.split(".")[:2]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise ValueError(f"torch CUDA {torch_cuda!r} is not a version")
    return tuple(int(part) for part in parts) >= wanted


def device_class(*, sm: str, torch_cuda: str | None) -> str | None:
    """What SGLang takes the GPU for: sm90, sm100, sm120 or none of them.

    The class needs the major number and a torch built for a CUDA that knows it. SM110 has no class.
    """
    found = _CLASS_OF_MAJOR.get(split_sm(sm)[0])
    if found is None or not cuda_at_least(torch_cuda, _FIRST_CUDA[found]):
        return None
    return found


@functools.lru_cache(maxsize=CASES_KEPT)
def raises(
    *, runner: str, a2a: str, sm: str, sglang_version: str, torch_cuda: str | None
) -> Refusal | None:
    """Why a server with this resolved (runner, a2a) pair would die while it makes its experts.

    None means that it gets past them, not that it is right: on SM90 and SM120 the target runs
    another activation than Kimi K3's.
    """
    if (
        sglang_version not in VERSIONS_RUN
        or runner not in RUNNERS_RUN
        or a2a not in A2A_RUN
        or torch_cuda is None
    ):
        return "not_run"
    if runner not in _ONLY_FUSED:
        return None
    found = device_class(sm=sm, torch_cuda=torch_cuda)
    if runner == TARGET and found is None:
        return "no_device_class"
    if a2a != "none" and not _needs_no_moe_runner(
        runner=runner, a2a=a2a, found=found, sglang_version=sglang_version
    ):
        return "no_fused_function"
    return None if found else "no_device_class"


def _needs_no_moe_runner(*, runner: str, a2a: str, found: str | None, sglang_version: str) -> bool:
    """The target alone can do without a MoeRunner, whose making asks for the fused function."""
    if runner != TARGET:
        return False
    if sglang_version in _TARGET_WITHOUT_RUNNER:
        return found == "sm100"
    # The target only prepares weights here; DeepGEMM runs them.
    return a2a == "megamoe"


@functools.lru_cache(maxsize=CASES_KEPT)
def safe_value(*, sm: str, a2a: str, sglang_version: str, torch_cuda: str | None) -> str | None:
    """The packed runner that is known to work here, or None where there is none.

    With a torch built for a CUDA that does not know the GPU (below 12.8 on SM10x and SM12x, below
    12.3 on SM90) SGLang refuses marlin too, so there is none.
    """
    if sm not in SAFE_SMS:
        return None
    refusal = raises(
        runner=SAFE, a2a=a2a, sm=sm, sglang_version=sglang_version, torch_cuda=torch_cuda
    )
    return SAFE if refusal is None else None
