"""Which of the driver's GPUs this launch will see. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smgate_agent.launch import shapes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Json = dict[str, Any]
NAME_CHARACTERS_MAX = 200


def mig_names(environ: Mapping[str, str]) -> list[str]:
    """MIG devices named in `CUDA_VISIBLE_DEVICES`."""
    return [name for name in _named(environ) or () if name.startswith("MIG-")]


def visible(reading: Json, environ: Mapping[str, str]) -> list[Json]:
    """The GPUs CUDA will show, as the wire has them.

    CUDA numbers GPUs fastest first unless told otherwise, the driver by bus. Where the GPUs of a
    machine differ, an index could mean any of them, so all are reported: the rules then see mixed
    GPUs and stay away, which is right for a launch whose GPUs are not known.
    """
    gpus = [gpu for gpu in reading.get("gpus") or () if isinstance(gpu, dict)]
    chosen = _chosen(gpus, reading.get("mig") or {}, environ)
    return [_wire(gpu) for gpu in chosen[: shapes.GPUS_MAX] if _usable(gpu)]


def _named(environ: Mapping[str, str]) -> list[str] | None:
    value = environ.get("CUDA_VISIBLE_DEVICES")
    return None if value is None else [part.strip() for part in value.split(",")]


def _chosen(gpus: list[Json], mig: Json, environ: Mapping[str, str]) -> list[Json]:
    names = _named(environ)
    if names is None:
        return gpus
    alike = len({(gpu.get("name"), gpu.get("sm")) for gpu in gpus}) <= 1
    by_bus = environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    chosen: list[Json] = []
    for name in names:
        if name.isdigit() and not (alike or by_bus):
            return gpus
        found = _one(name, gpus, mig)
        if found is None:
            break  # CUDA ignores everything from the first name it does not know
        chosen.append(found)
    return chosen


def _one(name: str, gpus: list[Json], mig: Json) -> Json | None:
    if name.isdigit():
        return gpus[int(name)] if int(name) < len(gpus) else None
    if name.startswith("MIG-"):
        found = mig.get(name)
        return found if isinstance(found, dict) else None
    if not name.startswith("GPU-"):
        return None
    matches = [gpu for gpu in gpus if str(gpu.get("uuid")).startswith(name)]
    return matches[0] if len(matches) == 1 else None


def _usable(gpu: Json) -> bool:
    return shapes.fits(shapes.GPU_UUID, gpu.get("uuid"))


def _wire(gpu: Json) -> Json:
    memory = gpu.get("memory_bytes")
    return {
        "uuid": gpu["uuid"],
        "sm": shapes.kept(shapes.SM, gpu.get("sm")),
        "name": _label(str(gpu.get("name") or "")),
        "memory_bytes": memory if shapes.is_count(memory) else 0,
    }


def of_this_server(gpus: Sequence[Json], *, first: int | None, step: int, count: int) -> list[Json]:
    """The GPUs of a server that was told its first one; without that, all it can see."""
    if first is None or first < 0 or step < 1 or count < 1:
        return list(gpus)
    return list(gpus[first : first + step * count : step])


def platform(reading: Json, *, amd: bool, ascend: bool, intel: bool) -> str:
    """The kind of machine. A driver that is there and does not answer is still CUDA."""
    if reading.get("library") and (reading.get("gpus") or not reading.get("answered")):
        return "cuda"
    if amd:
        return "rocm"
    if ascend:
        return "npu"
    return "xpu" if intel else "none"


def _label(text: str) -> str:
    """A driver's text as the wire takes it: printable and short."""
    return "".join(c for c in text if c.isprintable())[:NAME_CHARACTERS_MAX]
