"""Check `inventory`: the driver and torch, in SGLang's own runtime, show the same GPUs.

SGLang asks torch, the launch gate and the resident agent ask the driver: where the two differ, what
is decided for one GPU is done on another.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from smgate_agent.probe import driver
from smgate_agent.probe.results import Numbers, result

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SUPPORTED_MAJOR_MIN = 8
MEMORY_TOLERANCE = 0.05
"""NVML counts what the driver keeps for itself: 0.4 % on an H200."""


def run(launch: dict[str, Any]) -> dict[str, Any]:
    """Passed if torch sees at least one GPU, all of them answer, and the driver agrees."""
    try:
        import torch
    except ImportError:
        return result("error", "torch_missing")
    numbers: Numbers = {"torch_cuda_major_minor": _number(torch.version.cuda)}
    found = driver.read(driver.load())
    _add_driver(numbers, found)
    if not torch.cuda.is_available():
        outcome, reason = _without_gpu(torch.version.cuda, found, os.environ)
        return result(outcome, reason, numbers)
    gpus = [_torch_gpu(torch, index) for index in range(torch.cuda.device_count())]
    numbers["gpus"] = float(len(gpus))
    for index, gpu in enumerate(gpus):
        numbers[f"gpu{index}.sm"] = float(gpu.sm or 0)
        numbers[f"gpu{index}.memory_bytes"] = float(gpu.memory_bytes)
    if found is None:
        return result("error", "nvml_silent", numbers)
    for reason in problems(gpus, found.gpus, launch.get("gpu_uuids") or [], os.environ):
        return result("failed", reason, numbers)
    return result("passed", "gpus_answer", numbers)


def _add_driver(numbers: Numbers, found: driver.Driver | None) -> None:
    logged = driver.xids()
    if logged is not None:
        numbers["xids_logged"] = float(len(logged))
    if logged:
        numbers["xid_last"] = float(logged[-1])
    if found is None:
        return
    numbers["nvml.gpus"] = float(len(found.gpus))
    numbers["nvml.mig_gpus"] = float(sum(bool(gpu.mig) for gpu in found.gpus))
    numbers["nvml.busy_gpus"] = float(sum(bool(gpu.processes) for gpu in found.gpus))
    if found.cuda is not None:
        numbers["driver_cuda_major_minor"] = float(f"{found.cuda[0]}.{found.cuda[1]}")


def _without_gpu(
    built_for: str | None, found: driver.Driver | None, environ: Mapping[str, str]
) -> tuple[str, str]:
    """Why torch sees none."""
    if found is None or not found.gpus:
        return "skipped", "no_gpu"
    if environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1", "NoDevFiles"):
        return "skipped", "no_gpu_visible"
    if built_for is None:
        return "failed", "torch_without_cuda"
    if found.cuda is not None and _number(built_for) // 1 > found.cuda[0]:
        return "failed", "driver_too_old_for_cuda"
    return "failed", "torch_sees_no_gpu"


def _torch_gpu(torch: Any, index: int) -> driver.Gpu:  # noqa: ANN401 (a module)
    major, minor = torch.cuda.get_device_capability(index)
    properties = torch.cuda.get_device_properties(index)
    uuid = getattr(properties, "uuid", None)  # torch before 2.5 has none
    return driver.Gpu(
        uuid=None if uuid is None else f"GPU-{str(uuid).removeprefix('GPU-')}",
        sm=f"{major}.{minor}",
        memory_bytes=int(properties.total_memory),
        mig=None,
        processes=None,
        used_bytes=None,
    )


def problems(
    torch_gpus: list[driver.Gpu],
    driver_gpus: list[driver.Gpu],
    launched: list[str],
    environ: Mapping[str, str],
) -> Iterator[str]:
    """What is wrong with these GPUs, and what torch and the driver say differently of them.

    Of a machine with MIG only the SM can be compared.
    """
    if any(float(gpu.sm or 0) < SUPPORTED_MAJOR_MIN for gpu in torch_gpus):
        yield "gpu_too_old"
    if len({gpu.sm for gpu in torch_gpus}) > 1:
        yield "sm_mixed"
    if "CUDA_VISIBLE_DEVICES" not in environ and len(torch_gpus) != len(driver_gpus):
        yield "gpu_count_disagrees"
    if any(gpu.mig for gpu in driver_gpus):
        if not {gpu.sm for gpu in torch_gpus} <= {gpu.sm for gpu in driver_gpus}:
            yield "sm_disagrees"
        return
    by_uuid = {gpu.uuid: gpu for gpu in driver_gpus}
    seen = {gpu.uuid for gpu in torch_gpus}
    for index, gpu in enumerate(torch_gpus):
        if gpu.uuid is None:
            yield f"gpu_uuid_unknown:gpu{index}"
        elif gpu.uuid not in by_uuid:
            yield f"gpu_uuid_disagrees:gpu{index}"
        else:
            yield from _differences(index, gpu, by_uuid[gpu.uuid])
    if any(uuid.startswith("GPU-") and uuid not in seen for uuid in launched):
        yield "launched_gpu_not_visible"


def _differences(index: int, gpu: driver.Gpu, other: driver.Gpu) -> Iterator[str]:
    if gpu.sm != other.sm:
        yield f"sm_disagrees:gpu{index}"
    if abs(gpu.memory_bytes - other.memory_bytes) > MEMORY_TOLERANCE * other.memory_bytes:
        yield f"memory_disagrees:gpu{index}"


def _number(version: str | None) -> float:
    """Major and minor of a version as one number; 0 for a torch without CUDA."""
    parts = (version or "").split(".")
    try:
        return float(".".join(parts[:2]))
    except ValueError:
        return 0.0
