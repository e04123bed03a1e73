"""SGLang's own MoE layers against `smgate.domain.outcome`, the table that says what dies and what is safe.

The runner is built by SGLang's `Mxfp4MoEMethod` and `create_moe_runner`. Without a driver that is
where it ends: that marlin's kernels run, and that they are right, no machine without a GPU can show.
"""

import itertools

import pytest

from smgate.domain import outcome, upstream

pytestmark = pytest.mark.sglang

SMS = ("8.0", "9.0", "10.0", "10.1", "10.3", "10.7", "11.0", "12.0", "12.1")
CUDAS = ("12.2", "12.6", "12.8", "13.0")
EXPERTS, HIDDEN, INTERMEDIATE = 2, 256, 128


def verdict(real):
    """SGLang's own words, in the table's codes."""
    if "error" not in real:
        return None
    text = real["error"]["text"]
    if "requires a fused func for a2a backend" in text:
        return "no_fused_function"
    if "requires SM90, SM100, or SM120" in text or "requires SM90+" in text:
        return "no_device_class"
    return f"unexpected: {real['error']}"


def ended_for_want_of_a_gpu(answer):
    """SGLang got past its own checks, to the first thing that needs a device."""
    text = answer["error"]["text"]
    return "not compiled with CUDA" in text or "Expected a cuda device" in text


def weights(worker, *, runner, a2a="none", sm, cuda):
    return worker.ask(
        "weights",
        runner=runner,
        a2a=a2a,
        sm=sm,
        torch_cuda=cuda,
        experts=EXPERTS,
        hidden=HIDDEN,
        intermediate=INTERMEDIATE,
    )


def table_at_construction(worker):
    """The whole table against the real construction; marlin's own check of the GPU comes later."""
    combinations = list(
        itertools.product(sorted(outcome.RUNNERS_RUN), sorted(outcome.A2A_RUN), SMS, CUDAS)
    )
    cases = [
        {"runner": runner, "a2a": a2a, "sm": sm, "torch_cuda": cuda}
        for runner, a2a, sm, cuda in combinations
    ]
    wrong = []
    for case, real in zip(cases, worker.ask_each("create_many", cases), strict=True):
        said = outcome.raises(sglang_version=worker.version, **case)
        if case["runner"] == outcome.SAFE and said == "no_device_class":
            said = None
        if said != verdict(real):
            wrong.append((case, real, said))
    assert not wrong, f"{len(wrong)} of {len(cases)}, the first: {wrong[0]}"


def marlin_after_loading(worker):
    """Marlin asks for its class of GPU only once the weights are loaded."""
    for sm, cuda in itertools.product(SMS, CUDAS):
        said = outcome.raises(
            runner=outcome.SAFE, a2a="none", sm=sm, sglang_version=worker.version, torch_cuda=cuda
        )
        answer = weights(worker, runner=outcome.SAFE, sm=sm, cuda=cuda)
        refused = "requires SM90+" in answer["error"]["text"]
        assert refused == (said == "no_device_class"), (sm, cuda, answer["error"])
        if not refused:
            assert ended_for_want_of_a_gpu(answer), answer["error"]


def test_every_row_of_the_table_is_what_sglang_does_at_construction(sglang):
    table_at_construction(sglang)


def test_older_sglang_constructs_as_the_table_says(old_sglang):
    table_at_construction(old_sglang)


def test_marlin_is_refused_after_loading_where_the_table_says_so(sglang):
    marlin_after_loading(sglang)


def test_older_sglang_refuses_marlin_after_loading_as_the_table_says(old_sglang):
    marlin_after_loading(old_sglang)


