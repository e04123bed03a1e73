"""No kernel check puts anything on a GPU that is not free: the driver is asked before torch is."""

import pytest
from tests.probe import machine

LAYOUT = {"tp": 8, "experts": 896, "hidden_size": 3584, "intermediate_size": 3072, "top_k": 16}
TWO = [machine.gpu(0), machine.gpu(1)]
OWN = {"layout": LAYOUT, "gpu_uuids": [gpu["uuid"] for gpu in TWO]}
LEFT_ALONE = {
    "in use": ([TWO[0], {**TWO[1], "processes": 1}], "gpu_in_use"),
    "MIG": ([TWO[0], {**TWO[1], "mig": 1}], "mig_not_covered"),
    "not there": (TWO[:1], "gpu_not_found"),
    "no driver": (None, "no_gpu"),
}


@pytest.mark.parametrize("check", ["quantize", "moe_mxfp4"])
@pytest.mark.parametrize(("real", "reason"), LEFT_ALONE.values(), ids=LEFT_ALONE)
def test_a_gpu_that_may_not_be_touched_is_not_touched(tmp_path, check, real, reason):
    node = machine.Machine(tmp_path)
    if real is not None:
        node.driver(*real)
    answer = node.run(check, OWN, *TWO)
    assert (answer["outcome"], answer["reason"]) == ("skipped", reason)
    assert not node.touched.exists()


@pytest.mark.parametrize("check", ["quantize", "moe_mxfp4"])
def test_a_free_gpu_is_asked_whatever_runs_on_another(tmp_path, check):
    """FlashInfer is imported next, and is not there."""
    node = machine.Machine(tmp_path).driver({**TWO[0], "processes": 1}, TWO[1])
    answer = node.run(check, {**OWN, "gpu_uuids": [TWO[1]["uuid"]]}, *TWO)
    assert answer["reason"] == "flashinfer_missing"
    assert not node.touched.exists() or node.touched.read_text() == "cuda:1\n"
