"""The memory model on other models, and what it refuses: each refusal has the field's name."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
from tests.memory_models import GIB, deepseek_like, gpt_oss, gpu, k3, of

from smgate.domain.errors import RejectedError
from smgate.domain.memory import parts, shape as shapes

# Other models


@pytest.mark.parametrize(
    ("layers", "experts", "billions"), [(24, 32, 20.91), (36, 128, 116.83)], ids=["20b", "120b"]
)
def test_gpt_oss_has_the_parameters_its_model_card_counts(
    layers: int, experts: int, billions: float
) -> None:
    """20.91 and 116.83 billion, embedding and head included; norms, sinks and the biases of routers
    and attention, which this model leaves out, are below 0.01 billion."""
    config = gpt_oss(layers=layers, experts=experts)
    shape = shapes.read(config)
    assert all(shape.moe_layers)
    routed = parts.bf16(experts=experts, hidden=2880, intermediate=2880).times(layers)
    rest = parts.rest_of(shape, parts.Parallel(), 0)
    numbers = (routed.total + rest.total) / 2 / 1e9
    assert numbers == pytest.approx(billions, abs=0.015)


def test_gpt_oss_pads_both_widths_of_packed_experts() -> None:
    """2880 becomes 3072 in the hidden size, 360 becomes 384; a fallback keeps 2880 and pads to 384."""
    layer = of(gpt_oss(layers=24, experts=32), tp=8, on=gpu(80)).layer
    assert layer.packed.weights == 3 * 32 * 3072 * 384 // 2
    assert layer.bf16.weights == 3 * 32 * 2880 * 384 * 2
    assert layer.ratio == pytest.approx(3.7647 * 2880 / 3072, abs=0.0001)


def test_gpt_oss_20b_hides_its_fallback_on_a_large_gpu_and_dies_on_a_small_one() -> None:
    """35.6 GiB of experts in BF16: 24 layers x 32 experts x 3 x 2880 x 2880 values."""
    config = gpt_oss(layers=24, experts=32)
    large = of(config, tp=1, on=gpu(139.8)).worst
    assert large.experts_bf16.weights == 24 * 32 * 3 * 2880 * 2880 * 2
    assert large.fallback == "hides"
    small = of(config, tp=1, on=gpu(23.5)).worst
    assert (small.packed, small.fallback) == ("serves", "crashes_converting")


def test_kv_heads_are_repeated_when_there_are_more_gpus_than_heads() -> None:
    config = gpt_oss(layers=24, experts=32)
    eight, sixteen = (of(config, tp=tp, on=gpu(80)).stages[0].rest.attention for tp in (8, 16))
    keys_and_values = 24 * 2 * 2880 * 64 * 2
    assert eight - keys_and_values == 2 * (sixteen - keys_and_values)


def test_another_model_with_the_same_kind_of_fields_is_read_under_its_names() -> None:
    """671 billion parameters, which is what this shape is known for."""
    found = of(deepseek_like(), tp=1, on=gpu(4000))
    [stage] = found.stages
    assert stage.expert_layers == 58
    assert found.layer.local_experts == 256
    assert (stage.experts_bf16.weights + stage.rest.total) / 2 == pytest.approx(671e9, abs=1e9)


# What is not known is an error with the field's name


def without(config: dict[str, Any], path: str) -> dict[str, Any]:
    changed = copy.deepcopy(config)
    *parents, last = path.split(".")
    inside = changed
    for name in parents:
        inside = inside[name]
    del inside[last]
    return changed


@pytest.mark.parametrize(
    "path",
    [
        "architectures",
        "model_type",
        *(
            f"text_config.{name}"
            for name in (
                *("hidden_size", "num_hidden_layers", "vocab_size", "intermediate_size"),
                *("num_experts", "moe_intermediate_size", "first_k_dense_replace"),
                *("num_attention_heads", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
                *("linear_attn_config.num_heads", "linear_attn_config.head_dim"),
                *("linear_attn_config.kda_layers", "linear_attn_config.short_conv_kernel_size"),
            )
        ),
        "text_config.quantization_config",
    ],
)
def test_a_missing_field_is_named(path: str) -> None:
    with pytest.raises(RejectedError, match=path.rpartition(".")[2]) as refused:
        of(without(k3(), path), tp=8)
    assert refused.value.code == "bad_model_config"
    assert refused.value.next_step


@pytest.mark.parametrize("kept", [None, [], ["lm_head"]], ids=str)
def test_attention_that_may_be_packed_is_counted_at_16_bits_and_noted(
    kept: list[str] | None,
) -> None:
    config = k3()
    config["text_config"]["quantization_config"]["ignore"] = kept
    found = of(config, tp=8)
    assert found.stages == of(k3(), tp=8).stages
    assert [note.partition(":")[0] for note in found.notes] == [
        "quantization_config.ignore or modules_to_not_convert does not name self_attn"
    ]
    assert of(k3(), tp=8).notes == ()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_experts", 0),
        ("num_experts", "896"),
        ("num_experts", True),
        ("hidden_size", -7168),
        ("moe_intermediate_size", 3000),
        ("first_k_dense_replace", 93),
        ("decoder_sparse_step", 2),
        ("mlp_only_layers", [4]),
        ("num_zero_experts", 4),
        ("mla_use_output_gate", "yes"),
        ("index_n_heads", 64),
        ("linear_attn_config", "kda"),
        ("layer_types", ["linear_attention"]),
    ],
)
def test_a_value_that_is_not_modelled_is_named(name: str, value: object) -> None:
    with pytest.raises(RejectedError, match=name) as refused:
        of(k3(**{name: value}), tp=8)
    assert refused.value.code == "bad_model_config"


def test_weights_that_are_not_packed_are_no_case_for_this_model() -> None:
    config = k3()
    config["text_config"]["quantization_config"]["config_groups"]["group_0"]["format"] = "int4"
    with pytest.raises(RejectedError, match=r"quantization_config\.format"):
        of(config, tp=8)
    other = deepseek_like()
    other["quantization_config"]["quant_method"] = "fp8"
    with pytest.raises(RejectedError, match="quant_method"):
        of(other, tp=8)
    with pytest.raises(RejectedError, match="vision_config"):
        of({**deepseek_like(), "vision_config": {"hidden_size": 8}}, tp=8)


@pytest.mark.parametrize(
    ("layout", "name"),
    [
        ({"tp": 5}, "tp"),
        ({"tp": 8, "ep": 3}, "ep"),
        ({"tp": 64}, "tp"),
        ({"tp": 0}, "tp"),
        ({"tp": 8, "pp": 94}, "pp"),
        ({"tp": 8, "a2a": "carrier_pigeon"}, "a2a"),
        ({"tp": 8, "dp_attention": 3}, "dp_attention"),
        ({"tp": 8, "redundant_experts": -8}, "redundant experts"),
    ],
)
def test_a_layout_that_sglang_could_not_make_is_named(layout: dict[str, Any], name: str) -> None:
    with pytest.raises(RejectedError, match=f"^{name}:") as refused:
        of(k3(), **layout)
    assert refused.value.code == "bad_layout"


def test_an_a2a_backend_makes_ep_equal_to_tp() -> None:
    assert of(k3(), tp=8, ep=2, a2a="deepep").layout.ep == 8
    assert of(k3(), tp=8, ep=2).layout.ep == 2
    with pytest.raises(RejectedError, match="a2a"):
        of(deepseek_like(), tp=8, a2a="deepep")


@pytest.mark.parametrize("fraction", ["0", "1.5"])
def test_a_gpu_that_cannot_be_is_refused(fraction: str) -> None:
    with pytest.raises(RejectedError) as refused:
        of(k3(), tp=8, on=gpu(268, fraction))
    assert refused.value.code == "bad_gpu"
    with pytest.raises(RejectedError):
        of(k3(), tp=8, on=gpu(0.5))


def test_every_number_of_the_answer_is_a_whole_one() -> None:
    worst = of(k3(), tp=16, on=gpu(267.9, "0.873")).worst
    for held in (worst, worst.rest, worst.experts_packed, worst.experts_bf16):
        for name in held.__slots__:
            value = getattr(held, name)
            assert not isinstance(value, float), name
    assert math.isclose(gpu(267.9, "0.873").static_bytes, (267.9 * GIB - 0.6 * GIB) * 0.873)
