"""What the driver says of its GPUs, through NVML: no CUDA context is made, no GPU is touched."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from smgate_agent.launch import nvml_child

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

KERNEL_LOG = "/dev/kmsg"
LOG_RECORDS_MAX = 100_000
RECORD_BYTES_MAX = 8192
GPUS_MAX = 64
OK, TOO_SMALL = 0, 7
THOUSAND, TEN = 1000, 10
IDLE_BYTES_MAX = 1 << 28
"""An idle H200 says 0; one CUDA context alone takes twice this."""
_XID = re.compile(rb"NVRM: Xid \([^)]*\): (\d{1,5})")


class MemoryV2(ctypes.Structure):
    """`nvmlMemory_v2_t`. The first version counts what the driver keeps for itself as used."""

    _fields_ = [
        ("version", ctypes.c_uint),
        *((name, ctypes.c_ulonglong) for name in ("total", "reserved", "free", "used")),
    ]


MEMORY_V2 = ctypes.sizeof(MemoryV2) | 2 << 24


class Gpu(NamedTuple):
    """One GPU; None is what it did not answer."""

    uuid: str | None
    sm: str | None
    memory_bytes: int
    mig: bool | None
    processes: int | None
    """Processes with a CUDA context on it; in a container the driver may hide those of others."""
    used_bytes: int | None
    """Memory in use, the driver's own apart: it shows the processes that are hidden."""


class Driver(NamedTuple):
    """The driver of this machine, and the newest CUDA it runs."""

    version: str | None
    cuda: tuple[int, int] | None
    gpus: list[Gpu]


def load() -> Any:  # noqa: ANN401 (a library)
    """The driver's library, or None where there is none."""
    try:
        return ctypes.CDLL(nvml_child.LIBRARY)
    except OSError:
        return None


def read(nvml: Any) -> Driver | None:  # noqa: ANN401
    """What it says; None where there is no driver, or it does not answer."""
    if nvml is None:
        return None
    try:
        answer = nvml_child.read(nvml, [])
    except AttributeError:
        return None
    if not answer["answered"]:
        return None
    gpus = [
        Gpu(
            uuid=found["uuid"],
            sm=found["sm"],
            memory_bytes=found["memory_bytes"],
            mig=_mig(nvml, index),
            processes=_processes(nvml, index),
            used_bytes=_used_bytes(nvml, index),
        )
        for index, found in enumerate(answer["gpus"][:GPUS_MAX])
    ]
    return Driver(answer["driver_version"], _cuda(nvml), gpus)


def untouchable(found: Driver | None, own: list[str]) -> str | None:
    """Why a check must not put anything on these GPUs (all, if none are named); None if it may."""
    if found is None or not found.gpus:
        return "no_gpu"
    mine = [gpu for gpu in found.gpus if not own or gpu.uuid in own]
    if len(mine) < len(set(own)):
        return "gpu_not_found"
    if any(gpu.mig for gpu in mine):
        return "mig_not_covered"
    if any(gpu.processes is None or gpu.used_bytes is None for gpu in mine):
        return "gpu_use_unknown"
    busy = any(gpu.processes or (gpu.used_bytes or 0) > IDLE_BYTES_MAX for gpu in mine)
    return "gpu_in_use" if busy else None


def single_sm() -> str | None:
    """The SM all GPUs of this machine share, or None."""
    found = read(load())
    sms = {gpu.sm for gpu in found.gpus} if found else set()
    return sms.pop() if len(sms) == 1 else None


def _handle(nvml: Any, index: int) -> ctypes.c_void_p:  # noqa: ANN401
    handle = ctypes.c_void_p()
    nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle))
    return handle


def _mig(nvml: Any, index: int) -> bool | None:  # noqa: ANN401
    now, later = ctypes.c_uint(), ctypes.c_uint()
    with contextlib.suppress(AttributeError):
        handle = _handle(nvml, index)
        if nvml.nvmlDeviceGetMigMode(handle, ctypes.byref(now), ctypes.byref(later)) == OK:
            return now.value != 0
    return None


def _processes(nvml: Any, index: int) -> int | None:  # noqa: ANN401
    """Asked with room for none: the answer is how many there are."""
    count = ctypes.c_uint(0)
    with contextlib.suppress(AttributeError):
        ask = nvml.nvmlDeviceGetComputeRunningProcesses_v3
        if ask(_handle(nvml, index), ctypes.byref(count), None) in (OK, TOO_SMALL):
            return count.value
    return None


def _used_bytes(nvml: Any, index: int) -> int | None:  # noqa: ANN401
    memory = MemoryV2(version=MEMORY_V2)
    with contextlib.suppress(AttributeError):
        if nvml.nvmlDeviceGetMemoryInfo_v2(_handle(nvml, index), ctypes.byref(memory)) == OK:
            return int(memory.used)
    return None


def _cuda(nvml: Any) -> tuple[int, int] | None:  # noqa: ANN401
    version = ctypes.c_int()
    with contextlib.suppress(AttributeError):
        if nvml.nvmlSystemGetCudaDriverVersion_v2(ctypes.byref(version)) == OK:
            return version.value // THOUSAND, version.value % THOUSAND // TEN
    return None


def xids(records: Iterable[bytes] | None = None) -> list[int] | None:
    """Xids in the kernel's log, oldest first; None where it may not be read, as in most containers.

    They are of all GPUs since boot, and of whatever ran there: they explain, and decide nothing.
    """
    if records is not None:
        return [int(match[1]) for record in records for match in _XID.finditer(record)]
    try:
        descriptor = os.open(KERNEL_LOG, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        return xids(_records(descriptor))
    finally:
        os.close(descriptor)


def _records(descriptor: int) -> Iterator[bytes]:
    for _ in range(LOG_RECORDS_MAX):
        try:
            yield os.read(descriptor, RECORD_BYTES_MAX)
        except BrokenPipeError:
            continue  # overwritten while it was read: the next one follows
        except OSError:
            return  # BlockingIOError: that was the last one
