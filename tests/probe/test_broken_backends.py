"""The test of the kernel checks: backends that are wrong in known ways, and one that is right.

The launch gate's own code starts the probe in SGLang's environment, with a package in FlashInfer's place
(`fake/flashinfer`). Every fault has happened somewhere, or is what a silent kernel error looks like. Only
the outputs tell: names, signatures and return codes are those of a good build in every row.
"""

import json
import pathlib
import time

import pytest
from tests.sglang.conftest import BASE_VERSION, require_env

from smgate.wire import base, facts
from smgate_agent.launch import checks, children, command

FAKE = pathlib.Path(__file__).with_name("fake")
LAYOUT = {
    "tp": 4, "ep": 2, "pp": 1, "dp": 1,
    "experts": 16, "hidden_size": 256, "intermediate_size": 256, "top_k": 4,
}  # fmt: skip
LAUNCH = {
    "launch_id": "l-1",
    "gpus": [{"uuid": "GPU-0000-aaaa", "sm": "10.7"}],
    "asked_a2a": None,
    "build": {"flashinfer_version": "0.7.2.post1"},
    "layout": LAYOUT,
}
TIME_S = 120.0
"""Far more than a check needs here, so that a busy machine makes no timeout."""
HANG_TIME_S = 12.0

BROKEN = {
    "all zeros and no error": ("zeros", "failed", "output_zero"),
    "NaN in one row of a hundred from 6144 tokens on": ("nan_in_many_tokens", "failed", "output_nan"),
    "SwiGLU in place of SiTU": ("swiglu", "failed", "activation_is_swiglu"),
    "SwiGLU in the tuned tactic alone": ("swiglu_when_tuned", "failed", "activation_is_swiglu"),
    "gate and up exchanged": ("swapped", "failed", "gate_and_up_swapped"),
    "scales not interleaved": ("scales_not_interleaved", "failed", "scale_layout_wrong"),
    "the quantiser's scales in another layout": ("quantizer_confuses_layouts", "failed", "activations_wrong"),
    "the next expert": ("off_by_one", "failed", "expert_off_by_one"),
    "the output of the call before": ("stale", "failed", "output_stale"),
    "an output that is never written": ("not_written", "failed", "output_not_written"),
    "ten percent too large": ("ten_percent", "failed", "output_scaled"),
    "one token of 6144 wrong": ("one_wrong_token", "failed", "element_error_high"),
    "another result each time": ("not_repeatable", "failed", "output_not_repeatable"),
    "no kernel for these options": ("no_kernel", "failed", "no_kernel"),
    "hangs": ("hang", "timeout", "probe_timeout"),
    "crashes": ("segfault", "error", "probe_crashed_signal_11"),
    "exits with 0 and says nothing": ("exit_without_output", "error", "probe_no_answer"),
    "says something that is no JSON": ("wrong_json", "error", "probe_no_answer"),
    "says something that is no result": ("wrong_shape_of_json", "error", "probe_answer_malformed"),
    "out of memory": ("out_of_memory", "error", "out_of_memory"),
    "an illegal memory access": ("illegal_access", "error", "kernel_raised_runtimeerror"),
    "does not import": ("import_error", "error", "flashinfer_import_failed"),
    "the reference broken, not the kernel": ("reference_broken", "error", "reference_broken"),
}  # fmt: skip
NO_CONTROL = {"output_not_written", "activations_wrong", "no_kernel"}
"""Failures after which there is nothing to compare. `output_not_repeatable` stands for itself too: it is
found before the control has run."""

pytestmark = [pytest.mark.sglang]


@pytest.fixture
def check(monkeypatch):
    """Runs one check as the launch gate does and gives what it would send."""
    python = str(require_env(BASE_VERSION))

    def run(name, fault, *, time_s=TIME_S, **beside):
        monkeypatch.setenv("PYTHONPATH", str(FAKE))
        monkeypatch.setenv("SMGATE_FAKE_FLASHINFER", fault)
        (fact,) = checks.run(
            [name],
            LAUNCH,
            command=command.Command(tokens=(), interpreter=python),
            children=children.Children(),
            until=time.monotonic() + time_s,
            beside={"device": "cpu", **beside},
        )
        return base.decode(json.dumps(fact).encode(), facts.CheckFinished)

    return run


@pytest.mark.parametrize(("fault", "outcome", "reason"), BROKEN.values(), ids=BROKEN)
def test_broken_backend_is_caught(check, fault, outcome, reason):
    found = check("moe_mxfp4", fault, time_s=HANG_TIME_S if fault == "hang" else TIME_S)
    assert (found.outcome, found.reason) == (outcome, reason), found.numbers
    assert found.negative_control != "missed"
    if outcome == "failed" and reason not in NO_CONTROL:
        assert found.numbers["last_tokens"] >= 1
        assert (found.negative_control == "caught") == (reason != "output_not_repeatable")


def test_the_right_backend_passes(check):
    found = check("moe_mxfp4", "", unpacked=True)
    assert (found.outcome, found.reason) == ("passed", "outputs_right"), found.numbers
    assert found.negative_control == "caught"
    for tokens in (1, 16, 128, 1024, 6144, 8192):
        for mode in ("untuned", "tuned"):
            measured = {
                name.removeprefix(f"m{tokens}.{mode}."): value
                for name, value in found.numbers.items()
                if name.startswith(f"m{tokens}.{mode}.")
            }
            assert measured.pop("cosine") > 0.9999
            assert measured.pop("relative_error") < 0.005
            assert measured.pop("element_error") < 0.1
            assert measured.pop("zero_share") < 0.0001
            assert measured == {"unwritten_share": 0, "nan_share": 0, "repeat_difference_share": 0}


def test_the_right_quantisers_pass(check):
    found = check("quantize", "")
    assert (found.outcome, found.reason) == ("passed", "quantizers_right"), found.numbers
    assert found.negative_control == "caught"


@pytest.mark.parametrize(
    ("fault", "outcome", "reason"),
    [
        ("quantizer_confuses_layouts", "failed", "mxfp8_scales_wrong"),
        ("quantizer_truncates", "failed", "mxfp8_values_wrong"),
        ("scales_not_interleaved", "failed", "scale_layout_wrong"),
        ("reference_broken", "error", "reference_broken"),
        ("import_error", "error", "flashinfer_import_failed"),
    ],
)
def test_a_broken_quantiser_is_caught(check, fault, outcome, reason):
    found = check("quantize", fault)
    assert (found.outcome, found.reason) == (outcome, reason), found.numbers


@pytest.mark.parametrize("name", ["quantize", "moe_mxfp4"])
def test_without_a_gpu_and_not_told_to_do_without_it_is_skipped(check, name):
    found = check(name, "", device="cuda")
    assert (found.outcome, found.reason) == ("skipped", "no_gpu")


@pytest.mark.parametrize("name", ["quantize", "moe_mxfp4"])
def test_a_launch_without_the_experts_shape_is_skipped(check, name):
    found = check(name, "", layout={"tp": 8, "experts": 0})
    assert (found.outcome, found.reason) == ("skipped", "layout_unknown")
