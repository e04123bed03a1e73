"""A machine to run a check on: the driver's library, and a torch that shows what it is told to."""

import json
import os
import pathlib
import subprocess
import sys

from tests.launch import nvml_library

ROOT = pathlib.Path(__file__).resolve().parents[2]
TORCH = '''"""Stands for torch with CUDA: GPUs and memory as it was told."""
import contextlib, json, os, types

_told = json.loads(os.environ["TORCH"])
_gpus = _told["gpus"]
_free = [gpu.get("free", gpu["memory"]) for gpu in _gpus]
uint8 = "uint8"
version = types.SimpleNamespace(cuda=_told.get("cuda", "13.0"))
backends = types.SimpleNamespace(cuda=types.SimpleNamespace(matmul=types.SimpleNamespace()))


class _Tensor:
    def __init__(self, size, index):
        self.size, self.index = size, index
        _free[index] -= size

    def __del__(self):
        if not _told.get("leaks"):
            _free[self.index] += self.size


def empty(size, dtype, device):
    index = int(device.rpartition(":")[2])
    if _free[index] - size < _gpus[index].get("fragmented", 0):
        raise cuda.OutOfMemoryError("CUDA out of memory.")
    with open(os.environ["TOUCHED"], "a") as stream:
        print(index, size, file=stream)
    return _Tensor(size, index)


class cuda:
    class OutOfMemoryError(RuntimeError): ...

    is_available = staticmethod(lambda: bool(_gpus))
    device_count = staticmethod(lambda: len(_gpus))
    device = staticmethod(lambda index: contextlib.nullcontext())
    empty_cache = staticmethod(lambda: None)
    get_device_capability = staticmethod(
        lambda device: tuple(map(int, _gpus[int(str(device)[-1])]["sm"].split(".")))
    )
    mem_get_info = staticmethod(lambda i: (_free[i], _gpus[i]["memory"]))

    @staticmethod
    def set_device(device):
        with open(os.environ["TOUCHED"], "a") as stream:
            print(device, file=stream)

    @staticmethod
    def get_device_properties(i):
        named = {"uuid": _gpus[i]["uuid"].removeprefix("GPU-")} if "uuid" in _gpus[i] else {}
        return types.SimpleNamespace(total_memory=_gpus[i]["memory"], **named)
'''
CALL = """
import json, sys
import importlib
check = importlib.import_module("smgate_agent.probe." + sys.argv[1])
print(json.dumps(check.run(json.loads(sys.argv[2]))))
"""
DRIVER_BYTES = 288 << 30
"""What the driver's stand-in says of every GPU."""


def gpu(number, sm="10.7", **more):
    return {"uuid": f"GPU-{number:04d}-aaaa", "sm": sm, "memory": DRIVER_BYTES - (1 << 30), **more}


class Machine:
    """Where one check runs, in a Python of its own."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "torch.py").write_text(TORCH)
        self.touched = folder / "touched"
        self.environ = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": f"{folder}:{ROOT / 'agents'}",
            "LD_LIBRARY_PATH": str(folder / "nvml"),
            "TOUCHED": str(self.touched),
        }

    def driver(self, *gpus, **options):
        nvml_library.write(self.folder / "nvml", list(gpus), **options)
        return self

    def run(self, check, launch, *gpus, **told):
        told = json.dumps({"gpus": gpus, **told})
        process = subprocess.run(
            [sys.executable, "-c", CALL, check, json.dumps(launch)],
            env={**self.environ, "TORCH": told},
            capture_output=True, text=True, check=True, timeout=60,
        )  # fmt: skip
        return json.loads(process.stdout)
