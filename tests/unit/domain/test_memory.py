"""The memory model against every number that was worked out or read for Kimi K3, each with its source.

Two sources: the table of K3's weight bytes, computed by hand from the same dimensions (its numbers are
rounded to the digits shown, so half a unit of the last digit is the tolerance unless a line says
otherwise), and readings on one NVIDIA H200 with torch 2.11.0.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from tests.memory_models import FIXTURES, GIB, gib, gpu, k3, of

from smgate.domain.errors import RejectedError
from smgate.domain.memory import estimate, parts

LAYERS = 92
HIDDEN, INTERMEDIATE = 3584, 3072


# The table: layout, local experts x intermediate, GiB per GPU packed, GiB per GPU in BF16.
TABLE = [
    ("TP8", {"tp": 8}, 896, 384, 169.7, 633.9),
    ("EP8", {"tp": 8, "ep": 8}, 112, 3072, 168.8, 633.9),
    ("TP4", {"tp": 4}, 896, 768, 338.4, 1267.9),
    ("EP4", {"tp": 4, "ep": 4}, 224, 3072, 337.5, 1267.9),
    # TP16 in BF16 stands there as 422.6, padded, and 317.0, unpadded: see the test below.
    ("TP16", {"tp": 16}, 896, 192, 113.5, 317.0),
    ("EP16", {"tp": 16, "ep": 16}, 56, 3072, 84.4, 317.0),
    ("EP32", {"tp": 32, "ep": 32}, 28, 3072, 42.2, 158.5),
]


@pytest.mark.parametrize(
    ("layout", "experts", "intermediate", "packed", "bf16"),
    [row[1:] for row in TABLE],
    ids=[row[0] for row in TABLE],
)
def test_routed_experts_take_what_the_table_says(
    layout: dict[str, int], experts: int, intermediate: int, packed: float, bf16: float
) -> None:
    found = of(k3(), **layout)
    [stage] = found.stages
    assert (found.layer.local_experts, found.layer.intermediate_per_partition) == (
        experts,
        intermediate,
    )
    assert stage.expert_layers == LAYERS
    # Packed with scales and FP32 biases; BF16 is of the weights alone.
    assert gib(stage.experts_packed.total) == pytest.approx(packed, abs=0.05001)
    assert gib(stage.experts_bf16.weights) == pytest.approx(bf16, abs=0.05001)


def test_the_three_terms_of_the_first_row() -> None:
    """158.5 + 9.9 + 1.3 = 169.7."""
    experts = of(k3(), tp=8).stages[0].experts_packed
    terms = [gib(experts.weights), gib(experts.scales), gib(experts.bias)]
    assert terms == pytest.approx([158.5, 9.9, 1.3], abs=0.05)


def test_the_padding_of_sixteen_way_tp_belongs_to_the_resolved_runner_alone() -> None:
    """The table has 422.6 GiB padded: the packed buffers of 256 in BF16. An unresolved runner pads
    to 64, so its fallback has the 317.0 GiB that the table gives as unpadded."""
    padded = parts.bf16(experts=896, hidden=HIDDEN, intermediate=256).times(LAYERS)
    assert gib(padded.weights) == pytest.approx(422.6, abs=0.05)
    layer = of(k3(), tp=16).layer
    assert gib(layer.bf16.weights * LAYERS) == pytest.approx(317.0, abs=0.05)
    assert layer.packed.weights == 3 * 896 * HIDDEN * 256 // 2
    w13, w2 = 896 * 2 * 256 * HIDDEN * 2, 896 * 256 * HIDDEN * 2
    assert (gib(w13), gib(w2)) == pytest.approx((3.06, 1.53), abs=0.005)
    assert (gib(layer.bf16_w13), gib(layer.bf16_w2)) == pytest.approx((2.30, 1.15), abs=0.005)


def test_seventy_two_way_ep_has_twelve_experts_and_some() -> None:
    """The table rounds 12.4 down to 12. SGLang asserts that EP divides the experts, so the real
    layout has 40 redundant ones, 13 per GPU, and a little more."""
    layer = parts.expert_layer(experts=12, hidden=HIDDEN, intermediate=INTERMEDIATE)
    assert gib(layer.packed.total * LAYERS) == pytest.approx(18.1, abs=0.05)
    assert gib(layer.bf16.weights * LAYERS) == pytest.approx(67.9, abs=0.05)
    with pytest.raises(RejectedError, match="40 more redundant experts"):
        of(k3(), tp=72, ep=72, dp_attention=72)
    real = of(k3(), tp=72, ep=72, dp_attention=72, redundant_experts=40)
    assert real.layer.local_experts == 13
    assert real.worst.fallback == "hides"


def test_the_ratio_is_two_bytes_to_seventeen_thirty_seconds() -> None:
    """3.7647 for every layout without padding, 0.53125 bytes a value."""
    for layout in ({"tp": 8}, {"tp": 8, "ep": 8}, {"tp": 32, "ep": 32}):
        layer = of(k3(), **layout).layer
        assert layer.ratio == pytest.approx(3.7647, abs=0.00005)
        values = 3 * layer.local_experts * HIDDEN * layer.intermediate_per_partition
        assert Fraction(layer.packed.weights + layer.packed.scales, values) == Fraction(17, 32)


def test_all_routed_experts_together() -> None:
    """1347 GiB packed without biases; 5071.5 GiB in BF16, which the table cuts to 5071; 2.72 T
    parameters of 2.8 T."""
    [stage] = of(k3(), tp=1, on=gpu(4000)).stages
    assert gib(stage.experts_packed.weights + stage.experts_packed.scales) == pytest.approx(
        1347, abs=0.5
    )
    assert gib(stage.experts_bf16.weights) == pytest.approx(5071, abs=0.5001)
    assert stage.experts_bf16.weights / 2 == pytest.approx(2.72e12, abs=0.005e12)
    assert (stage.experts_bf16.weights + stage.rest.total) / 2 == pytest.approx(2.8e12, abs=0.05e12)


def test_everything_but_the_routed_experts() -> None:
    """Shared 22.6, latent 8.8, gate 1.1, embedding and head 4.4, dense 1.35, attention about 67 GiB.

    "About 67" is 67.4 here: half of its last digit and a little. The vision tower has no number.
    """
    rest = of(k3(), tp=1, on=gpu(4000)).stages[0].rest
    assert gib(rest.shared_experts) == pytest.approx(22.6, abs=0.05)
    assert gib(rest.latent_projections) == pytest.approx(8.8, abs=0.05)
    assert gib(rest.router) == pytest.approx(1.1, abs=0.05)
    assert gib(rest.embedding_and_head) == pytest.approx(4.4, abs=0.05)
    assert gib(rest.dense_mlp) == pytest.approx(1.35, abs=0.005)
    assert gib(rest.attention) == pytest.approx(67, abs=0.5)


def test_the_checkpoint_is_one_and_a_half_terabytes() -> None:
    """1.56 TB, of which biases of routed experts are no part: K3 has none, SGLang makes them."""
    [stage] = of(k3(), tp=1, on=gpu(4000)).stages
    experts = stage.experts_packed
    size = experts.weights + experts.scales + stage.rest.total
    assert size / 1e12 == pytest.approx(1.56, abs=0.005)


def test_what_tp_shards_and_what_it_repeats() -> None:
    """All is TP-sharded except the latent projections and the gate; EP over an a2a backend repeats
    the shared experts: 22.6 GiB on every GPU."""
    one, eight = (of(k3(), tp=tp, on=gpu(4000)).stages[0].rest for tp in (1, 8))
    spread = of(k3(), tp=8, a2a="deepep").stages[0].rest
    assert eight.latent_projections == one.latent_projections
    assert eight.router == one.router
    assert eight.vision == one.vision
    for name in ("shared_experts", "dense_mlp", "embedding_and_head"):
        assert getattr(eight, name) * 8 == getattr(one, name)
    # Its low-rank and latent inputs are on every GPU: an eighth, and a little.
    assert one.attention / 8 < eight.attention < one.attention / 6
    assert gib(spread.shared_experts) == pytest.approx(22.6, abs=0.05)


def test_the_signature_of_the_crash_on_a_268_gib_part() -> None:
    """Packed load succeeds at 170 to 190 GiB, each layer then adds 5.06 GiB, and the allocation that
    fails after some 10 to 20 of 92 layers is w13's 4.59 GiB, or w2's 2.30."""
    for layout in ({"tp": 8}, {"tp": 8, "ep": 8}):
        found = of(k3(), **layout)
        [stage], layer = found.stages, found.layer
        loaded = stage.rest.total + layer.unresolved_loading.total * LAYERS
        # "About": with the vision tower, which the range leaves out, it is 192.
        assert 170 < gib(loaded) < 193
        grown = layer.bf16.weights - layer.unresolved_loading.weights
        assert gib(grown - layer.unresolved_loading.scales) == pytest.approx(5.06, abs=0.005)
        sizes = (gib(layer.bf16_w13), gib(layer.bf16_w2))
        assert sizes == pytest.approx((4.59, 2.30), abs=0.005)
        assert stage.packed == "serves"
        assert stage.fallback == "crashes_converting"
        assert stage.crash is not None
        assert 10 <= stage.crash.converted <= 20
        assert stage.crash.layer == stage.crash.converted + 1
        assert stage.crash.allocation_bytes in (layer.bf16_w13, layer.bf16_w2)


def test_the_recorded_crash_names_the_allocation_of_the_model() -> None:
    layer = of(k3(), tp=8).layer
    recorded = (FIXTURES / "logs" / "0.5.23-oom.log").read_text()
    assert f"Tried to allocate {gib(layer.bf16_w13):.2f} GiB" in recorded


def test_the_walk_dies_exactly_where_the_next_allocation_no_longer_fits() -> None:
    """One byte decides, at w13 of a layer, at its w2, and at the end."""
    found = of(k3(), tp=8)
    [stage], layer = found.stages, found.layer
    packed = layer.unresolved_loading.weights + layer.unresolved_loading.scales
    loaded = stage.rest.total + layer.unresolved_loading.total * LAYERS
    three = loaded + 3 * (layer.bf16_w13 + layer.bf16_w2 - packed)
    for room, converted, allocation in (
        (three + layer.bf16_w13 - 1, 3, layer.bf16_w13),
        (three + layer.bf16_w13, 3, layer.bf16_w2),
        (three + layer.bf16_w13 + layer.bf16_w2 - 1, 3, layer.bf16_w2),
        (three + layer.bf16_w13 + layer.bf16_w2, 4, layer.bf16_w13),
    ):
        exact = estimate.Gpu(memory_bytes=room, context_bytes=0, mem_fraction=Fraction(1))
        crash = of(k3(), tp=8, on=exact).worst.crash
        assert crash is not None
        assert (crash.converted, crash.allocation_bytes) == (converted, allocation)


@pytest.mark.parametrize("layout", [{"tp": 32, "ep": 32}, {"tp": 32, "a2a": "deepep"}])
def test_wide_ep_hides_a_fallback(layout: dict[str, Any]) -> None:
    """EP32 fits a 268 GiB part, the experts alone at 158.5 GiB: the server runs, slow and silent."""
    worst = of(k3(), **layout).worst
    assert worst.fallback == "hides"
    assert worst.crash is None
    assert worst.fallback_kv_bytes > 0
    assert worst.excess_bytes == worst.packed_kv_bytes - worst.fallback_kv_bytes
    assert gib(worst.excess_bytes) == pytest.approx(158.5 - 42.2, abs=0.1)


def test_a_fallback_that_fits_may_still_leave_no_kv_cache() -> None:
    """SGLang then ends with "Loaded weights leave no GPU memory for the KV cache"."""
    tight = of(k3(), tp=32, ep=32, on=gpu(268, "0.6")).worst
    assert (tight.packed, tight.fallback) == ("serves", "crashes_at_kv")
    assert tight.fallback_kv_bytes < 0 < tight.packed_kv_bytes
    assert of(k3(), tp=32, ep=32, on=gpu(268, "0.9")).worst.fallback == "hides"


def test_kv_headroom_is_the_static_share_less_the_weights() -> None:
    """`available - pre_model_load_memory * (1 - mem_fraction_static)` of SGLang's KV configurator."""
    exact = estimate.Gpu(memory_bytes=300 * GIB, context_bytes=0, mem_fraction=Fraction("0.9"))
    worst = of(k3(), tp=8, on=exact).worst
    assert worst.packed_kv_bytes == 270 * GIB - worst.packed_bytes
    assert worst.packed_bytes == worst.experts_packed.total + worst.rest.total


