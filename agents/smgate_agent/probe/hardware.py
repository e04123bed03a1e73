"""Which GPUs a kernel check runs on, and what it finds prebuilt there. Nothing is compiled or fetched.

A launch waits for its checks, and a serving node is no build machine: over an hour of nvcc was measured
for one FlashInfer module. What is not there is a reason to skip, and it is there after the first start
of a server, or with the flashinfer-jit-cache and flashinfer-cubin packages.
"""

from __future__ import annotations

import os
from typing import Any

import torch

from smgate_agent import probe
from smgate_agent.probe import driver, ending, kernel, prebuilt

Json = dict[str, Any]

CPU = "cpu"
FUSED_SMS = (100, 103, 107)
"""FlashInfer has trtllm-gen MoE kernels for these alone."""
RUBIN = 107
QUANTIZER_MODULES = ("flashinfer.quantization.fp4_quantization", "flashinfer.fp4_quantization")


def devices(launch: Json) -> list[str]:
    """The devices to run on: the launch's GPUs, or all; `cpu` only where the launch says so.

    The driver is asked first, while this process has no context on any of them.

    Raises:
        EndedError: skipped, there is no GPU, or one may not be touched.
    """
    if launch.get("device") == CPU:
        return [CPU]
    reason = driver.untouchable(driver.read(driver.load()), launch.get("gpu_uuids") or [])
    if reason is not None:
        raise ending.EndedError("skipped", reason)
    return visible(launch)


def visible(launch: Json) -> list[str]:
    """The launch's GPUs as torch numbers them, or all; whether they may be touched is not asked.

    Raises:
        EndedError: torch shows no GPU.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        raise ending.EndedError("skipped", "no_gpu")
    wanted = launch.get("gpu_uuids") or ()
    own = [index for index in range(count) if _uuid(index) in wanted]
    return [f"cuda:{index}" for index in own or range(count)]


def _uuid(index: int) -> str:
    return f"GPU-{getattr(torch.cuda.get_device_properties(index), 'uuid', '')}"


def prepare(device: str) -> int:
    """Make this the device, with exact products; its compute capability, 0 for the CPU.

    One thread on the CPU: several wait for each other at every small operation.
    """
    if device == CPU:
        torch.set_num_threads(1)
        return 0
    torch.cuda.set_device(device)
    torch.backends.cuda.matmul.allow_tf32 = False
    major, minor = torch.cuda.get_device_capability(device)
    return int(major) * 10 + int(minor)


def require_fused_moe(found: int) -> None:
    """Raise unless this GPU has the fused kernel and its module is built already.

    Raises:
        EndedError: skipped, with the reason.
    """
    if found not in FUSED_SMS:
        numbers = {"sm": found / 10}
        raise ending.EndedError("skipped", "sm_not_supported", numbers)
    os.environ["FLASHINFER_NO_DOWNLOAD"] = "1"
    prebuilt.load_what_is_built()
    _require_built(
        "gen_trtllm_gen_fused_moe_sm100_module",
        ("flashinfer.jit.fused_moe", "flashinfer.jit"),
        enable_rubin=found == RUBIN,
    )
    _require_built(f"gen_fp4_quantization_sm{found}_module", QUANTIZER_MODULES)


def require_quantizers(found: int) -> None:
    """Raise unless the quantisers' modules are built already, or may be compiled now (a minute).

    Raises:
        EndedError: skipped, with the reason.
    """
    if os.environ.get(probe.ALLOW_COMPILE):
        return
    os.environ["FLASHINFER_NO_DOWNLOAD"] = "1"
    prebuilt.load_what_is_built()
    _require_built(f"gen_fp4_quantization_sm{found}_module", QUANTIZER_MODULES)


def _require_built(maker: str, modules: tuple[str, ...], **given: bool) -> None:
    """Ask FlashInfer for a module's description. A version without one is asked nothing."""
    try:
        make = kernel.find(maker, *modules)
    except kernel.CallableMissingError:
        return
    with ending.named("description"):
        spec = make(**kernel.accepted(make, given))
    if getattr(spec, "is_compiled", True) is False:
        numbers = {"sources": float(len(getattr(spec, "sources", ()) or ()))}
        raise ending.EndedError("skipped", "kernels_not_prebuilt", numbers)
