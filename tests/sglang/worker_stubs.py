"""The two packages SGLang imports that the CPU environment does not carry.

torchvision is imported for image models alone and would bring another torch. triton_kernels has no
release for the CPU; the one function the MXFP4 path needs of it is written out here in torch, and
every call is recorded: a call is the BF16 materialisation that smgate exists to see.
"""

import contextlib
import functools
import importlib.machinery
import sys
import types

_TORCHVISION = (
    "torchvision",
    "torchvision.io",
    "torchvision.transforms",
    "torchvision.transforms.functional",
    "torchvision.transforms.v2",
    "torchvision.transforms.v2.functional",
)

UPCASTS = []
"""One entry per call of upcast_from_mxfp: shapes and target dtype."""


class _AnyAttribute(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return cls


class _Absent(metaclass=_AnyAttribute):
    """Stands for any class, enum or function of a package that is not there. It may be subclassed
    and named; using it for work is an error."""

    def __init__(self, *args, **kwargs):
        raise RuntimeError("this package is a stand-in and does no work")


class _StandIn(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Absent


def _module(name, kind=types.ModuleType):
    module = kind(name)
    module.__path__ = []
    module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    sys.modules[name] = module
    return module


def _upcast_from_mxfp(packed, scale, target_dtype, axis):
    """Decode packed E2M1 pairs (low nibble first) with one E8M0 scale per 32 values."""
    import torch

    UPCASTS.append(
        {"packed": list(packed.shape), "scale": list(scale.shape), "dtype": str(target_dtype)}
    )
    if axis != -1:
        raise ValueError("only the last axis is packed here")
    magnitudes = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    table = torch.tensor(magnitudes + [-value for value in magnitudes])
    values = torch.stack((table[(packed & 0xF).long()], table[(packed >> 4).long()]), -1)
    scales = torch.exp2(scale.float() - 127).repeat_interleave(32, -1)
    return (values.flatten(-2) * scales).to(target_dtype)


@contextlib.contextmanager
def upcast_replaced_by(function):
    """Another upcast within the block; the MXFP4 path looks it up at each call."""
    module = sys.modules["triton_kernels.numerics_details.mxfp"]
    before = module.upcast_from_mxfp
    module.upcast_from_mxfp = function
    try:
        yield
    finally:
        module.upcast_from_mxfp = before


def install():
    remember_struct_fields()
    for name in _TORCHVISION:
        _module(name, _StandIn).__version__ = "0.28.0"
    for name in ("triton_kernels", "triton_kernels.numerics_details"):
        _module(name)
    _module("triton_kernels.numerics_details.mxfp").upcast_from_mxfp = _upcast_from_mxfp


def remember_struct_fields():
    """msgspec works out the fields of a class anew at each call, which is half the time of a parse.
    They depend on the class alone."""
    import msgspec

    msgspec.structs.fields = functools.lru_cache(maxsize=None)(msgspec.structs.fields)


def flashinfer_is_installed():
    """Let SGLang import FlashInfer, as it does on every machine with CUDA.

    Its modules ask once, while they are imported, and the answer is no without a GPU. The package
    is the real one; only the question about CUDA is left out.
    """
    from sglang.srt import utils
    from sglang.srt.utils import common

    utils.is_flashinfer_available = common.is_flashinfer_available = lambda: True
