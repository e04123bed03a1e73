"""Check `memory`: the packed experts of this launch really fit the GPUs it has, and BF16 would or not.

It takes exactly what SGLang will take for its experts, gives it back, and looks whether it is back.
It never makes a context on a GPU that another process uses: there the answer is `gpu_in_use`.
The sizes are the controller's (`smgate.domain.memory`); a test holds the two equal.
"""

from __future__ import annotations

import gc
from typing import Any, NamedTuple

from smgate_agent.probe import driver
from smgate_agent.probe.results import Numbers, result

A2A_OVER_ALL_OF_TP = frozenset(
    {
        *("megamoe", "flashinfer_megamoe", "deepep", "deepep_v2", "mooncake", "nixl"),
        *("ascend_fuseep", "flashinfer", "mori", "pplx"),
    }
)
HIDDEN_ALIGN, INTERMEDIATE_ALIGN, LOOSE_ALIGN, BLOCK = 256, 128, 64, 32
HALF_BYTES, FLOAT_BYTES = 2, 4
PIECE_BYTES = 1 << 30
KEPT_BYTES_MAX = 1 << 28
"""What the driver may keep of what is given back: its own tables, far below one piece."""


class Experts(NamedTuple):
    """Bytes of the routed experts on one GPU of the pipeline stage that has most of them."""

    packed_bytes: int
    bf16_bytes: int
    converting_bytes: int
    """The most that stands at once while a fallback converts the last layer."""


def experts(layout: dict[str, Any], a2a: str) -> Experts | None:
    """What the experts of a launch take on one GPU; None where a part of the shape is unknown."""
    size = {name: _positive(layout.get(name)) for name in ("experts", "hidden_size", "tp", "pp")}
    inner, layers = (
        _positive(layout.get("intermediate_size")),
        _positive(layout.get("expert_layers")),
    )
    tp, pp = size["tp"], size["pp"]
    ep = tp if a2a in A2A_OVER_ALL_OF_TP else _positive(layout.get("ep"))
    if not (all(size.values()) and inner and layers and ep) or tp % ep:
        return None
    own, hidden, inner = size["experts"] // ep, size["hidden_size"], inner // (tp // ep)
    wide, tight, loose = (
        _up(hidden, HIDDEN_ALIGN),
        _up(inner, INTERMEDIATE_ALIGN),
        _up(inner, LOOSE_ALIGN),
    )
    layers = -(-layers // pp)
    bias = own * (2 * loose + hidden) * HALF_BYTES
    weights = 3 * own * hidden * loose * HALF_BYTES
    packed = _packed(own * wide * tight) + own * (2 * tight + wide) * FLOAT_BYTES
    return Experts(
        packed_bytes=packed * layers,
        bf16_bytes=(weights + bias) * layers,
        converting_bytes=(weights + bias) * (layers - 1)
        + _packed(own * hidden * loose)
        + bias
        + weights,
    )


def _packed(third: int) -> int:
    """A nibble per value and a scale byte per block, of w1, w3 and w2."""
    return 3 * third // 2 + 3 * third // BLOCK


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _positive(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def run(launch: dict[str, Any]) -> dict[str, Any]:
    """Passed if every GPU of the launch gave the packed bytes and had them back."""
    sizes = experts(launch.get("layout") or {}, launch.get("a2a") or "none")
    if sizes is None:
        return result("skipped", "layout_unknown")
    numbers: Numbers = {name: float(value) for name, value in sizes._asdict().items()}
    found = driver.read(driver.load())
    own = launch.get("gpu_uuids") or []
    reason = driver.untouchable(found, own)
    if reason is not None or found is None:
        return result("skipped", reason or "no_gpu", numbers)
    try:
        import torch
    except ImportError:
        return result("error", "torch_missing", numbers)
    if not torch.cuda.is_available():
        return result("error", "torch_sees_no_gpu", numbers)
    return _of_all(torch, set(own or [gpu.uuid for gpu in found.gpus]), sizes, numbers)


def _of_all(torch: Any, own: set[str | None], sizes: Experts, numbers: Numbers) -> dict[str, Any]:  # noqa: ANN401
    indices = []
    for index in range(torch.cuda.device_count()):
        uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
        if f"GPU-{str(uuid).removeprefix('GPU-')}" in own:
            indices.append(index)
    if len(indices) != len(own):
        return result("skipped", "gpu_not_visible", numbers)
    hides = True
    for index in indices:
        free, kept = _take(torch, index, sizes.packed_bytes)
        numbers[f"gpu{index}.free_bytes"] = float(free)
        if kept is None:
            return result("failed", f"packed_does_not_fit:gpu{index}", numbers)
        numbers[f"gpu{index}.kept_bytes"] = float(kept)
        if kept > KEPT_BYTES_MAX:
            return result("error", f"memory_not_given_back:gpu{index}", numbers)
        hides = hides and sizes.converting_bytes <= free
    numbers["bf16_fits"] = float(hides)
    return result(
        "passed", "packed_fits_bf16_hides" if hides else "packed_fits_bf16_crashes", numbers
    )


def _take(torch: Any, index: int, wanted: int) -> tuple[int, int | None]:  # noqa: ANN401
    """Bytes free before, and kept after taking and giving back; None if they were not to be had."""
    free, _ = torch.cuda.mem_get_info(index)
    if wanted > free:
        return free, None
    had = _held(torch, index, wanted)
    gc.collect()
    with torch.cuda.device(index):
        torch.cuda.empty_cache()
    after, _ = torch.cuda.mem_get_info(index)
    return free, free - after if had else None


def _held(torch: Any, index: int, wanted: int) -> bool:  # noqa: ANN401
    """Whether all of it was there at once. What was taken ends with this function."""
    pieces = []
    try:
        for start in range(0, wanted, PIECE_BYTES):
            size = min(PIECE_BYTES, wanted - start)
            pieces.append(torch.empty(size, dtype=torch.uint8, device=f"cuda:{index}"))
    except torch.cuda.OutOfMemoryError:
        return False
    return True
