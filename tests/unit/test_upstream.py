"""The model of SGLang's resolution and the outcome table, without SGLang.

That the values are SGLang's is shown in `tests/sglang`; here stand the edges: what is not modelled
says so, odd input is refused or read as nothing, and the two modules agree with each other.
"""

import itertools

import pytest
from hypothesis import given, strategies

from smgate.domain import outcome, upstream

SMS = ("8.0", "9.0", "10.0", "10.1", "10.3", "10.7", "11.0", "12.0", "12.1")
CUDAS = (None, "12.2", "12.6", "12.8", "13.0")


def config(**text):
    return {"architectures": [upstream.ARCHITECTURE], "text_config": text}


def quantized(*, top=None, group=None, weights=None):
    return {
        "quant_method": "compressed-tensors",
        **({"format": top} if top else {}),
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": weights or {},
                **({"format": group} if group else {}),
            }
        },
    }


MXFP4 = config(
    quantization_config=quantized(top="mxfp4-pack-quantized", group="mxfp4-pack-quantized")
)


def resolve(**changed):
    asked = {
        "sglang_version": "0.5.23",
        "sm": "10.7",
        "torch_cuda": "12.8",
        "a2a": "none",
        "backend": "auto",
        "hf_config": MXFP4,
    }
    return upstream.upstream_auto(**(asked | changed))


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"sglang_version": "0.5.17"}, "version_unknown"),
        ({"sglang_version": "0.5.24"}, "version_unknown"),
        ({"sglang_version": "0.5.23.post1"}, "version_unknown"),
        ({"hf_config": {"architectures": ["DeepseekV3ForCausalLM"]}}, "architecture_unknown"),
        ({"hf_config": {}}, "architecture_unknown"),
        ({"torch_cuda": None}, "not_cuda"),
        ({"backend": "cutlass"}, "runner_unknown"),
        ({"a2a": "mori"}, "a2a_unknown"),
    ],
)
def test_what_is_not_modelled_has_a_code_and_no_values(changed, code):
    assert resolve(**changed) == upstream.Resolution(code=code)


@pytest.mark.parametrize(
    ("changed", "code", "runner"),
    [
        ({}, "selected", outcome.TARGET),
        ({"sglang_version": "0.5.18"}, "sm_not_selected", "auto"),
        ({"sglang_version": "0.5.18", "sm": "10.3"}, "selected", outcome.TARGET),
        ({"torch_cuda": "12.6"}, "torch_cuda_too_old", "auto"),
        ({"sm": "12.0"}, "sm_not_selected", "auto"),
        ({"backend": "marlin"}, "explicit", "marlin"),
        ({"hf_config": config()}, "no_mxfp4", "auto"),
    ],
)
def test_each_reason_why_auto_stays_or_does_not_has_its_code(changed, code, runner):
    found = resolve(**changed)
    assert (found.code, found.runner) == (code, runner)


def test_a_format_at_the_top_alone_is_seen_by_the_loader_and_not_by_the_gate():
    odd = config(quantization_config=quantized(top="mxfp4-pack-quantized"))
    assert upstream.mxfp4_layout(odd) == "top_level"
    found = resolve(hf_config=odd, sm="10.0")
    assert (found.code, found.runner, found.memory_fallback) == ("format_not_seen", "auto", True)


def test_every_unresolved_auto_of_an_mxfp4_checkpoint_is_a_memory_fallback():
    for version, sm, cuda, a2a in itertools.product(
        upstream.VERSIONS, SMS, CUDAS[1:], ("none", "deepep", "mooncake")
    ):
        found = resolve(sglang_version=version, sm=sm, torch_cuda=cuda, a2a=a2a)
        assert found.memory_fallback == (found.runner == "auto"), (version, sm, cuda, a2a)


def test_the_megamoe_runner_is_an_alias_that_beats_the_a2a_that_was_named():
    for a2a in outcome.A2A_RUN:
        found = resolve(backend="megamoe", a2a=a2a)
        assert (found.runner, found.a2a) == (outcome.TARGET, "megamoe")
        assert found.memory_fallback is False


def test_the_pair_that_sm107_gets_with_deepep_dies():
    found = resolve(a2a="deepep")
    assert (found.runner, found.raises) == (outcome.TARGET, "no_fused_function")


@pytest.mark.parametrize("sm", ["blackwell", "10", "107", "10.7a", "", "10.", ".7", "1\uff10.7"])
def test_an_sm_is_major_dot_minor_and_nothing_else(sm):
    with pytest.raises(ValueError, match="is not major"):
        resolve(sm=sm)


def test_a_cuda_version_is_numbers():
    assert outcome.cuda_at_least("12.8.1", (12, 8))
    assert outcome.cuda_at_least("13", (12, 8))
    assert not outcome.cuda_at_least("12", (12, 8))
    with pytest.raises(ValueError, match="is not a version"):
        outcome.cuda_at_least("cu128", (12, 8))


def test_a_safe_value_never_raises_by_the_table_and_is_never_the_target():
    for version, sm, a2a, cuda in itertools.product(
        (*outcome.VERSIONS_RUN, "0.5.17", "0.6.0"), SMS, (*outcome.A2A_RUN, "mori"), CUDAS
    ):
        value = outcome.safe_value(sm=sm, a2a=a2a, sglang_version=version, torch_cuda=cuda)
        if value is None:
            continue
        assert value == outcome.SAFE
        assert a2a == "none"
        assert (
            outcome.raises(runner=value, a2a=a2a, sm=sm, sglang_version=version, torch_cuda=cuda)
            is None
        )


@pytest.mark.parametrize("sm", sorted(outcome.SAFE_SMS))
def test_marlin_is_safe_on_every_listed_sm_with_a_torch_that_knows_it(sm):
    asked = {"sm": sm, "a2a": "none", "sglang_version": "0.5.23"}
    assert outcome.safe_value(**asked, torch_cuda="12.8") == outcome.SAFE
    assert outcome.safe_value(**asked, torch_cuda="12.2") is None


def test_a_version_that_was_not_run_has_no_safe_value():
    for version in ("0.5.17", "0.5.24", "0.5.23.post1", ""):
        assert (
            outcome.safe_value(sm="10.7", a2a="none", sglang_version=version, torch_cuda="12.8")
            is None
        )


def test_every_code_and_refusal_has_a_sentence():
    assert set(upstream.SENTENCES) == set(upstream.Code.__args__)
    assert set(outcome.REFUSALS) == set(outcome.Refusal.__args__)
    assert all(text.endswith(".") for text in upstream.SENTENCES.values())


def test_the_two_modules_know_the_same_versions():
    assert upstream.VERSIONS == outcome.VERSIONS_RUN


JSON = strategies.recursive(
    strategies.none() | strategies.booleans() | strategies.integers() | strategies.text(),
    lambda inner: (
        strategies.lists(inner, max_size=3)
        | strategies.dictionaries(
            strategies.sampled_from(
                ["text_config", "quantization_config", "config_groups", "format", "weights", "g"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(
    strategies.dictionaries(strategies.sampled_from(["text_config", "quantization_config"]), JSON)
)
def test_any_config_json_is_read_without_an_error(found):
    assert upstream.mxfp4_layout(found) in {"group", "top_level", "none"}
