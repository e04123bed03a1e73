"""How a memory estimate reads: as one object for programs, as a table and a sentence for people."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from smgate.cli import output

if TYPE_CHECKING:
    from smgate.domain.memory import estimate as estimates

GIB: Final = 1 << 30
_PARTS: Final = (
    ("routed experts", "experts"),
    ("shared experts", "shared_experts"),
    ("router", "router"),
    ("latent projections", "latent_projections"),
    ("dense MLP", "dense_mlp"),
    ("attention", "attention"),
    ("embedding and head", "embedding_and_head"),
    ("vision", "vision"),
)


def document(found: estimates.Estimate) -> dict[str, Any]:
    """The whole estimate; every number is in bytes unless its name says otherwise."""
    return {
        "apiVersion": "v1",
        "architecture": found.architecture,
        "layout": dataclasses.asdict(found.layout),
        "gpu": {
            "memory_bytes": found.gpu.memory_bytes,
            "context_bytes": found.gpu.context_bytes,
            "mem_fraction": float(found.gpu.mem_fraction),
            "static_bytes": found.gpu.static_bytes,
        },
        "expert_layer": {
            **dataclasses.asdict(found.layer),
            "ratio": round(found.layer.ratio, 4),
        },
        "notes": list(found.notes),
        "worst_stage": found.worst.number,
        "stages": [
            {**dataclasses.asdict(one), "excess_bytes": one.excess_bytes} for one in found.stages
        ],
    }


def lines(body: output.Row) -> list[str]:
    """The worst GPU as a table, and what a fallback would do there."""
    stage = body["stages"][body["worst_stage"]]
    layout, layer = body["layout"], body["expert_layer"]
    told = [
        f"{output.text_of(body['architecture'])}, tp {layout['tp']}, ep {layout['ep']}, "
        f"pp {layout['pp']}, a2a {output.text_of(layout['a2a'])}: {layer['local_experts']} experts "
        f"x {layer['intermediate_per_partition']} per GPU in {stage['expert_layers']} layers."
    ]
    if layout["pp"] > 1:
        told.append(
            f"Shown is pipeline stage {stage['number']}, layers {stage['first_layer']} to "
            f"{stage['last_layer']}, which a fallback leaves least."
        )
    rows = [("GiB PER GPU", "PACKED", "BF16 FALLBACK")]
    for label, name in _PARTS:
        both = [stage["rest"].get(name)] * 2
        if name == "experts":
            both = [sum(stage[f"experts_{form}"].values()) for form in ("packed", "bf16")]
        if both[0]:
            rows.append((label, _gib(both[0]), _gib(both[1])))
    rows.append(("all weights", _gib(stage["packed_bytes"]), _gib(stage["fallback_bytes"])))
    rows.append(
        ("left for KV cache", _gib(stage["packed_kv_bytes"]), _gib(stage["fallback_kv_bytes"]))
    )
    width = max(len(row[0]) for row in rows)
    told += ["", *(f"{one:<{width}}  {two:>8}  {three:>13}" for one, two, three in rows), ""]
    told.append(f"BF16 experts take {layer['ratio']:.2f} times the bytes of packed ones.")
    told += [_packed(stage, body["gpu"]), _fallback(stage, body["gpu"], layer)]
    return [*told, *(f"Note: {output.text_of(note)}" for note in body["notes"])]


def _packed(stage: output.Row, gpu: output.Row) -> str:
    match stage["packed"]:
        case "serves":
            return f"Packed: fits, with {_gib(stage['packed_kv_bytes'])} GiB left for the KV cache."
        case "no_kv":
            return (
                "Packed: loads, but leaves no room for a KV cache at mem fraction "
                f"{gpu['mem_fraction']:g}."
            )
        case _:
            return f"Packed: does not fit in {_gib(gpu['memory_bytes'])} GiB at all."


def _fallback(stage: output.Row, gpu: output.Row, layer: output.Row) -> str:
    match stage["fallback"]:
        case "hides":
            return (
                "A BF16 fallback would HIDE: it fits, serves slowly and says nothing; it takes "
                f"{_gib(stage['excess_bytes'])} GiB more, and leaves "
                f"{_gib(stage['fallback_kv_bytes'])} GiB for the KV cache."
            )
        case "crashes_at_kv":
            return (
                "A BF16 fallback would CRASH after loading: the weights fit, and no room for a KV "
                f"cache is left at mem fraction {gpu['mem_fraction']:g}; a higher one would hide it."
            )
        case "crashes_converting":
            crash = stage["crash"]
            return (
                f"A BF16 fallback would CRASH while loading, near layer {crash['layer']}, after "
                f"{crash['converted']} of {stage['expert_layers']} expert layers: CUDA out of "
                f"memory, tried to allocate {crash['allocation_bytes'] / GIB:.2f} GiB "
                f"(w13 {layer['bf16_w13'] / GIB:.2f}, w2 {layer['bf16_w2'] / GIB:.2f})."
            )
        case _:
            return "A BF16 fallback would crash like the packed weights: they do not fit."


def _gib(size: int) -> str:
    return f"{size / GIB:.1f}"
