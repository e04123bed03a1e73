"""Owns reading a Hugging Face `config.json` into what the weights' sizes depend on, and nothing else.

The names of fields differ between models; each is looked for under the names that are known. What is
missing, or has a value that was not modelled, is an error with the field's name: a size that rests on
a guess would be read as a promise. Unknown fields whose name speaks of weights are errors as well.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from smgate.domain.errors import RejectedError

HALF_BYTES: Final = 2
"""Everything but the routed experts is 16 bits wide: SGLang loads bfloat16 or float16 under `auto`."""
FLOAT_BYTES: Final = 4
KIMI_K3: Final = "kimi_k3"
GPT_OSS: Final = "gpt_oss"
PACKED_FORMAT: Final = "mxfp4-pack-quantized"

_SPEAKS_OF_WEIGHTS: Final = re.compile(
    r"expert|moe|dense|latent|shared|sparse|lora_rank|gate|index_|linear_attn|conv|ssm|mamba|mtp"
)
_WITHOUT_WEIGHTS: Final = frozenset(
    {
        "experts_per_token",
        "num_experts_per_tok",
        "num_experts_per_token",
        "num_expert_group",
        "latent_moe_use_norm",
        "moe_renormalize",
        "moe_router_activation_func",
    }
)
"""Fields that speak of weights and say how they are used, not how many there are."""

_VISION_DEFAULTS: Final = {
    "patch_size": 14,
    "vt_num_hidden_layers": 27,
    "vt_hidden_size": 1024,
    "vt_intermediate_size": 4096,
    "qkv_hidden_size": 1536,
}
"""What SGLang's `KimiK3VisionConfig` takes where the checkpoint's `vision_config` is silent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Bytes of one layer's attention weights, of the whole model.

    `sharded_bytes` are divided by TP along the heads; `kv_bytes` too, but never below one KV head
    per rank; `replicated_bytes` are on every rank.
    """

    heads: int
    sharded_bytes: int
    kv_heads: int
    kv_bytes: int
    replicated_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What the sizes depend on. `*_bytes` are of one layer of the whole model, at 16 bits."""

    architecture: str
    model_type: str
    experts: int
    expert_hidden: int
    """Width in which the routed experts work: the latent width where there is one."""
    expert_intermediate: int
    moe_layers: tuple[bool, ...]
    """One per layer: routed experts, or one dense MLP."""
    attention: tuple[Attention, ...]
    shared_experts_bytes: int
    router_bytes: int
    latent_bytes: int
    dense_intermediate: int
    dense_bytes: int
    vocabulary: int
    embedding_bytes: int
    head_bytes: int
    vision_bytes: int
    attention_named: bool
    """The config says that attention is not packed. Where it does not, 16 bits are its most."""


def missing(name: str, why: str) -> RejectedError:
    """A config that does not say what is needed."""
    return RejectedError(
        code="bad_model_config",
        message=f"{name}: {why}",
        next_step="Give the model's own, complete config.json; nothing is guessed.",
    )


class _Fields:
    """One object of the config. Remembers which fields were looked at."""

    def __init__(self, values: Mapping[str, Any], *, path: str) -> None:
        self._values: Final = values
        self._path: Final = path
        self._seen: Final = set(_WITHOUT_WEIGHTS)

    def path(self, name: str) -> str:
        return f"{self._path}{name}"

    def get(self, *names: str) -> Any:  # noqa: ANN401  a value of a JSON file
        """The value under the first name that has one; None if none has."""
        self._seen.update(names)
        return next((v for v in map(self._values.get, names) if v is not None), None)

    def whole(self, *names: str, least: int = 1) -> int:
        """A whole number that must be there."""
        found = self.optional(*names, least=least)
        if found is None:
            raise missing(self.path(" or ".join(names)), "is missing.")
        return found

    def optional(self, *names: str, least: int = 1) -> int | None:
        """A whole number, or None where the config is silent."""
        found = self.get(*names)
        if found is None:
            return None
        if isinstance(found, bool) or not isinstance(found, int) or found < least:
            raise missing(self.path(names[0]), f"{found!r} is no whole number of at least {least}.")
        return found

    def flag(self, name: str, *, otherwise: bool | None = None) -> bool:
        """True or false; `otherwise` is what SGLang's own config class takes."""
        found = self.get(name)
        if found is None and otherwise is not None:
            return otherwise
        if not isinstance(found, bool):
            raise missing(
                self.path(name), "is missing." if found is None else "is no true or false."
            )
        return found

    def object(self, name: str) -> _Fields | None:
        found = self.get(name)
        if found is None:
            return None
        if not isinstance(found, Mapping):
            raise missing(self.path(name), "is no object.")
        return _Fields(found, path=f"{self.path(name)}.")

    def refuse_unknown(self) -> None:
        """Refuse a field that may stand for weights and was not looked at."""
        for name in sorted(self._values):
            value = self._values[name]
            if name not in self._seen and _SPEAKS_OF_WEIGHTS.search(name) and value is not None:
                raise missing(self.path(name), "may stand for weights that are not modelled.")


