"""GPUs by NVML: what they are, and Xid errors as they happen. No CUDA context is ever made.

On a machine without an NVIDIA driver the inventory says so; nothing else changes.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final

from smgate.wire import facts
from smgate_agent import clock

_NAME_CHARACTERS_MAX: Final = 200
_GPUS_MAX: Final = 64
REPEAT_S: Final = 600.0
"""A GPU in trouble repeats one Xid many times a second."""


@dataclass(frozen=True, kw_only=True)
class Inventory:
    """The GPUs of this machine. `reason` says why there are none to see."""

    gpus: tuple[facts.Gpu, ...] = ()
    driver_version: str | None = None
    reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One Xid."""

    gpu_uuid: str
    xid: int


class Nvml:
    """NVML, once it is opened. A driver in trouble may hold a call for ever: use a thread."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self.reason: str | None = None

    def open(self) -> None:
        """Load NVML; where that is not possible, `reason` says why."""
        try:
            import pynvml
        except ImportError:
            self.reason = "nvidia-ml-py is not installed"
            return
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as exc:
            self.reason = f"no NVIDIA driver answers ({type(exc).__name__})"
            return
        self._nvml = pynvml

    def inventory(self) -> Inventory:
        """All GPUs; a GPU that does not answer a question is listed without that answer."""
        if self._nvml is None:
            return Inventory(reason=self.reason)
        try:
            driver = str(self._nvml.nvmlSystemGetDriverVersion())
            gpus = tuple(self._gpu(handle) for handle in self._handles())
        except self._nvml.NVMLError as exc:
            return Inventory(reason=f"the NVIDIA driver does not answer ({type(exc).__name__})")
        reason = None if gpus else "the driver sees no GPU"
        return Inventory(gpus=gpus, driver_version=driver, reason=reason)

    def users(self) -> dict[str, frozenset[int]] | None:
        """Processes that use each GPU, by its UUID; None where the driver does not say."""
        if self._nvml is None:
            return None
        try:
            return {
                str(self._nvml.nvmlDeviceGetUUID(handle)): frozenset(
                    int(one.pid) for one in self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)
                )
                for handle in self._handles()
            }
        except self._nvml.NVMLError:
            return None

    def faults(self, *, wait_ms: int) -> Iterator[Fault | None]:
        """Xids as they come; None after a wait without one. Ends where events are not supported."""
        if self._nvml is None:
            return
        nvml = self._nvml
        try:
            events = nvml.nvmlEventSetCreate()
            for handle in self._handles():
                nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
        except nvml.NVMLError:
            return
        while True:
            try:
                event = nvml.nvmlEventSetWait_v2(events, wait_ms)
                uuid = str(nvml.nvmlDeviceGetUUID(event.device))
            except nvml.NVMLError_Timeout:
                yield None
            except nvml.NVMLError:
                return
            else:
                yield Fault(gpu_uuid=uuid, xid=int(event.eventData))

    def _handles(self) -> Iterator[Any]:
        for index in range(min(_GPUS_MAX, self._nvml.nvmlDeviceGetCount())):
            yield self._nvml.nvmlDeviceGetHandleByIndex(index)

    def _gpu(self, handle: Any) -> facts.Gpu:  # noqa: ANN401 # a ctypes handle
        nvml = self._nvml
        sm, memory_bytes, name = None, 0, ""
        with contextlib.suppress(nvml.NVMLError):
            major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
            sm = f"{major}.{minor}"
        with contextlib.suppress(nvml.NVMLError):
            memory_bytes = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
        with contextlib.suppress(nvml.NVMLError):
            name = _label(str(nvml.nvmlDeviceGetName(handle)))
        uuid = str(nvml.nvmlDeviceGetUUID(handle))
        return facts.Gpu(uuid=uuid, sm=sm, name=name, memory_bytes=memory_bytes)


def keep_known(before: Inventory, now: Inventory) -> Inventory:
    """What a driver hiccup hides stays as it was last seen."""
    if not now.gpus:
        return before if before.gpus else now
    known = {gpu.uuid: gpu for gpu in before.gpus}
    gpus = tuple(
        facts.Gpu(
            uuid=gpu.uuid,
            sm=gpu.sm or known[gpu.uuid].sm,
            name=gpu.name or known[gpu.uuid].name,
            memory_bytes=gpu.memory_bytes or known[gpu.uuid].memory_bytes,
        )
        if gpu.uuid in known
        else gpu
        for gpu in now.gpus
    )
    return Inventory(gpus=gpus, driver_version=now.driver_version or before.driver_version)


class FaultLog:
    """Counts Xids and says which are worth a fact: one that repeats is one fact in ten minutes."""

    def __init__(self, clock_: clock.Clock) -> None:
        self._clock = clock_
        self._lock = threading.Lock()
        self._said_s: dict[Fault, float] = {}
        self._counts: dict[str, int] = {}

    def add(self, fault: Fault) -> bool:
        """Count one; True if it should be said."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            self._counts[fault.gpu_uuid] = self._counts.get(fault.gpu_uuid, 0) + 1
            said_s = self._said_s.get(fault)
            if said_s is not None and now_s < said_s + REPEAT_S:
                return False
            self._said_s[fault] = now_s
            return True

    def count(self, gpu_uuids: Collection[str]) -> int:
        """Xids so far on these GPUs; on all of them if none are named."""
        with self._lock:
            return sum(
                count for uuid, count in self._counts.items() if not gpu_uuids or uuid in gpu_uuids
            )


def _label(text: str) -> str:
    """A driver's text as the wire takes it: printable and short."""
    return "".join(c for c in text if c.isprintable())[:_NAME_CHARACTERS_MAX]
