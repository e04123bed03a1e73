"""The only way to skip a test: each helper proves why, and a skip by any other way fails.

A suite that skips what it cannot run looks green and says nothing. What a machine without the
hardware cannot show is skipped here, with the driver's own words as the reason; everything else
the suite needs is installed by `make test`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Generator

import pynvml
import pytest

PROVEN = "proven: "
"""How the reason of a skip made here begins."""

Skipped = pytest.skip.Exception
"""What a helper raises."""

NO_DRIVER = (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED)


def needs_gpu(*, sm: str | None = None) -> None:
    """Skip unless the driver shows a GPU, and one of this SM if one is named.

    Any answer of the driver but "there is none" is an error, not a reason to skip.
    """
    try:
        found = _sms()
    except pynvml.NVMLError as exc:
        if exc.value not in NO_DRIVER:
            raise
        pytest.skip(f"{PROVEN}no GPU driver: {exc}")
    if not found:
        pytest.skip(f"{PROVEN}the driver shows no GPU")
    if sm is not None and sm not in found:
        pytest.skip(f"{PROVEN}no GPU of SM {sm}, only {', '.join(sorted(found))}")


def needs_test_all() -> None:
    """Skip unless `make test-all` runs."""
    if not os.environ.get("SMGATE_TEST_ALL"):
        pytest.skip(f"{PROVEN}SMGATE_TEST_ALL is not set; make test-all sets it")


def needs_namespaces() -> None:
    """Skip where the kernel gives this user no mount, PID and network namespaces."""
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip(f"{PROVEN}unshare (util-linux) is not installed")
    as_root = [] if os.getuid() == 0 else ["--map-root-user"]
    kinds = ["--mount", "--net", "--pid", "--fork", "--mount-proc"]
    tried = subprocess.run(
        [unshare, *as_root, *kinds, "true"], capture_output=True, text=True, check=False
    )
    if tried.returncode:
        pytest.skip(f"{PROVEN}no namespaces for this user: {tried.stderr.strip()}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn the skip of a test into a failure unless it was proven here."""
    report = yield
    refuse_unproven(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for the skip of a whole module."""
    report = yield
    refuse_unproven(report)
    return report


def refuse_unproven(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Fail a skipped report whose reason was not made by a helper of this module."""
    if not report.skipped or hasattr(report, "wasxfail"):
        return
    said = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if not said.removeprefix("Skipped: ").startswith(PROVEN):
        report.outcome = "failed"
        report.longrepr = f"unexpected skip ({said}): skip through tests/skips.py, or not at all"


def _sms() -> set[str]:
    pynvml.nvmlInit()
    try:
        handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
        pairs = [pynvml.nvmlDeviceGetCudaComputeCapability(handle) for handle in handles]
        return {f"{major}.{minor}" for major, minor in pairs}
    finally:
        pynvml.nvmlShutdown()
