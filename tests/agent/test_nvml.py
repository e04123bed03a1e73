"""GPUs: a driver hiccup forgets nothing, and an Xid that repeats is said once in a while."""

import pynvml
import pytest
from tests import skips

from smgate.wire import facts
from smgate_agent import nvml


def gpu(uuid, sm="10.7", name="Rubin", memory_bytes=288):
    return facts.Gpu(uuid=uuid, sm=sm, name=name, memory_bytes=memory_bytes)


def test_what_a_driver_hiccup_hides_stays_as_it_was_last_seen():
    before = nvml.Inventory(gpus=(gpu("GPU-1"), gpu("GPU-2")), driver_version="580.1")
    half = nvml.Inventory(gpus=(gpu("GPU-1", sm=None, name="", memory_bytes=0), gpu("GPU-2")))
    assert nvml.keep_known(before, half) == before
    gone = nvml.Inventory(reason="the driver does not answer")
    assert nvml.keep_known(before, gone) == before


def test_a_gpu_that_never_told_its_sm_stays_unknown():
    first = nvml.Inventory(gpus=(gpu("GPU-1", sm=None),))
    assert nvml.keep_known(nvml.Inventory(), first) == first
    assert nvml.keep_known(first, first).gpus[0].sm is None


def test_hardware_that_really_changed_is_reported():
    before = nvml.Inventory(gpus=(gpu("GPU-1"), gpu("GPU-2")))
    after = nvml.Inventory(gpus=(gpu("GPU-3"), gpu("GPU-1")), driver_version="590")
    assert nvml.keep_known(before, after) == after


def test_an_xid_that_repeats_is_counted_always_and_said_once_in_a_while(manual_clock):
    log = nvml.FaultLog(manual_clock)
    fault = nvml.Fault(gpu_uuid="GPU-1", xid=13)
    said = [log.add(fault) for _ in range(1000)]
    assert said == [True] + [False] * 999
    assert log.add(nvml.Fault(gpu_uuid="GPU-1", xid=31))
    assert log.add(nvml.Fault(gpu_uuid="GPU-2", xid=13))
    manual_clock.advance(nvml.REPEAT_S)
    assert log.add(fault)
    assert log.count(()) == 1003
    assert log.count(("GPU-1",)) == 1002
    assert log.count(("GPU-9",)) == 0


def test_a_machine_without_a_driver_has_a_reason_and_no_faults():
    driver = nvml.Nvml()
    driver.open()
    inventory = driver.inventory()
    if driver.reason is None:
        assert inventory.gpus
    else:
        assert inventory == nvml.Inventory(reason=driver.reason)
        assert list(driver.faults(wait_ms=1)) == []


@pytest.mark.gpu
def test_real_gpus_tell_their_exact_compute_capability():
    skips.needs_gpu()
    driver = nvml.Nvml()
    driver.open()
    inventory = driver.inventory()
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    assert inventory.gpus[0].sm == f"{major}.{minor}"
    assert inventory.gpus[0].memory_bytes > 1 << 30
    assert inventory.driver_version
    assert next(driver.faults(wait_ms=50), None) is None
