"""A skip without proof fails the run; a proven one does not."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import textwrap

import pynvml
import pytest
from tests import skips
from tests.tidy import checks


def run_pytest(folder: pathlib.Path, source: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_it.py").write_text(textwrap.dedent(source))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-rs",
        "-p",
        "tests.skips",
        "-p",
        "no:cacheprovider",
    ]
    environment = {"PYTHONPATH": str(checks.ROOT)}
    return subprocess.run(
        [*command, "--rootdir", str(folder), "-c", "/dev/null", str(folder)],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    "source",
    [
        "import pytest\ndef test_it(): pytest.skip('not today')",
        "import pytest\n@pytest.mark.skip(reason='not today')\ndef test_it(): pass",
        "import pytest\npytest.skip('not today', allow_module_level=True)",
        "import pytest\n@pytest.fixture\ndef it(): pytest.skip('not today')\ndef test_it(it): pass",
    ],
)
def test_a_skip_without_proof_fails_the_run(tmp_path: pathlib.Path, source: str) -> None:
    done = run_pytest(tmp_path, source)
    assert done.returncode != 0
    assert "unexpected skip" in done.stdout
    assert "not today" in done.stdout


def test_a_proven_skip_is_a_skip_and_says_why(tmp_path: pathlib.Path) -> None:
    done = run_pytest(
        tmp_path,
        """
        from tests import skips
        def test_old(): skips.needs_test_all()
        def test_new(): assert True
        """,
    )
    assert done.returncode == 0, done.stdout
    assert "1 passed, 1 skipped" in done.stdout
    assert "SMGATE_TEST_ALL is not set" in done.stdout


def test_an_expected_failure_is_still_one(tmp_path: pathlib.Path) -> None:
    done = run_pytest(tmp_path, "import pytest\n@pytest.mark.xfail\ndef test_it(): assert False")
    assert done.returncode == 0, done.stdout
    assert "1 xfailed" in done.stdout


def test_the_lack_of_a_gpu_is_proven_by_the_driver() -> None:
    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        count = 0
    if count:
        skips.needs_gpu()
    else:
        with pytest.raises(skips.Skipped, match="proven: "):
            skips.needs_gpu()
