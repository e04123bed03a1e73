"""Check `inventory`: the GPUs that torch shows in SGLang's own runtime, and what it was built for."""

from __future__ import annotations

from typing import Any

SUPPORTED_MAJOR_MIN = 8


def run(_launch: dict[str, Any]) -> dict[str, Any]:
    """Passed if torch sees at least one GPU and all of them answer."""
    try:
        import torch
    except ImportError:
        return _result("error", "torch_missing")
    numbers = {"torch_cuda_major_minor": _number(torch.version.cuda)}
    if not torch.cuda.is_available():
        return _result("skipped", "no_gpu", numbers)
    count = torch.cuda.device_count()
    numbers["gpus"] = float(count)
    capabilities = [torch.cuda.get_device_capability(index) for index in range(count)]
    for index, (major, minor) in enumerate(capabilities):
        numbers[f"gpu{index}.sm"] = float(f"{major}.{minor}")
        memory = torch.cuda.get_device_properties(index).total_memory
        numbers[f"gpu{index}.memory_bytes"] = float(memory)
    if any(major < SUPPORTED_MAJOR_MIN for major, _ in capabilities):
        return _result("failed", "gpu_too_old", numbers)
    if len(set(capabilities)) > 1:
        return _result("failed", "sm_mixed", numbers)
    return _result("passed", "gpus_answer", numbers)


def _number(version: str | None) -> float:
    """Major and minor of a version as one number; 0 for a torch without CUDA."""
    parts = (version or "").split(".")
    try:
        return float(".".join(parts[:2]))
    except ValueError:
        return 0.0


def _result(outcome: str, reason: str, numbers: dict[str, float] | None = None) -> dict[str, Any]:
    return {"outcome": outcome, "reason": reason, "numbers": numbers or {}}
