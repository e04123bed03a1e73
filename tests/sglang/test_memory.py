"""SGLang's own `Mxfp4MoEMethod.create_weights` against `smgate.domain.memory`, byte for byte.

The method runs on torch's meta device, so that full sizes take no memory. What `FusedMoE` does before
it (experts by EP, the intermediate size by TP / EP, the hidden size to 256 for `flashinfer_mxfp4`) is
given here as its source has it: importing it needs cuda-python.
"""

import pytest

from smgate.domain.memory import parts

pytestmark = pytest.mark.sglang

K3 = {"experts": 896, "hidden": 3584, "intermediate": 3072}
GPT_OSS_20B = {"experts": 32, "hidden": 2880, "intermediate": 2880}
GPT_OSS_120B = {"experts": 128, "hidden": 2880, "intermediate": 2880}

LAYOUTS = [
    *((K3, tp, ep) for tp, ep in ((8, 1), (8, 8), (4, 1), (4, 4), (16, 1), (16, 16), (32, 32))),
    *((K3, 8, 2), (K3, 16, 4)),
    *((GPT_OSS_20B, tp, ep) for tp, ep in ((1, 1), (2, 1), (4, 1), (8, 1), (8, 8))),
    *((GPT_OSS_120B, tp, ep) for tp, ep in ((1, 1), (4, 1), (8, 1), (8, 4), (8, 8))),
]


def local(model, tp, ep):
    return {
        "experts": model["experts"] // ep,
        "hidden": model["hidden"],
        "intermediate": model["intermediate"] // (tp // ep),
    }


def asked(worker, runner, sm, sizes):
    """The real parameters of each layout, summed by what they are."""
    cases = [
        {
            "runner": runner,
            "a2a": "none",
            "sm": sm,
            "torch_cuda": "13.0",
            "with_bias": size["experts"] % 896 != 0,
            **size,
        }
        for size in sizes
    ]
    return worker.ask_each("parameters_many", cases)


def summed(real):
    def of(*names):
        return sum(real[name]["bytes"] for name in names)

    return {
        "weights": of("w13_weight", "w2_weight"),
        "scales": of("w13_weight_scale", "w2_weight_scale"),
        "bias": of("w13_weight_bias", "w2_weight_bias"),
    }


@pytest.mark.parametrize(
    ("runner", "sm"),
    [("flashinfer_mxfp4", "10.0"), ("flashinfer_mxfp4", "10.7"), ("marlin", "10.7")],
)
def test_packed_experts_have_the_bytes_of_the_real_parameters(sglang, runner, sm):
    sizes = [local(*layout) for layout in LAYOUTS]
    given = [
        # FusedMoE.__init__ rounds for this runner; marlin's create_weights does it itself.
        {**size, "hidden": parts.round_up(size["hidden"], 256)} if runner != "marlin" else size
        for size in sizes
    ]
    for size, real in zip(sizes, asked(sglang, runner, sm, given), strict=True):
        ours = parts.expert_layer(**size).packed
        found = summed(real)
        assert (ours.weights, ours.scales) == (found["weights"], found["scales"]), size
        # Created BF16; the trtllm path makes them FP32 once loaded (`.to(torch.float32)`).
        assert {real[n]["dtype"] for n in ("w13_weight_bias", "w2_weight_bias")} == {
            "torch.bfloat16"
        }
        assert ours.bias == 2 * found["bias"], size


@pytest.mark.parametrize("runner", ["auto", "triton"])
@pytest.mark.parametrize("sm", ["9.0", "10.7", "12.0"])
def test_an_unresolved_runner_loads_the_bytes_of_the_real_parameters(sglang, runner, sm):
    sizes = [local(*layout) for layout in LAYOUTS]
    for size, real in zip(sizes, asked(sglang, runner, sm, sizes), strict=True):
        ours = parts.expert_layer(**size)
        loading = ours.unresolved_loading
        assert summed(real) == {
            "weights": loading.weights,
            "scales": loading.scales,
            "bias": loading.bias,
        }, size
        # The upcast makes 16 bits of every nibble: four times the bytes of each packed tensor.
        assert ours.bf16_w13 == 4 * real["w13_weight"]["bytes"]
        assert ours.bf16_w2 == 4 * real["w2_weight"]["bytes"]
        assert ours.bf16.weights == ours.bf16_w13 + ours.bf16_w2
        assert ours.bf16.bias == loading.bias


def test_k3_on_sixteen_gpus_is_padded_by_a_resolved_runner_alone(sglang):
    size = local(K3, 16, 1)
    [packed] = asked(sglang, "flashinfer_mxfp4", "10.7", [size])
    [loose] = asked(sglang, "auto", "10.7", [size])
    assert packed["w13_weight"]["shape"] == [896, 2 * 256, 1792]
    assert loose["w13_weight"]["shape"] == [896, 2 * 192, 1792]


def test_the_conversion_frees_what_it_replaces_as_the_walk_assumes(sglang):
    """Small, with real tensors: 16 bits come, packed weights and scales go, biases stay."""
    size = {"experts": 4, "hidden": 256, "intermediate": 192}
    answer = sglang.ask("weights", runner="auto", a2a="none", sm="10.7", torch_cuda="13.0", **size)
    assert answer["error"] is None
    ours = parts.expert_layer(**size)
    before = sum(one["bytes"] for one in answer["before"].values())
    after = sum(one["bytes"] for one in answer["after"].values())
    assert before == ours.unresolved_loading.total
    assert after == ours.bf16.total
