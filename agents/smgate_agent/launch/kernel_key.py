"""The kernel key and the unit, as the gate computes them: plain dicts in, strings out.

The controller's domain computes the same; `tests/golden/gate/kernel_key.json` holds the two equal.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

Json = dict[str, Any]

KEY_HEX_DIGITS = 16
UNIT_HEX_DIGITS = 8


def canonical_digest(value: object) -> str:
    """First 16 hexadecimal digits of SHA-256 over canonical JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_HEX_DIGITS]


def kernel_key(*, sm: str | None, build: Json, layout: Json, a2a: str) -> str | None:
    """Hash of what a kernel result depends on, or None if an essential part is unknown.

    torch's CUDA is no part of the key, but decides whether SGLang can run the target at all.
    """
    driver = build.get("driver_version")
    branch = None if driver is None else str(driver).partition(".")[0]
    sglang, flashinfer = build.get("sglang_version"), build.get("flashinfer_version")
    if None in (sm, sglang, flashinfer, branch, build.get("torch_cuda")):
        return None
    tp, ep = layout.get("tp", 1), layout.get("ep", 1)
    return canonical_digest(
        {
            "a2a": a2a,
            "artifact_pins": build.get("artifact_pins", {}),
            "cuda_toolkit": build.get("cuda_toolkit"),
            "cute_dsl_version": build.get("cute_dsl_version"),
            "driver_branch": branch,
            "flashinfer_commit": build.get("flashinfer_commit"),
            "flashinfer_version": flashinfer,
            "jit_cache_version": build.get("jit_cache_version"),
            "layout": {
                "experts_per_rank": layout.get("experts", 0) // ep,
                "hidden_size": layout.get("hidden_size", 0),
                "intermediate_per_rank": layout.get("intermediate_size", 0) // max(1, tp // ep),
                "top_k": layout.get("top_k", 0),
            },
            "sglang_version": sglang,
            "sm": sm,
        }
    )


def unit_id(node: str, launch: Json) -> str:
    """The unit this rank belongs to: its GPUs on one node, a name or the rendezvous on several."""
    if launch.get("nnodes", 1) > 1:
        name = launch.get("unit_name") or launch.get("workload") or launch.get("rendezvous")
        if name:
            return str(name)
    uuids = sorted({gpu["uuid"] for gpu in launch.get("gpus", ())})
    return f"{node}:{canonical_digest(uuids)[:UNIT_HEX_DIGITS] if uuids else 'nogpu'}"
