"""Reads the SGLang flags the gate needs, as SGLang's own argument parser would.

The last occurrence wins, `--flag value` and `--flag=value` are the same, an abbreviation stands
for the flag it begins. An abbreviation that SGLang finds ambiguous ends SGLang whatever the gate
thinks of it, so the gate need not know SGLang's other flags.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

OPTIONS: dict[str, tuple[str, ...]] = {
    "runner": ("--moe-runner-backend",),
    "a2a": ("--moe-a2a-backend",),
    "model_path": ("--model-path", "--model"),
    "revision": ("--revision",),
    "model_overrides": ("--json-model-override-args",),
    "tp": ("--tp-size", "--tensor-parallel-size"),
    "ep": ("--ep-size", "--expert-parallel-size", "--ep"),
    "pp": ("--pp-size", "--pipeline-parallel-size"),
    "dp": ("--dp-size", "--data-parallel-size"),
    "nnodes": ("--nnodes",),
    "node_rank": ("--node-rank",),
    "rendezvous": ("--dist-init-addr", "--nccl-init-addr"),
    "base_gpu_id": ("--base-gpu-id",),
    "gpu_id_step": ("--gpu-id-step",),
    "draft_path": ("--speculative-draft-model-path", "--speculative-draft-model"),
    "draft_revision": ("--speculative-draft-model-revision",),
    "draft_quantization": ("--speculative-draft-model-quantization",),
}
CONFIG = "--config"

RUNNERS = frozenset(
    [
        "auto",
        "deep_gemm",
        "triton",
        "triton_kernel",
        "flashinfer_trtllm",
        "experimental_sgl_trtllm",
        "flashinfer_trtllm_routed",
        "flashinfer_cutlass",
        "flashinfer_mxfp4",
        "flashinfer_cutedsl",
        "flashinfer_megamoe",
        "cutlass",
        "aiter",
        "marlin",
        "humming",
        "experimental_sgl_marlin",
        "lora_cutedsl",
        "lora_triton",
        "lora_marlin",
        "hpc_ops",
        "megamoe",
        "intel_xpu",
    ]
)
A2A_BACKENDS = frozenset(
    [
        "none",
        "deepep",
        "mooncake",
        "nixl",
        "mori",
        "ascend_fuseep",
        "flashinfer",
        "megamoe",
        "deepep_v2",
        "pplx",
        "ascend_tp",
        "flashinfer_megamoe",
    ]
)
INTEGER_MAX = 1 << 20
OTHER = "other"
"""Stands for a value SGLang does not know: what a person typed there is never sent."""


@dataclass(frozen=True)
class ConfigUse:
    """How the command line names a config file.

    `paths` are the values after the exact token `--config`, the only form SGLang looks for; None
    stands for a token with nothing behind it. `ignored` is the form SGLang accepts and ignores.
    """

    paths: tuple[str | None, ...]
    ignored: bool


def values(tokens: Sequence[str]) -> dict[str, str]:
    """The value of each known flag, the last occurrence winning."""
    found: dict[str, str] = {}
    for position, token in enumerate(tokens):
        name, separator, attached = token.partition("=")
        field = _field(name)
        if field is None:
            continue
        if separator:
            found[field] = attached
        else:
            following = tokens[position + 1] if position + 1 < len(tokens) else "--"
            found[field] = "" if _is_option(following) else following
    return found


def _field(name: str) -> str | None:
    if not name.startswith("--") or name == "--":
        return None
    for field, options in OPTIONS.items():
        if name in options:
            return field
    for field, options in OPTIONS.items():
        if any(option.startswith(name) for option in options):
            return field
    return None


def _is_option(token: str) -> bool:
    return token.startswith("-") and not token[1:].replace(".", "", 1).isdigit()


def config_use(tokens: Sequence[str]) -> ConfigUse:
    """Which config file SGLang will read, if any."""
    paths = tuple(
        tokens[position + 1] if position + 1 < len(tokens) else None
        for position, token in enumerate(tokens)
        if token == CONFIG
    )
    ignored = not paths and any(
        len(name) > len("--c") and CONFIG.startswith(name)
        for name in (token.partition("=")[0] for token in tokens)
    )
    return ConfigUse(paths=paths, ignored=ignored)


def without_config(tokens: Sequence[str]) -> list[str]:
    """The tokens as SGLang sees them once it has taken `--config FILE` out."""
    if CONFIG not in tokens:
        return list(tokens)
    position = list(tokens).index(CONFIG)
    return [*tokens[:position], *tokens[position + 2 :]]


def known(value: str | None, names: frozenset[str]) -> str | None:
    """`value` if SGLang knows the name, `other` if it does not, None if there is none."""
    if value is None:
        return None
    return value if value in names else OTHER


def integer(value: str | None, default: int) -> int:
    """A whole number as Python's `int` reads it, else the default; so is one beyond all reason."""
    try:
        number = int(value) if value is not None else default
    except ValueError:
        return default
    return number if abs(number) <= INTEGER_MAX else default
