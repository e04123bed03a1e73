"""Asks the driver for its GPUs through NVML, without CUDA. A script: a hung driver hangs only it.

Arguments are MIG device names to look up. It prints one marked line and imports nothing of the
gate, which passes this file's text to `python -c`.
"""

import ctypes
import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

LIBRARY = "libnvidia-ml.so.1"
TEXT_BYTES = 96
MARK = "smgate-result "


class Memory(ctypes.Structure):
    """`nvmlMemory_t`."""

    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


def text_of(function: "Callable[..., int]", *arguments: ctypes.c_void_p) -> "str | None":
    """Call a function that fills a text buffer."""
    buffer = ctypes.create_string_buffer(TEXT_BYTES)
    if function(*arguments, buffer, TEXT_BYTES) != 0:
        return None
    return buffer.value.decode("ascii", "replace")


def device(nvml: ctypes.CDLL, handle: ctypes.c_void_p, owner: ctypes.c_void_p) -> "dict[str, Any]":
    """One GPU; `owner` is the physical GPU, which a MIG device asks for its capability."""
    major, minor, memory = ctypes.c_int(), ctypes.c_int(), Memory()
    known = (
        nvml.nvmlDeviceGetCudaComputeCapability(owner, ctypes.byref(major), ctypes.byref(minor))
        == 0
    )
    sized = nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0
    return {
        "uuid": text_of(nvml.nvmlDeviceGetUUID, handle),
        "name": text_of(nvml.nvmlDeviceGetName, owner) or "",
        "sm": f"{major.value}.{minor.value}" if known else None,
        "memory_bytes": int(memory.total) if sized else 0,
    }


def mig_device(nvml: ctypes.CDLL, name: str) -> "dict[str, Any] | None":
    """The MIG device of that name, with its owner's capability."""
    handle, owner = ctypes.c_void_p(), ctypes.c_void_p()
    if nvml.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(handle)) != 0:
        return None
    if nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle, ctypes.byref(owner)) != 0:
        return None
    return device(nvml, handle, owner)


def read(nvml: ctypes.CDLL, mig_names: "list[str]") -> "dict[str, Any]":
    """Everything the driver says."""
    if nvml.nvmlInit_v2() != 0:
        return {"library": True, "answered": False}
    count = ctypes.c_uint()
    answered = nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0
    gpus = []
    for index in range(count.value):
        handle = ctypes.c_void_p()
        if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) == 0:
            gpus.append(device(nvml, handle, handle))
        else:
            gpus.append({"uuid": None, "name": "", "sm": None, "memory_bytes": 0})
    return {
        "library": True,
        "answered": answered,
        "driver_version": text_of(nvml.nvmlSystemGetDriverVersion),
        "gpus": gpus,
        "mig": {name: mig_device(nvml, name) for name in mig_names},
    }


def main() -> None:
    """Print what the driver says as one marked line."""
    try:
        nvml = ctypes.CDLL(LIBRARY)
    except OSError:
        answer: dict[str, Any] = {"library": False, "answered": False}
    else:
        try:
            answer = read(nvml, sys.argv[1:])
        except AttributeError:  # a library too old to have one of the functions
            answer = {"library": True, "answered": False}
    sys.stdout.write("\n" + MARK + json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
