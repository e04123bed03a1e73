"""BF16 fallback: three answers, never two. And what packed weights should weigh."""

import json
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from smgate_agent import fallback, model_config, server_args, units

K3 = "KimiK3ForConditionalGeneration"
ARCHITECTURES = frozenset({K3})


def evidence(**changes):
    values = {
        "stage": "loading",
        "architecture": K3,
        "mxfp4": True,
        "runner": "auto",
        "a2a": "none",
        "weight_bytes": None,
        "expected_packed_bytes": None,
        "upcast_ran_out_of_memory": False,
    }
    return fallback.Evidence(**{**values, **changes})


def phase(**changes):
    verdict = fallback.judge(evidence(**changes), ARCHITECTURES)
    return verdict.phase if verdict.known else "unknown"


@pytest.mark.parametrize("runner", ["auto", "triton"])
@pytest.mark.parametrize("a2a", ["none", "deepep"])
def test_an_upcasting_value_is_imminent_before_and_active_after_loading(runner, a2a):
    assert phase(runner=runner, a2a=a2a) == "imminent"
    assert phase(runner=runner, a2a=a2a, stage="loaded") == "active"


@pytest.mark.parametrize("runner", ["marlin", "flashinfer_mxfp4", "deep_gemm"])
def test_a_packed_runner_is_no_fallback(runner):
    assert phase(runner=runner) is None
    assert phase(runner=runner, stage="loaded") is None


@pytest.mark.parametrize("a2a", ["megamoe", "flashinfer_megamoe"])
def test_under_megamoe_the_runner_is_not_what_runs(a2a):
    assert phase(a2a=a2a, stage="loaded") is None


def test_a_gates_architecture_is_judged_by_its_value_though_its_format_could_not_be_read():
    assert phase(mxfp4=None) == "imminent"
    assert phase(mxfp4=None, stage="loaded") == "active"
    assert phase(mxfp4=None, runner="marlin") is None
    assert phase(mxfp4=None, architecture="GptOssForCausalLM") == "unknown"
    assert phase(mxfp4=None, architecture=None) == "unknown"


@pytest.mark.parametrize("missing", ["architecture", "runner", "a2a"])
def test_missing_evidence_is_unknown_and_never_fine(missing):
    assert phase(**{missing: None}) == "unknown"
    assert phase(**{missing: None, "stage": "loaded"}) == "unknown"


@pytest.mark.parametrize("changes", [{"runner": "other"}, {"a2a": "other"}])
def test_a_name_this_agent_does_not_know_is_unknown(changes):
    assert phase(**changes) == "unknown"


def test_a_model_without_mxfp4_is_never_a_fallback():
    assert phase(mxfp4=False, stage="loaded", weight_bytes=9 << 40, expected_packed_bytes=1) is None


def test_twice_the_expected_bytes_are_a_fallback_whatever_the_value_says():
    packed = 100 * units.GIB
    heavy = {"runner": "marlin", "stage": "loaded", "expected_packed_bytes": packed}
    assert phase(**heavy, weight_bytes=2 * packed) == "active"
    assert phase(**heavy, weight_bytes=2 * packed - 1) is None
    verdict = fallback.judge(evidence(**heavy, weight_bytes=3 * packed), ARCHITECTURES)
    assert verdict.excess_bytes == 2 * packed


def test_another_architecture_is_judged_by_its_bytes_alone():
    other = {"architecture": "GptOssForCausalLM", "stage": "loaded"}
    assert phase(**other) == "unknown"
    assert phase(**other, weight_bytes=10, expected_packed_bytes=8) is None
    assert phase(**other, weight_bytes=16, expected_packed_bytes=8) == "active"


def test_out_of_memory_in_the_upcast_is_a_crash_even_if_nothing_else_is_known():
    nothing = {"architecture": None, "mxfp4": None, "runner": None, "a2a": None}
    assert phase(**nothing, upcast_ran_out_of_memory=True) == "crashed"


K3_CONFIG = {
    "architectures": [K3],
    "text_config": {
        "hidden_size": 7168,
        "routed_expert_hidden_size": 3584,
        "moe_intermediate_size": 3072,
        "intermediate_size": 33792,
        "num_experts": 896,
        "num_hidden_layers": 93,
        "first_k_dense_replace": 1,
        "quantization_config": {
            "quant_method": "compressed-tensors",
            "format": "mxfp4-pack-quantized",
            "config_groups": {"group_0": {"format": "mxfp4-pack-quantized"}},
        },
    },
}


def test_expert_bytes_of_the_model_agree_with_its_published_size():
    config = model_config.parse(json.dumps(K3_CONFIG).encode())
    assert (config.architecture, config.mxfp4) == (K3, True)
    packed_gib = config.expert_parameters * model_config.PACKED_BYTES_PER_PARAMETER / units.GIB
    assert round(packed_gib) == 1347


def test_the_recorded_config_is_read():
    recorded = Path(__file__).parent.parent / "fixtures/sglang/k3_config.json"
    config = model_config.parse(recorded.read_bytes())
    assert (config.architecture, config.mxfp4) == (K3, True)


@pytest.mark.parametrize(("tp", "bf16_gib"), [(8, 634), (16, 317)])
def test_bf16_experts_of_a_dense_layout_weigh_more_than_twice_what_is_expected(tp, bf16_gib):
    config = model_config.parse(json.dumps(K3_CONFIG).encode())
    args = server_args.ServerArgs(tp=tp, pp=1)
    checkpoint = 1453 * units.GIB
    expected = model_config.expected_packed_bytes(config, args, checkpoint_bytes=checkpoint)
    packed_gib = 1347 / tp
    assert packed_gib * units.GIB < expected
    if tp == 8:
        assert bf16_gib * units.GIB >= 2 * expected


@pytest.mark.parametrize("change", ["tp", "pp", "checkpoint", "dims"])
def test_what_is_not_known_makes_no_expectation(change):
    body = dict(K3_CONFIG, text_config={}) if change == "dims" else K3_CONFIG
    config = model_config.parse(json.dumps(body).encode())
    args = server_args.ServerArgs(
        tp=None if change == "tp" else 8, pp=None if change == "pp" else 1
    )
    checkpoint = None if change == "checkpoint" else 1453 * units.GIB
    assert model_config.expected_packed_bytes(config, args, checkpoint_bytes=checkpoint) is None


@pytest.mark.parametrize(
    ("quantization", "expected"),
    [
        (None, False),
        ({}, False),
        ({"format": "mxfp4-pack-quantized"}, True),
        ({"config_groups": {"g": {"format": "mxfp4-pack-quantized"}}}, True),
        ({"quant_method": "mxfp4"}, True),
        ({"format": "nvfp4-pack-quantized"}, False),
        ("mxfp4", None),
        ([], None),
    ],
)
def test_mxfp4_is_seen_where_the_loader_sees_it(quantization, expected):
    body = json.dumps({"architectures": ["A"], "quantization_config": quantization}).encode()
    assert model_config.parse(body).mxfp4 is expected


def test_a_file_that_names_no_architecture_does_not_say_that_there_is_no_mxfp4():
    assert model_config.parse(b"{}") == model_config.ModelConfig()


@given(st.binary(max_size=200))
def test_any_bytes_are_a_config_that_says_nothing_or_something(body):
    model_config.parse(body)


@given(
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text()),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.dictionaries(
                st.sampled_from([*K3_CONFIG, *K3_CONFIG["text_config"], "format", "g"]),
                inner,
                max_size=4,
            ),
        ),
        max_leaves=12,
    )
)
def test_any_json_is_read_without_an_error(value):
    model_config.parse(json.dumps(value).encode())
