"""The image recipe: pinned, not root, without secrets, and complete.

No image is built in these tests. What the recipe copies is copied, and what it runs on that without
an index of packages is run.
"""

from __future__ import annotations

import filecmp
import pathlib
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass, field

import pytest
from tests.packaging import conftest

RECIPE = conftest.ROOT / "ops/container/Containerfile"
PROJECT = tomllib.loads((conftest.ROOT / "pyproject.toml").read_text())
TARGETS = ["controller", "agent"]


@dataclass
class Stage:
    """One stage of the recipe, with the lines of those it builds on."""

    base: str
    lines: list[list[str]] = field(default_factory=list)

    def all(self, instruction: str) -> list[list[str]]:
        return [words for name, *words in self.lines if name == instruction]


def stages() -> dict[str, Stage]:
    """Every stage by its name."""
    found: dict[str, Stage] = {}
    arguments: dict[str, str] = {}
    stage: Stage | None = None
    for line in RECIPE.read_text().splitlines():
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if words[0] == "ARG":
            name, _, value = words[1].partition("=")
            arguments[name] = value
        elif words[0] == "FROM":
            base = re.sub(r"\$\{(\w+)\}", lambda one: arguments[one[1]], words[1])
            below = found.get(base)
            stage = found[words[3]] = Stage(
                base=below.base if below else base, lines=list(below.lines) if below else []
            )
        else:
            assert stage is not None
            stage.lines.append(words)
    return found


@pytest.mark.parametrize("name", list(stages()))
def test_a_base_is_pinned_by_its_digest(name: str) -> None:
    assert re.fullmatch(r"[a-z./-]+:\d+\.\d+\.\d+-[a-z-]+@sha256:[0-9a-f]{64}", stages()[name].base)


@pytest.mark.parametrize("name", TARGETS)
def test_an_image_is_not_root_and_starts_a_program_of_ours(name: str) -> None:
    stage = stages()[name]
    assert stage.all("USER") == [["10470:10470"]]
    [entry] = stage.all("ENTRYPOINT")
    assert " ".join(entry) in [f'["{program}"]' for program in PROJECT["project"]["scripts"]]


def test_nothing_secret_goes_in() -> None:
    for stage in stages().values():
        for words in [*stage.all("ENV"), *stage.all("COPY")]:
            assert not re.search(
                r"token|secret|password|\.key|\.env", " ".join(words), re.IGNORECASE
            )


@pytest.fixture
def context(tmp_path: pathlib.Path) -> pathlib.Path:
    """What the recipe copies into its first stage, and nothing else."""
    for words in stages()["source"].all("COPY"):
        *sources, target = words
        for source in sources:
            path = conftest.ROOT / source
            copy = tmp_path / target / (path.name if target.endswith("/") else "")
            if path.is_dir():
                shutil.copytree(path, copy)
            else:
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, copy)
    return tmp_path


def test_what_is_copied_is_what_the_build_needs(context: pathlib.Path, gate: pathlib.Path) -> None:
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    project = PROJECT["project"]
    for name in [
        "pyproject.toml",
        project["readme"],
        *project["license-files"],
        *wheel["packages"],
        *wheel["force-include"],
    ]:
        assert (context / name).exists(), name
    [build] = [words for words in stages()["agent-build"].all("RUN") if words[0] == "python"][1:]
    command = [sys.executable, "-I", *build[1:-1], str(context / "built.pyz")]
    subprocess.run(command, cwd=context, check=True, capture_output=True)
    assert filecmp.cmp(context / "built.pyz", gate, shallow=False)


@pytest.mark.parametrize("name", TARGETS)
def test_an_image_installs_extras_that_exist(name: str) -> None:
    [pip] = [words for words in stages()[f"{name}-build"].all("RUN") if words[0].endswith("pip")]
    extras = re.fullmatch(r"'\.\[([a-z,]+)\]'", pip[-1])
    assert extras is not None
    assert name in extras[1].split(",")
    assert set(extras[1].split(",")) <= set(PROJECT["project"]["optional-dependencies"])
