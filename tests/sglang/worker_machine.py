"""The machine SGLang believes it is on, while nothing here has a GPU.

Only torch is told a story: its CUDA version, that CUDA is there, and the capability of device 0.
SGLang's own functions (`_check_cuda_device_version` and those built on it) draw the conclusions.
From 0.5.19 on these are read through `PlatformContext`, whose own test seam `override_platform`
then holds them for a whole resolution. Before that every module calls the functions by name, so
torch keeps telling its story throughout.
"""

import contextlib
import functools

import torch
from sglang.srt.utils import common

try:
    from sglang.srt import runtime_context
except ImportError:
    runtime_context = None

HAS_PLATFORM = hasattr(runtime_context, "override_platform")


def _forget_probes():
    for value in list(vars(common).values()):
        if isinstance(value, functools._lru_cache_wrapper):
            value.cache_clear()


@contextlib.contextmanager
def torch_reports(*, sm, torch_cuda):
    """Torch says: CUDA of this version, and this device 0, empty."""
    capability = tuple(int(part) for part in sm.split("."))
    told = (
        (torch.version, "cuda", torch_cuda),
        (torch.cuda, "is_available", lambda: True),
        (torch.cuda, "is_initialized", lambda: True),
        (torch.cuda, "get_device_capability", lambda device=None: capability),
        (torch.cuda, "get_device_name", lambda device=None: "simulated"),
        (torch.cuda, "device_count", lambda: 1),
        (torch.cuda, "mem_get_info", lambda device=None: (280 * 2**30, 288 * 2**30)),
    )
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in told]
    for owner, name, value in told:
        setattr(owner, name, value)
    _forget_probes()
    try:
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)
        _forget_probes()


def facts(*, sm, torch_cuda):
    """What SGLang's own probes say of this machine."""
    with torch_reports(sm=sm, torch_cuda=torch_cuda):
        if HAS_PLATFORM:
            platform = runtime_context.get_platform()
            names = (*runtime_context._PLATFORM_PROBES, *runtime_context._PLATFORM_VALUES)
            return {name: getattr(platform, name) for name in names}
        return {
            "is_cuda": common.is_cuda(),
            "is_sm90": common.is_sm90_supported(),
            "is_sm100": common.is_sm100_supported(),
            "is_sm120": common.is_sm120_supported(),
            "device_sm": common.get_device_sm(),
        }


_KNOWN = {}


@contextlib.contextmanager
def machine(*, sm, torch_cuda):
    """SGLang believes to be on this machine within the block."""
    if not HAS_PLATFORM:
        with torch_reports(sm=sm, torch_cuda=torch_cuda):
            yield
        return
    key = (sm, torch_cuda)
    if key not in _KNOWN:
        _KNOWN[key] = facts(sm=sm, torch_cuda=torch_cuda)
    with runtime_context.override_platform(**_KNOWN[key]):
        yield
