"""The shipped systemd units are read by systemd without a word, and stay locked down."""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess

import pytest
from tests.tidy import checks

UNITS = checks.files(".service", under="ops/systemd")
LOCKED_DOWN = (
    "NoNewPrivileges=yes",
    "ProtectSystem=strict",
    "ProtectKernelModules=yes",
    "RestrictSUIDSGID=yes",
    "SystemCallFilter=@system-service",
    "UMask=0077",
)


@pytest.mark.parametrize("path", UNITS, ids=str)
def test_a_unit_restarts_for_ever_and_is_locked_down(path: pathlib.Path) -> None:
    lines = (checks.ROOT / path).read_text().splitlines()
    assert [line for line in LOCKED_DOWN if line not in lines] == []
    assert "Restart=always" in lines
    assert "StartLimitIntervalSec=0" in lines
    assert any(line.startswith("CapabilityBoundingSet=") for line in lines)


@pytest.mark.parametrize("path", UNITS, ids=str)
def test_a_unit_is_read_by_systemd_without_a_word(
    path: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    unit = (checks.ROOT / path).read_text()
    assert re.findall(r"^[A-Za-z]+=", unit, re.MULTILINE), "a unit has settings"
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        # A machine without systemd has nobody to ask; the checks above hold on every machine.
        return
    # smgate is not installed under /opt here; any program that exists will do.
    copy = tmp_path / path.name
    copy.write_text(re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", unit, flags=re.MULTILINE))
    done = subprocess.run(
        [analyze, "verify", str(copy)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