def read(config: Mapping[str, Any]) -> Shape:
    """Read a model's `config.json`.

    Raises:
        RejectedError: `bad_model_config`, with the name of the field.
    """
    top = _Fields(config, path="")
    names = top.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise missing("architectures", "is missing.")
    outer_type = top.get("model_type")
    if not isinstance(outer_type, str):
        raise missing("model_type", "is missing.")
    text = top.object("text_config") or top
    attention_named = _packed_experts_only(
        text.object("quantization_config") or top.object("quantization_config")
    )
    hidden = text.whole("hidden_size")
    moe = _moe_layers(text, outer_type)
    expert_hidden, expert_intermediate = _expert_sizes(text, hidden, moe)
    experts = text.whole("num_experts", "num_local_experts", "n_routed_experts")
    vocabulary = text.whole("vocab_size")
    dense = 0 if all(moe) else text.whole("intermediate_size")
    shape = Shape(
        architecture=names[0],
        model_type=outer_type,
        experts=experts,
        expert_hidden=expert_hidden,
        expert_intermediate=expert_intermediate,
        moe_layers=moe,
        attention=_attention(text, hidden, len(moe)),
        shared_experts_bytes=3
        * hidden
        * _shared_intermediate(text, expert_intermediate)
        * HALF_BYTES,
        router_bytes=experts * hidden * HALF_BYTES,
        latent_bytes=0 if expert_hidden == hidden else 2 * hidden * expert_hidden * HALF_BYTES,
        dense_intermediate=dense,
        dense_bytes=3 * hidden * dense * HALF_BYTES,
        vocabulary=vocabulary,
        embedding_bytes=vocabulary * hidden * HALF_BYTES,
        head_bytes=_head_bytes(text, outer_type, vocabulary * hidden * HALF_BYTES),
        vision_bytes=_vision_bytes(top, outer_type, hidden),
        attention_named=attention_named,
    )
    for one in (text, top):
        one.refuse_unknown()
    return shape


def _packed_experts_only(quantization: _Fields | None) -> bool:
    """The routed experts are MXFP4. True if the config says that attention is not."""
    if quantization is None:
        raise missing("quantization_config", "is missing: these experts are not packed MXFP4.")
    method = quantization.get("quant_method")
    kept = quantization.get("ignore", "modules_to_not_convert")
    if method == "compressed-tensors":
        formats = {quantization.get("format")}
        groups = quantization.get("config_groups")
        for group in groups.values() if isinstance(groups, Mapping) else ():
            formats.add(group.get("format") if isinstance(group, Mapping) else None)
        if formats - {None} != {PACKED_FORMAT}:
            raise missing("quantization_config.format", f"is not {PACKED_FORMAT}.")
    elif method != "mxfp4":
        raise missing("quantization_config.quant_method", f"{method!r} is not packed MXFP4.")
    return isinstance(kept, list) and any("self_attn" in str(one) for one in kept)


def _moe_layers(text: _Fields, model_type: str) -> tuple[bool, ...]:
    layers = text.whole("num_hidden_layers")
    first = text.optional("first_k_dense_replace", least=0)
    step = text.optional("decoder_sparse_step")
    dense_only = text.get("mlp_only_layers")
    if first is None and step is None and dense_only is None and model_type != GPT_OSS:
        # SGLang's GPT-OSS has experts in every layer and no field to say so.
        raise missing(
            text.path("first_k_dense_replace or mlp_only_layers"),
            "is missing: which layers have experts is not known.",
        )
    if step not in (None, 1):
        raise missing(text.path("decoder_sparse_step"), f"{step} is not modelled, only 1 is.")
    if dense_only not in (None, []):
        raise missing(text.path("mlp_only_layers"), "is not empty, which is not modelled.")
    cadence = text.optional("moe_layer_freq") or 1
    moe = tuple(n >= (first or 0) and n % cadence == 0 for n in range(layers))
    if True not in moe:
        raise missing(text.path("first_k_dense_replace"), "leaves no layer with experts.")
    return moe


def _expert_sizes(text: _Fields, hidden: int, moe: tuple[bool, ...]) -> tuple[int, int]:
    intermediate = text.optional("moe_intermediate_size")
    if intermediate is None:
        if not all(moe):
            raise missing(
                text.path("moe_intermediate_size"),
                "is missing, and intermediate_size is that of the dense layers.",
            )
        intermediate = text.whole("intermediate_size")
    width = text.optional("routed_expert_hidden_size") or hidden
    for name, value in (("moe_intermediate_size", intermediate), ("expert width", width)):
        if value % 32:
            raise missing(text.path(name), f"{value} is no multiple of 32, the block of MXFP4.")
    return width, intermediate