def test_packed_weights_that_do_not_fit_are_told_apart_from_a_fallback() -> None:
    worst = of(k3(), tp=4).worst
    assert (worst.packed, worst.fallback, worst.crash) == ("does_not_load", "does_not_load", None)
    assert of(k3(), tp=8, on=gpu(200)).worst.packed == "no_kv"


# Readings on one H200, SM 9.0, torch 2.11.0+cu130.


def allocated(sizes: list[int]) -> int:
    """What torch's caching allocator counts for fresh tensors: each gets a segment in steps of 2 MiB,
    and the rest of it is split off only if it is larger than 1 MiB."""
    step, kept = 2 << 20, 1 << 20
    segments = [-(-size // step) * step for size in sizes]
    return sum(
        seg if seg - size <= kept else size for size, seg in zip(sizes, segments, strict=True)
    )


def test_one_k3_layer_on_an_h200_read_1_831_gib_packed_and_6_891_in_bf16() -> None:
    """Read as w13, w2 and their scales, and as w13 and w2. 1.8303 GiB of tensors are 1.8308 as the
    allocator counts them, which is why the reading is 1.831 and its ratio 3.764, not 3.765."""
    layer = parts.expert_layer(experts=896, hidden=HIDDEN, intermediate=384)
    values = 896 * HIDDEN * 384
    packed = [2 * values // 2, values // 2, 2 * values // 32, values // 32]
    assert sum(packed) == layer.packed.weights + layer.packed.scales
    assert gib(sum(packed)) == pytest.approx(1.8303, abs=0.00005)
    assert gib(allocated(packed)) == pytest.approx(1.831, abs=0.0005)
    bf16 = [layer.bf16_w13, layer.bf16_w2]
    assert gib(allocated(bf16)) == pytest.approx(6.891, abs=0.0005)
    assert allocated(bf16) / allocated(packed) == pytest.approx(3.764, abs=0.0005)


def test_the_context_is_what_the_h200_showed_beside_pytorch() -> None:
    """In use 9.32 GiB, by PyTorch 8.72: each is rounded to 0.01, so is their difference, to 0.01."""
    assert gib(estimate.CONTEXT_BYTES) == pytest.approx(9.32 - 8.72, abs=0.01)


# Pipeline stages


def test_stages_share_the_layers_and_the_worst_one_decides() -> None:
    """SGLang gives the extra layer to the last stages; the first has the dense layer."""
    found = of(k3(), tp=8, pp=2)
    assert [(one.first_layer, one.last_layer) for one in found.stages] == [(0, 45), (46, 92)]
    assert [one.expert_layers for one in found.stages] == [45, 47]
    assert found.worst.number == 1
    whole = of(k3(), tp=8)
    assert sum(s.experts_packed.total for s in found.stages) == whole.worst.experts_packed.total
    both = sum(s.rest.embedding_and_head for s in found.stages)
    assert both == whole.worst.rest.embedding_and_head
    crash = found.worst.crash
    assert crash is not None
    assert crash.layer == 46 + crash.converted
