"""What ships for Kubernetes, rendered by a real kubectl from a copy with the gate's archive in it."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from tests.launch import stand_ins
from tests.packaging import starts

ROOT = pathlib.Path(__file__).parents[2]
SHIPPED = ROOT / "ops/kubernetes"
KUSTOMIZATIONS = sorted(
    str(path.parent.relative_to(SHIPPED)) for path in SHIPPED.rglob("kustomization.yaml")
)
Json = dict[str, Any]
Render = Callable[[str], list[Json]]


@pytest.fixture(scope="session")
def kubectl() -> str:
    """A kubectl that knows Kustomize 5."""
    script = ROOT / "ops/dev/kubectl.sh"
    done = subprocess.run(
        ["sh", str(script), "--where"], capture_output=True, text=True, check=False, timeout=60
    )
    if done.returncode != 0:
        pytest.fail(done.stderr.strip(), pytrace=False)
    return done.stdout.strip()


@pytest.fixture(scope="session")
def gate(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The gate's archive, built from these sources."""
    built: pathlib.Path = stand_ins.build_archive(tmp_path_factory.mktemp("gate"))
    return built


@pytest.fixture
def machine(tmp_path: pathlib.Path, gate: pathlib.Path) -> starts.Machine:
    """A machine with SM107 GPUs, stand-ins of SGLang, and the gate."""
    return starts.Machine(tmp_path, gate)


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory, gate: pathlib.Path) -> pathlib.Path:
    """A copy of `ops/kubernetes`, with the gate where its kustomization wants it."""
    copy = tmp_path_factory.mktemp("ops") / "kubernetes"
    shutil.copytree(SHIPPED, copy)
    shutil.copy(gate, copy / "gate/smgate-gate.pyz")
    return copy


@pytest.fixture(scope="session")
def render(kubectl: str, tree: pathlib.Path) -> Render:
    """`kubectl kustomize` of one folder, as the objects it gives."""
    rendered: dict[str, list[Json]] = {}

    def one(folder: str) -> list[Json]:
        if folder not in rendered:
            done = subprocess.run(
                [kubectl, "kustomize", str(tree / folder)],
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
            )
            assert (done.returncode, done.stderr) == (0, ""), folder
            rendered[folder] = list(yaml.safe_load_all(done.stdout))
        return rendered[folder]

    return one
