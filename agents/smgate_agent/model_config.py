"""What a model's `config.json` says about its experts, and how many bytes a rank should hold.

Pure: bytes in. Used to see a BF16 fallback before it happens, when only a log speaks, and to
tell measured weights from what packed ones would weigh.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import msgspec

from smgate_agent import server_args, units

PACKED_BYTES_PER_PARAMETER: Final = 0.5 + 1 / 32
"""MXFP4: four bits and one shared scale byte for every 32."""

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,119}")
_DIMENSION_MAX: Final = 1 << 24


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """None means that the file does not say, or says it in a way that is not understood."""

    architecture: str | None = None
    mxfp4: bool | None = None
    expert_parameters: int | None = None


def parse(body: bytes) -> ModelConfig:
    """Read a `config.json`; anything that is not one gives a config that says nothing."""
    try:
        config = msgspec.json.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return ModelConfig()
    if not isinstance(config, dict):
        return ModelConfig()
    text = config.get("text_config")
    text = text if isinstance(text, dict) else config
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and len(names) == 1 else None
    architecture = name if isinstance(name, str) and _NAME.fullmatch(name) else None
    mxfp4 = _mxfp4(text.get("quantization_config", config.get("quantization_config")))
    return ModelConfig(
        architecture=architecture,
        # Without an architecture this may be no model's config: silence is no "no".
        mxfp4=mxfp4 if architecture is not None or mxfp4 else None,
        expert_parameters=_expert_parameters(text),
    )


def expected_packed_bytes(
    config: ModelConfig, args: server_args.ServerArgs, *, checkpoint_bytes: int | None
) -> int | None:
    """Most that one rank of a packed load weighs: its share of the experts and all of the rest.

    The rest (attention, shared experts, embeddings) is taken whole, because some layouts copy it
    to every rank. So twice this number is never reached by a packed load.
    """
    if config.expert_parameters is None or checkpoint_bytes is None:
        return None
    if args.tp is None or args.pp is None:
        return None
    experts = config.expert_parameters * PACKED_BYTES_PER_PARAMETER
    rest = checkpoint_bytes - experts
    if rest < 0:
        return None  # the files are not a packed checkpoint of this config
    return units.to_step(experts / (args.tp * args.pp) + rest)


def _mxfp4(quantization: object) -> bool | None:
    """As SGLang's loader sees it: `format` at the top level or in any group."""
    if quantization is None:
        return False
    if not isinstance(quantization, dict):
        return None
    words = [quantization.get("format"), quantization.get("quant_method")]
    groups = quantization.get("config_groups")
    if isinstance(groups, dict):
        words += [group.get("format") for group in groups.values() if isinstance(group, dict)]
    return any(isinstance(word, str) and "mxfp4" in word for word in words)


def _expert_parameters(text: dict[str, object]) -> int | None:
    hidden = _dimension(text, "routed_expert_hidden_size", "hidden_size")
    inner = _dimension(text, "moe_intermediate_size", "intermediate_size")
    experts = _dimension(text, "num_experts", "n_routed_experts", "num_local_experts")
    layers = _dimension(text, "num_hidden_layers")
    dense = text.get("first_k_dense_replace", 0)
    if hidden is None or inner is None or experts is None or layers is None:
        return None
    if isinstance(dense, bool) or not isinstance(dense, int) or not 0 <= dense < layers:
        return None
    return 3 * hidden * inner * experts * (layers - dense)


def _dimension(text: dict[str, object], *names: str) -> int | None:
    for name in names:
        value = text.get(name)
        if value is not None:
            usable = isinstance(value, int) and not isinstance(value, bool)
            return (
                value if usable and isinstance(value, int) and 0 < value <= _DIMENSION_MAX else None
            )
    return None