def _shared_intermediate(text: _Fields, expert_intermediate: int) -> int:
    explicit = text.optional("shared_expert_intermediate_size", least=0)
    count = text.optional("num_shared_experts", "n_shared_experts", least=0)
    return explicit if explicit is not None else (count or 0) * expert_intermediate


def _attention(text: _Fields, hidden: int, layers: int) -> tuple[Attention, ...]:
    for kind in text.get("layer_types") or ():
        if kind not in ("full_attention", "sliding_attention"):
            raise missing(text.path("layer_types"), f"{kind!r} is not modelled.")
    full = _mla(text, hidden) if text.get("kv_lora_rank") is not None else _gqa(text, hidden)
    linear = text.object("linear_attn_config")
    if linear is None:
        return (full,) * layers
    kda = linear.get("kda_layers")
    if not isinstance(kda, list):
        raise missing(linear.path("kda_layers"), "is missing.")
    delta = _kda(linear, hidden)
    # The config counts layers from 1.
    return tuple(delta if number in kda else full for number in range(1, layers + 1))


def _mla(text: _Fields, hidden: int) -> Attention:
    heads = text.whole("num_attention_heads")
    latent, rope = text.whole("kv_lora_rank"), text.whole("qk_rope_head_dim", least=0)
    nope, value = text.whole("qk_nope_head_dim"), text.whole("v_head_dim")
    query = text.optional("q_lora_rank")
    sharded = latent * heads * (nope + value) + heads * value * hidden
    sharded += (query or hidden) * heads * (nope + rope)
    if text.flag("mla_use_output_gate", otherwise=False):
        sharded += hidden * heads * value
    return Attention(
        heads=heads,
        sharded_bytes=sharded * HALF_BYTES,
        kv_heads=1,
        kv_bytes=0,
        replicated_bytes=hidden * ((query or 0) + latent + rope) * HALF_BYTES,
    )


def _gqa(text: _Fields, hidden: int) -> Attention:
    heads, kv_heads = text.whole("num_attention_heads"), text.whole("num_key_value_heads")
    width = text.whole("head_dim")
    return Attention(
        heads=heads,
        sharded_bytes=2 * hidden * heads * width * HALF_BYTES,
        kv_heads=kv_heads,
        kv_bytes=2 * hidden * kv_heads * width * HALF_BYTES,
        replicated_bytes=0,
    )


def _kda(linear: _Fields, hidden: int) -> Attention:
    """Kimi Delta Attention, as SGLang's `KimiK3DeltaAttention` makes it; its convolution is FP32."""
    heads, width = linear.whole("num_heads"), linear.whole("head_dim")
    kernel = linear.whole("short_conv_kernel_size")
    projection = heads * width
    sharded = 4 * hidden * projection + hidden * heads + width * projection
    replicated = hidden * width
    if linear.flag("use_full_rank_gate", otherwise=False):
        sharded += hidden * projection
    else:
        sharded += width * projection
        replicated += hidden * width
    return Attention(
        heads=heads,
        sharded_bytes=sharded * HALF_BYTES + 3 * projection * kernel * FLOAT_BYTES,
        kv_heads=1,
        kv_bytes=0,
        replicated_bytes=replicated * HALF_BYTES,
    )


def _head_bytes(text: _Fields, model_type: str, size: int) -> int:
    # SGLang's K3 and GPT-OSS make a head of their own without asking the config.
    otherwise = False if model_type in (KIMI_K3, GPT_OSS) else None
    tied = text.flag("tie_word_embeddings", otherwise=otherwise)
    return 0 if tied and model_type not in (KIMI_K3, GPT_OSS) else size


def _vision_bytes(top: _Fields, model_type: str, hidden: int) -> int:
    """K3's vision tower and projector, which SGLang puts on every GPU whole."""
    vision = top.object("vision_config")
    if vision is None and model_type != KIMI_K3:
        return 0
    if model_type != KIMI_K3:
        raise missing("vision_config", f"a vision tower of {model_type} is not modelled.")

    def size(name: str) -> int:
        found = None if vision is None else vision.optional(name)
        return _VISION_DEFAULTS[name] if found is None else found

    width = size("vt_hidden_size")
    if vision is not None and vision.get("merge_kernel_size") not in (None, [2, 2]):
        raise missing("vision_config.merge_kernel_size", "is not [2, 2].")
    merged = 4 * (width if vision is None else vision.optional("mm_hidden_size") or width)
    block = 4 * width * size("qkv_hidden_size") + 2 * width * size("vt_intermediate_size")
    patches = 3 * size("patch_size") ** 2 * width
    projector = merged * merged + merged * hidden
    return (size("vt_num_hidden_layers") * block + patches + projector) * HALF_BYTES
