"""What real GPUs answered: the product reads it, and nothing in it is taken for more than it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from smgate.wire import base, facts
from smgate_agent.launch import checks

RECORDINGS = {
    path.stem: json.loads(path.read_text()) for path in Path(__file__).parent.glob("h*.json")
}
MARLIN = json.loads((Path(__file__).parent / "marlin_h200.json").read_text())
BELOW_SM100 = ("h200",)
KERNELS = ("artifact", "quantize", "moe_mxfp4")


@pytest.fixture(params=sorted(RECORDINGS))
def recording(request):
    return RECORDINGS[request.param]


@pytest.fixture(params=BELOW_SM100)
def below_sm100(request):
    found = RECORDINGS[request.param]
    assert float(sm(found)) < 10
    return found


def results(recording):
    return [*recording["checks_cold"], *recording["checks_built"]]


def decoded(fact, kind):
    return base.decode(json.dumps(fact).encode(), kind)


def sm(recording):
    (gpu,) = recording["launch"]["gpus"]
    return gpu["sm"]


def test_the_controller_reads_the_launch_and_every_result(recording):
    launch = decoded(recording["launch"], facts.LaunchPlanned)
    assert launch.build.driver_version
    for result in results(recording):
        fact = checks.finished(result["check"], result, recording["launch"])
        read = decoded(fact, facts.CheckFinished)
        assert (read.outcome, read.reason) == (result["outcome"], result["reason"])
        assert read.sm == sm(recording)


def test_no_check_of_the_kernels_passes_where_the_target_has_none(below_sm100):
    for result in results(below_sm100):
        if result["check"] in KERNELS:
            assert result["outcome"] == "skipped"
            assert result["reason"]


def test_below_sm100_the_quantisers_return_and_write_nothing(below_sm100):
    """So no layout of the scales gives the source back, and a round trip measures old memory."""
    lines = below_sm100["quantisers"]
    assert {line["call"] for line in lines} == {"mxfp4_quantize", "mxfp8_quantize"}
    for line in lines:
        assert (line["unwritten_values"], line["unwritten_scales"]) == (1.0, 1.0)


def test_what_was_compiled_on_the_machine_is_loaded_by_a_check_that_compiles_nothing(below_sm100):
    """On SM90 the scale layout is the one thing that `quantize` can see; it needs the built module."""
    cold, built = (
        next(one for one in below_sm100[title] if one["check"] == "quantize")
        for title in ("checks_cold", "checks_built")
    )
    assert cold["reason"] == "kernels_not_prebuilt"
    assert built["reason"] == "sm_not_supported"
    assert built["numbers"]["interleaved_scales_right"] == 1


def test_the_gate_adds_less_than_it_may(recording):
    assert recording["gate"]["gate_ms"] - recording["gate"]["bare_ms"] < 3_000


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ("swiglu", "cosine_low"),
        ("gate_up_swapped", "cosine_low"),
        ("no_linear_beta", "cosine_low"),
        ("zeros", "output_zero"),
        ("ten_percent", "relative_error_high"),
        ("nan_rows", "output_nan"),
        ("unwritten", "output_zero"),  # the memory it got happened to be zero
        ("rows_of_others", "cosine_low"),
    ],
)
def test_the_check_of_the_safe_value_catches_each_broken_kernel_on_a_gpu(broken, reason):
    found = {one["broken"]: one for one in MARLIN["broken"]}
    assert (found[broken]["outcome"], found[broken]["reason"]) == ("failed", reason)
    assert found[broken]["negative_control"] == "caught"


def test_the_safe_value_computes_what_it_should_on_a_gpu_and_is_not_compiled_for_the_check():
    """SGLang's own kernel, and far inside the bounds, or a right one would fail now and then."""
    assert MARLIN["cold"]["reason"] == "kernel_not_prebuilt"
    right = next(one for one in MARLIN["broken"] if one["broken"] == "right")
    for found in (MARLIN["built"], right):
        assert (found["outcome"], found["negative_control"]) == ("passed", "caught")
        assert found["numbers"]["cosine"] > 0.9999
        assert found["numbers"]["relative_error"] < 0.005
        assert found["numbers"]["element_error"] < 0.1