def test_a_safe_value_is_one_that_sglang_builds_and_keeps_packed(sglang):
    safe_somewhere = set()
    for sm, a2a, cuda in itertools.product(SMS, sorted(outcome.A2A_RUN), CUDAS):
        value = outcome.safe_value(sm=sm, a2a=a2a, sglang_version=sglang.version, torch_cuda=cuda)
        if value is None:
            continue
        safe_somewhere.add((sm, a2a))
        built = sglang.ask("create_runner", runner=value, a2a=a2a, sm=sm, torch_cuda=cuda)
        assert built == {"runner": value}
        answer = weights(sglang, runner=value, a2a=a2a, sm=sm, cuda=cuda)
        assert answer["upcasts"] == []
        assert ended_for_want_of_a_gpu(answer)
    assert safe_somewhere == {(sm, "none") for sm in outcome.SAFE_SMS}


def test_what_sglang_resolves_by_itself_dies_or_stands_as_the_model_says(sglang, k3_config):
    """The resolved pair of the model, given to the real constructor."""
    for sm, a2a, cuda in itertools.product(SMS, sorted(outcome.A2A_RUN), CUDAS):
        found = upstream.upstream_auto(
            sglang_version=sglang.version,
            sm=sm,
            torch_cuda=cuda,
            a2a=a2a,
            backend="auto",
            hf_config=k3_config(),
        )
        if found.raises == "a2a_refused":
            continue
        real = sglang.ask(
            "create_runner", runner=found.runner, a2a=found.a2a, sm=sm, torch_cuda=cuda
        )
        assert verdict(real) == found.raises, (sm, a2a, cuda)


@pytest.mark.parametrize("runner", ["auto", "triton"])
@pytest.mark.parametrize("sm", ["9.0", "10.7", "12.0"])
def test_an_unresolved_runner_makes_bf16_of_every_expert(sglang, runner, sm):
    answer = weights(sglang, runner=runner, sm=sm, cuda="12.8")
    assert answer["error"] is None
    assert [call["dtype"] for call in answer["upcasts"]] == ["torch.bfloat16"] * 2
    packed = ("w13_weight", "w13_weight_scale", "w2_weight", "w2_weight_scale")
    assert {answer["before"][name]["dtype"] for name in packed} == {"torch.uint8"}
    assert answer["after"]["w13_weight"]["dtype"] == "torch.bfloat16"
    assert answer["after"]["w2_weight"]["dtype"] == "torch.bfloat16"
    before = sum(answer["before"][name]["bytes"] for name in packed)
    after = sum(answer["after"][name]["bytes"] for name in ("w13_weight", "w2_weight"))
    # 4 bits and a scale byte per 32 values against 16 bits: 3.76 times the memory.
    assert after / before == pytest.approx(2 / (0.5 + 1 / 32))


@pytest.mark.parametrize("runner", [outcome.SAFE, outcome.TARGET])
@pytest.mark.parametrize("sm", ["10.0", "10.3", "10.7"])
def test_a_packed_runner_makes_no_bf16(sglang, runner, sm):
    """It ends at the first kernel, for want of a GPU; until there the experts are packed."""
    answer = weights(sglang, runner=runner, sm=sm, cuda="12.8")
    assert answer["upcasts"] == []
    assert answer["after"]["w13_weight"] == answer["before"]["w13_weight"]
    assert answer["after"]["w13_weight"]["dtype"] == "torch.uint8"
    assert ended_for_want_of_a_gpu(answer)


def test_the_model_calls_a_fallback_what_makes_bf16(sglang):
    for runner, a2a in itertools.product(("auto", "triton"), ("none", "deepep", "mooncake")):
        assert upstream.is_memory_fallback(runner=runner, a2a=a2a, layout="group")
        answer = weights(sglang, runner=runner, a2a=a2a, sm="10.7", cuda="12.6")
        assert len(answer["upcasts"]) == 2


def test_under_megamoe_nothing_is_made_bf16(sglang):
    assert not upstream.is_memory_fallback(runner="auto", a2a="megamoe", layout="group")
    answer = weights(sglang, runner="auto", a2a="megamoe", sm="10.7", cuda="12.8")
    assert answer["upcasts"] == []
