"""The probe's check `marlin` with SGLang's own classes, and against outputs that are wrong."""

import pytest

from smgate.domain import outcome

pytestmark = pytest.mark.sglang

K3 = {
    "tp": 8, "ep": 1, "pp": 1, "dp": 1, "experts": 896, "hidden_size": 3584,
    "intermediate_size": 3072, "top_k": 16, "expert_layers": 92,
}  # fmt: skip
SMS = ["8.0", "9.0", "10.0", "10.1", "10.3", "10.7", "11.0", "12.0", "12.1"]


@pytest.mark.parametrize("sm", SMS)
def test_the_check_refuses_where_sglang_would_and_nowhere_else(sglang, sm):
    """Here without a GPU: a layer is made, and SGLang says whether it would prepare its weights."""
    found = sglang.ask(
        "marlin_check", sm=sm, torch_cuda="13.0", launch={"layout": K3, "a2a": "none"}
    )
    refusal = outcome.raises(
        runner="marlin", a2a="none", sm=sm, sglang_version=sglang.version, torch_cuda="13.0"
    )
    expected = ("skipped", "no_gpu") if refusal is None else ("failed", "sm_refused")
    assert (found["outcome"], found["reason"]) == expected
    assert found["numbers"]["constructed"] == 1
    assert found["negative_control"] == "not_run"


def test_a_torch_that_does_not_know_the_gpu_is_refused_too(sglang):
    found = sglang.ask("marlin_check", sm="10.7", torch_cuda="12.6", launch={})
    assert (found["outcome"], found["reason"]) == ("failed", "sm_refused")


def test_a_machine_without_a_gpu_skips(sglang):
    found = sglang.ask("marlin_check", sm=None, torch_cuda=None, launch={"layout": K3})
    assert (found["outcome"], found["reason"]) == ("skipped", "no_gpu")


def test_with_another_a2a_there_is_no_safe_value_to_check(sglang):
    found = sglang.ask("marlin_check", sm="10.7", torch_cuda="13.0", launch={"a2a": "deepep"})
    assert (found["outcome"], found["reason"]) == ("skipped", "a2a_not_covered")


JUDGED = {
    "right": ["passed", ""],
    "cancelled": ["passed", ""],  # where parts of a sum cancel, a right output is zero
    "one in two hundred": ["failed", "output_zero"],
    "zeros": ["failed", "output_zero"],
    "nan": ["failed", "output_nan"],
    "ten percent": ["failed", "relative_error_high"],
    "one row": ["failed", "cosine_low"],
    "swiglu": ["failed", "cosine_low"],
    "swapped": ["failed", "cosine_low"],
}


def test_wrong_outputs_of_the_layer_are_told_from_a_right_one(sglang):
    found = sglang.ask("marlin_judged", outputs=list(JUDGED))
    assert {name: answer[:2] for name, answer in found.items()} == JUDGED
    assert {answer[2] for answer in found.values()} == {"caught"}
