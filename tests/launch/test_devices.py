"""Which GPUs a launch will see."""

import pytest

from smgate_agent.launch import devices


def gpu(index, sm="10.7", name="NVIDIA R200"):
    return {"uuid": f"GPU-{index:04d}-aaaa", "sm": sm, "name": name, "memory_bytes": 1}


ALIKE = {"gpus": [gpu(index) for index in range(4)]}
MIXED = {"gpus": [gpu(0), gpu(1, "9.0", "NVIDIA H200"), gpu(2)]}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, [0, 1, 2, 3]),
        ("", []),
        ("-1", []),
        ("2", [2]),
        ("3,1", [3, 1]),
        (" 0 , 2 ", [0, 2]),
        ("0,9,1", [0]),
        ("0,x,1", [0]),
        ("GPU-0002-aaaa", [2]),
        ("GPU-0002,GPU-0001-aaaa", [2, 1]),
        ("GPU-000", []),
        ("GPU-9999", []),
    ],
)
def test_cuda_visible_devices_is_read_as_cuda_reads_it(value, expected):
    environ = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
    found = devices.visible(ALIKE, environ)
    assert [entry["uuid"] for entry in found] == [f"GPU-{index:04d}-aaaa" for index in expected]


def test_an_index_into_unlike_gpus_names_none_of_them():
    every = [entry["uuid"] for entry in devices.visible(MIXED, {"CUDA_VISIBLE_DEVICES": "1"})]
    assert len(every) == 3
    by_bus = {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert [entry["sm"] for entry in devices.visible(MIXED, by_bus)] == ["9.0"]
    by_name = {"CUDA_VISIBLE_DEVICES": "GPU-0001"}
    assert [entry["sm"] for entry in devices.visible(MIXED, by_name)] == ["9.0"]


def test_mig_devices_are_looked_up_by_name():
    environ = {"CUDA_VISIBLE_DEVICES": "MIG-1234,MIG-5678"}
    assert devices.mig_names(environ) == ["MIG-1234", "MIG-5678"]
    reading = {**ALIKE, "mig": {"MIG-1234": {**gpu(0), "uuid": "MIG-1234"}, "MIG-5678": None}}
    assert [entry["uuid"] for entry in devices.visible(reading, environ)] == ["MIG-1234"]


def test_a_server_that_was_told_its_first_gpu_has_only_its_own():
    gpus = devices.visible(ALIKE, {})
    own = devices.of_this_server(gpus, first=2, step=1, count=2)
    assert [entry["uuid"] for entry in own] == ["GPU-0002-aaaa", "GPU-0003-aaaa"]
    assert devices.of_this_server(gpus, first=None, step=1, count=1) == gpus
    assert devices.of_this_server(gpus, first=-1, step=1, count=1) == gpus


def test_what_the_driver_says_out_of_shape_is_dropped():
    reading = {"gpus": [{**gpu(0), "sm": "blackwell"}, {**gpu(1), "uuid": "x y"}, "gpu"]}
    assert [(entry["uuid"], entry["sm"]) for entry in devices.visible(reading, {})] == [
        ("GPU-0000-aaaa", None)
    ]


@pytest.mark.parametrize(
    ("reading", "platform"),
    [
        ({"library": True, "answered": True, "gpus": [gpu(0)]}, "cuda"),
        ({"library": True, "answered": False}, "cuda"),
        ({"library": True, "answered": True, "gpus": []}, "none"),
        ({"library": False}, "none"),
        ({}, "none"),
    ],
)
def test_the_platform_follows_the_driver(reading, platform):
    assert devices.platform(reading, amd=False, ascend=False, intel=False) == platform


def test_other_makers_are_told_apart():
    assert devices.platform({}, amd=True, ascend=False, intel=False) == "rocm"
    assert devices.platform({}, amd=False, ascend=True, intel=True) == "npu"
    assert devices.platform({}, amd=False, ascend=False, intel=True) == "xpu"
