"""Records what check `marlin` finds on this machine's GPU, right and with SGLang's kernel broken.

    PYTHONPATH=.:agents python3 -m tests.hardware.record_marlin FILE

Runs in the Python that has torch and SGLang (0.5.23: the broken ones replace functions of it). SGLang
compiles the kernel first, which is minutes of nvcc; the check itself compiles nothing.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from smgate_agent.probe import driver, marlin, sglang_layer

Json = dict[str, Any]
Tensor = torch.Tensor

LAYOUT = {
    "tp": 8,
    "ep": 1,
    "dp": 1,
    "pp": 1,
    "experts": 896,
    "hidden_size": 3584,
    "intermediate_size": 3072,
    "top_k": 16,
    "expert_layers": 92,
}
"""Kimi K3's on one of eight ranks."""


def main(argv: list[str]) -> int:
    """Write the recording; `--child NAME` prints what one step finds in a process of its own."""
    launch = {"gpu_uuids": [_gpu("uuid")], "sm": _gpu("compute_cap"), "a2a": "none"}
    launch["layout"] = LAYOUT
    if argv[0] == "--child":
        print(json.dumps(STEPS[argv[1]](launch)))
        return 0
    fields = ("name", "uuid", "driver_version", "compute_cap")
    recording: Json = {
        "gpu": {field: _gpu(field) for field in fields},
        "torch": torch.__version__,
        "sglang": importlib.metadata.version("sglang"),
        "sgl_kernel_loads": _child("loads"),
        "cold": _child("checked"),
        **_child("compiled"),
        "built": _child("checked"),
        "broken": _child("broken"),
    }
    Path(argv[0]).write_text(json.dumps(recording, indent=1, sort_keys=True) + "\n")
    return 0


def _gpu(field: str) -> str:
    query = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, check=True).stdout.split("\n")[0]


def _child(step: str) -> Any:
    child = [sys.executable, "-m", __spec__.name, "--child", step]
    ended = subprocess.run(child, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(ended.stdout.splitlines()[-1])


def _compiled(launch: Json) -> Json:
    """Nothing to keep: the check, with SGLang left to compile as it does in a server."""
    sglang_layer.modules = lambda: sglang_layer._imported(sglang_layer.MODULES)
    marlin.run(launch)
    return {}


def _loads(_launch: Json) -> bool:
    """Whether the kernels SGLang ships are of this torch; none of them is called on marlin's path."""
    try:
        return hasattr(importlib.import_module("sgl_kernel"), "common_ops")
    except ImportError:
        return False


def _broken(launch: Json) -> list[Json]:
    """The check over SGLang's functions with one of them wrong, all in one process."""
    sglang_layer.modules()
    driver.untouchable = lambda *_: None  # this process itself holds the GPU after the first
    from sglang.kernels.ops.moe import moe_topk_sum as summing
    from sglang.srt.layers.moe.fused_moe_triton import fused_marlin_moe as fused

    activation, total = fused.situ_and_mul, summing.moe_topk_sum
    found = []
    for name, (wrong_activation, wrong_end) in BROKEN.items():
        fused.situ_and_mul = wrong_activation(activation) if wrong_activation else activation
        summing.moe_topk_sum = wrong_end(total) if wrong_end else total
        found.append({"broken": name, **marlin.run(launch)})
    return found


def _swiglu(_right: Callable[..., None]) -> Callable[..., None]:
    def wrong(output: Tensor, x: Tensor, **_: object) -> None:
        gate, up = x.float().chunk(2, -1)
        output.copy_((torch.nn.functional.silu(gate) * up).to(output.dtype))

    return wrong


def _swapped(right: Callable[..., None]) -> Callable[..., None]:
    def wrong(output: Tensor, x: Tensor, **given: object) -> None:
        gate, up = x.chunk(2, -1)
        right(output, torch.cat([up, gate], -1).contiguous(), **given)

    return wrong


def _unclamped(right: Callable[..., None]) -> Callable[..., None]:
    def wrong(output: Tensor, x: Tensor, **given: object) -> None:
        right(output, x, **{**given, "linear_beta": None})

    return wrong


def _ending(spoil: Callable[[Tensor], object]) -> Callable[..., Callable[..., None]]:
    def made(right: Callable[..., None]) -> Callable[..., None]:
        def wrong(parts: Tensor, output: Tensor) -> None:
            right(parts, output)
            spoil(output)

        return wrong

    return made


def _nan(output: Tensor) -> None:
    if len(output) >= 100:
        output[: len(output) // 100] = float("nan")


def _other_rows(output: Tensor) -> None:
    output.copy_(output.roll(1, 0) if len(output) > 1 else -output)


Wrong = Callable[[Callable[..., None]], Callable[..., None]]
BROKEN: dict[str, tuple[Wrong | None, Wrong | None]] = {
    "right": (None, None),
    "swiglu": (_swiglu, None),
    "gate_up_swapped": (_swapped, None),
    "no_linear_beta": (_unclamped, None),
    "zeros": (None, _ending(lambda output: output.zero_())),
    "ten_percent": (None, _ending(lambda output: output.mul_(1.1))),
    "nan_rows": (None, _ending(_nan)),
    "unwritten": (None, lambda _right: lambda _parts, _output: None),
    "rows_of_others": (None, _ending(_other_rows)),
}
STEPS: dict[str, Callable[[Json], Any]] = {
    "loads": _loads,
    "checked": marlin.run,
    "compiled": _compiled,
    "broken": _broken,
}

if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
