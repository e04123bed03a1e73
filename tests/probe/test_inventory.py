"""The driver and torch show the same GPUs, or the difference has a name."""

import pytest
from tests.probe import machine

from smgate_agent.probe import driver

TWO = [machine.gpu(0), machine.gpu(1)]


@pytest.fixture
def node(tmp_path):
    return machine.Machine(tmp_path)


def said(answer):
    return answer["outcome"], answer["reason"]


def test_gpus_that_both_show_pass(node):
    node.driver(*TWO, cuda=13020)
    answer = node.run("inventory", {"gpu_uuids": [TWO[1]["uuid"]]}, *TWO, cuda="13.0")
    assert said(answer) == ("passed", "gpus_answer")
    numbers = {name: value for name, value in answer["numbers"].items() if "xid" not in name}
    assert numbers == {
        "torch_cuda_major_minor": 13.0, "driver_cuda_major_minor": 13.2,
        "gpus": 2, "nvml.gpus": 2, "nvml.mig_gpus": 0, "nvml.busy_gpus": 0,
        "gpu0.sm": 10.7, "gpu1.sm": 10.7,
        "gpu0.memory_bytes": 287 << 30, "gpu1.memory_bytes": 287 << 30,
    }  # fmt: skip


DIFFERENT = {
    "fewer": ([machine.gpu(0)], {}, "gpu_count_disagrees"),
    "another": ([machine.gpu(0), machine.gpu(7)], {}, "gpu_uuid_disagrees:gpu1"),
    "another SM": ([machine.gpu(0, "10.3"), machine.gpu(1, "10.3")], {}, "sm_disagrees:gpu0"),
    "less memory": (
        [machine.gpu(0), machine.gpu(1, memory=200 << 30)], {}, "memory_disagrees:gpu1",
    ),
    "no name": ([{"sm": "10.7", "memory": 1 << 30}] * 2, {}, "gpu_uuid_unknown:gpu0"),
    "not the launch's": (TWO, {"gpu_uuids": ["GPU-0009-aaaa"]}, "launched_gpu_not_visible"),
    "mixed": ([machine.gpu(0), machine.gpu(1, "9.0")], {}, "sm_mixed"),
    "old": ([machine.gpu(0, "7.5"), machine.gpu(1, "7.5")], {}, "gpu_too_old"),
}  # fmt: skip


@pytest.mark.parametrize(("shown", "launch", "reason"), DIFFERENT.values(), ids=DIFFERENT)
def test_each_difference_has_its_name(node, shown, launch, reason):
    assert said(node.driver(*TWO).run("inventory", launch, *shown)) == ("failed", reason)


def test_a_server_may_be_given_fewer_gpus_than_the_machine_has(node):
    node.driver(*TWO).environ["CUDA_VISIBLE_DEVICES"] = "1"
    assert said(node.run("inventory", {}, TWO[1]))[0] == "passed"


def test_of_a_machine_with_mig_only_the_sm_is_compared(node):
    node.driver({**TWO[0], "mig": 1}).environ["CUDA_VISIBLE_DEVICES"] = "MIG-1"
    part = machine.gpu(5, memory=20 << 30)
    answer = node.run("inventory", {"gpu_uuids": ["MIG-1"]}, part)
    assert said(answer) == ("passed", "gpus_answer")
    assert answer["numbers"]["nvml.mig_gpus"] == 1
    assert said(node.run("inventory", {}, {**part, "sm": "9.0"})) == ("failed", "sm_disagrees")


def test_gpus_in_use_are_counted(node):
    node.driver({**TWO[0], "processes": 3}, TWO[1])
    assert node.run("inventory", {}, *TWO)["numbers"]["nvml.busy_gpus"] == 1


NO_GPU = {
    "no driver": (None, {}, "13.0", "skipped", "no_gpu"),
    "no GPU": ([], {}, "13.0", "skipped", "no_gpu"),
    "hidden": (TWO, {"CUDA_VISIBLE_DEVICES": ""}, "13.0", "skipped", "no_gpu_visible"),
    "torch for the CPU": (TWO, {}, None, "failed", "torch_without_cuda"),
    "newer CUDA": (TWO, {}, "14.0", "failed", "driver_too_old_for_cuda"),
    "something else": (TWO, {}, "13.0", "failed", "torch_sees_no_gpu"),
}


@pytest.mark.parametrize(
    ("shown", "environ", "cuda", "outcome", "reason"), NO_GPU.values(), ids=NO_GPU
)
def test_why_torch_sees_none_is_said(node, shown, environ, cuda, outcome, reason):
    if shown is not None:
        node.driver(*shown, cuda=13000)
    node.environ.update(environ)
    assert said(node.run("inventory", {}, cuda=cuda)) == (outcome, reason)


def test_a_torch_that_works_beside_a_silent_driver_is_an_error(node):
    assert said(node.run("inventory", {}, *TWO)) == ("error", "nvml_silent")


def test_xids_are_read_where_the_kernels_log_may_be_read():
    records = [
        b"3,1,1,-;NVRM: Xid (PCI:0000:17:00): 79, pid=1, GPU has fallen off the bus.\n",
        b"6,2,2,-;usb 1-1: new device\n",
        b"3,3,3,-;NVRM: Xid (PCI:0000:18:00): 13, Graphics Exception\n",
        b"\xff NVRM: Xid (", b"NVRM: Xid (PCI): abc",
    ]  # fmt: skip
    assert driver.xids(records) == [79, 13]
    assert driver.xids([]) == []
