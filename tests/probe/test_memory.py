"""The packed experts are taken on each GPU of the launch, given back, and compared with BF16."""

import dataclasses
import random

import pytest
from tests.probe import machine

from smgate.domain.memory import fit, parts
from smgate.domain.values import Layout
from smgate_agent.probe import driver, memory

GIB = 1 << 30
K3 = {
    "tp": 8, "ep": 1, "pp": 1, "dp": 1, "experts": 896, "hidden_size": 3584,
    "intermediate_size": 3072, "top_k": 16, "expert_layers": 92,
}  # fmt: skip
TWO = [machine.gpu(0), machine.gpu(1)]


@pytest.fixture
def node(tmp_path):
    return machine.Machine(tmp_path)


def launch(*gpus, **layout):
    return {"layout": {**K3, **layout}, "a2a": "none", "gpu_uuids": [gpu["uuid"] for gpu in gpus]}


def said(answer):
    return answer["outcome"], answer["reason"]


def test_what_fits_is_taken_on_every_gpu_of_the_launch_and_given_back(node):
    node.driver(*TWO)
    answer = node.run("memory", launch(*TWO), *TWO)
    assert said(answer) == ("passed", "packed_fits_bf16_crashes")
    assert answer["numbers"]["packed_bytes"] == pytest.approx(169.7 * GIB, rel=0.001)
    assert answer["numbers"]["bf16_bytes"] == pytest.approx(633.9 * GIB, rel=0.002)
    assert answer["numbers"]["gpu0.kept_bytes"] == answer["numbers"]["gpu1.kept_bytes"] == 0
    taken = [tuple(map(int, line.split())) for line in node.touched.read_text().splitlines()]
    for index in (0, 1):
        assert sum(size for at, size in taken if at == index) == answer["numbers"]["packed_bytes"]
    assert max(size for _, size in taken) <= GIB


def test_a_fallback_that_fits_is_called_what_it_is(node):
    node.driver(*TWO)
    answer = node.run("memory", launch(*TWO, tp=32, ep=32), *TWO)
    assert said(answer) == ("passed", "packed_fits_bf16_hides")
    assert answer["numbers"]["bf16_fits"] == 1


@pytest.mark.parametrize("more", [{"free": 100 * GIB}, {"fragmented": 200 * GIB}])
def test_what_does_not_fit_fails_and_nothing_is_kept(node, more):
    """Too little is free, or it is free and still not to be had."""
    node.driver(*TWO)
    answer = node.run("memory", launch(*TWO), TWO[0], {**TWO[1], **more})
    assert said(answer) == ("failed", "packed_does_not_fit:gpu1")
    if "free" in more:  # it is known beforehand: nothing is asked for
        assert "\n1 " not in node.touched.read_text()


def test_memory_that_does_not_come_back_is_an_error(node):
    node.driver(*TWO)
    answer = node.run("memory", launch(*TWO), *TWO, leaks=True)
    assert said(answer) == ("error", "memory_not_given_back:gpu0")


UNTOUCHED = {
    "in use": ([TWO[0], {**TWO[1], "processes": 1}], launch(*TWO), TWO, "gpu_in_use"),
    "in use by what is hidden": (
        [TWO[0], {**TWO[1], "used": GIB}],
        launch(*TWO),
        TWO,
        "gpu_in_use",
    ),
    "MIG": ([TWO[0], {**TWO[1], "mig": 1}], launch(*TWO), TWO, "mig_not_covered"),
    "not there": (TWO[:1], launch(*TWO), TWO, "gpu_not_found"),
    "hidden from torch": (TWO, launch(*TWO), TWO[:1], "gpu_not_visible"),
    "no driver": (None, launch(*TWO), TWO, "no_gpu"),
    "no layout": (TWO, {"gpu_uuids": []}, TWO, "layout_unknown"),
    "no layers": (TWO, launch(*TWO, expert_layers=0), TWO, "layout_unknown"),
}


@pytest.mark.parametrize(("real", "given", "shown", "reason"), UNTOUCHED.values(), ids=UNTOUCHED)
def test_where_it_may_not_or_cannot_be_asked_nothing_is_touched(node, real, given, shown, reason):
    if real is not None:
        node.driver(*real)
    assert said(node.run("memory", given, *shown)) == ("skipped", reason)
    assert not node.touched.exists()


def test_another_server_on_another_gpu_is_no_matter_and_is_left_alone(node):
    node.driver({**TWO[0], "processes": 1}, TWO[1])
    assert said(node.run("memory", launch(TWO[1]), *TWO))[0] == "passed"
    assert {line[0] for line in node.touched.read_text().splitlines()} == {"1"}


def test_the_sizes_are_the_controllers():
    dice = random.Random(7)
    known = 0
    for _ in range(2000):
        layout = Layout(
            tp=dice.choice([1, 2, 4, 8, 16, 72]), ep=dice.choice([1, 2, 4, 8, 16]),
            pp=dice.choice([1, 2, 3]), experts=dice.choice([0, 8, 32, 896]),
            hidden_size=dice.choice([0, 1000, 3584]), top_k=4,
            intermediate_size=dice.choice([0, 100, 3072]), expert_layers=dice.choice([0, 1, 7, 92]),
        )  # fmt: skip
        for a2a in ("none", "deepep", "other"):
            right = fit.experts(layout, a2a)
            found = memory.experts(dataclasses.asdict(layout), a2a)
            assert (right is None) == (found is None)
            if right is not None:
                known += 1
                assert dataclasses.asdict(right) == found._asdict()
    assert known > 500
    assert memory.A2A_OVER_ALL_OF_TP == parts.A2A_OVER_ALL_OF_TP


@pytest.mark.parametrize("value", [None, "8", 8.0, -1, True, [], float("nan")])
@pytest.mark.parametrize(
    "name", ["tp", "experts", "hidden_size", "expert_layers", "intermediate_size"]
)
def test_a_shape_of_another_form_is_unknown(name, value):
    assert memory.experts({**K3, name: value}, "none") is None


@pytest.mark.parametrize(("gpus", "own", "reason"), [
    ([], [], "no_gpu"),
    ([(None, 0)], [], None), ([(False, 0)], ["GPU-0"], None),
    ([(False, None)], [], "gpu_use_unknown"), ([(False, 2)], [], "gpu_in_use"),
    ([(True, 0)], [], "mig_not_covered"), ([(False, 0)], ["GPU-0", "GPU-1"], "gpu_not_found"),
    ([(False, 0), (False, 2)], ["GPU-0", "GPU-0"], None),
])  # fmt: skip
def test_a_gpu_of_which_the_driver_does_not_say_who_uses_it_is_left_alone(gpus, own, reason):
    shown = [
        driver.Gpu(f"GPU-{index}", "10.7", 1, mig, processes, None if processes is None else 0)
        for index, (mig, processes) in enumerate(gpus)
    ]
    assert driver.untouchable(driver.Driver("1", None, shown), own) == reason
    assert driver.untouchable(None, own) == "no_gpu"
    unsaid = [driver.Gpu("GPU-0", "10.7", 1, None, 0, None)]
    assert driver.untouchable(driver.Driver("1", None, unsaid), []) == "gpu_use_unknown"
