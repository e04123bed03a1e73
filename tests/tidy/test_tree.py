"""The repository passes its own checks (`checks.py`)."""

from __future__ import annotations

import pathlib
import re
import tomllib

import pytest
from tests.tidy import checks

MODULES = [
    path
    for top in ("controller", "agents", "migrations", "ops", "tests")
    for path in checks.files(".py", under=top)
]
TESTS = [path for path in MODULES if path.parts[0] == "tests" and path.name != "skips.py"]
VALUES = [
    f"controller/smgate/domain/{name}.py"
    for name in ("commands", "decisions", "facts", "policy", "rulings", "values")
]
PAGES = checks.files(".md")
BINARY = {".png", ".gz", ".zip", ".pyz", ".ico", ".woff2", ".sqlite"}


def read(path: pathlib.Path | str) -> str:
    return (checks.ROOT / path).read_text(encoding="utf-8")


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_module_is_short_and_says_what_it_owns(path: pathlib.Path) -> None:
    assert checks.module_problems(read(path)) == []


@pytest.mark.parametrize(
    "path", [path for path in checks.files() if path.suffix not in BINARY], ids=str
)
def test_file_has_no_left_over_marker_and_no_path_of_somebodys_machine(path: pathlib.Path) -> None:
    assert checks.left_over_problems(read(path)) == []


@pytest.mark.parametrize("path", VALUES)
def test_events_commands_and_values_are_frozen_and_take_keywords_only(path: str) -> None:
    assert checks.dataclass_problems(read(path)) == []


@pytest.mark.parametrize("path", TESTS, ids=str)
def test_tests_skip_only_with_a_proof_and_patch_nothing(path: pathlib.Path) -> None:
    assert checks.suite_problems(read(path)) == []


@pytest.mark.parametrize("path", checks.files(".yml", ".yaml"), ids=str)
def test_yaml_can_be_read_and_has_no_key_twice(path: pathlib.Path) -> None:
    assert checks.yaml_problems(read(path)) == []


@pytest.mark.parametrize("path", PAGES, ids=str)
def test_links_lead_somewhere_and_make_targets_exist(path: pathlib.Path) -> None:
    text = read(path)
    targets = checks.make_targets(read("Makefile"))
    assert (
        checks.link_problems(text, checks.ROOT / path.parent) + checks.make_problems(text, targets)
        == []
    )


def test_every_public_make_target_has_a_line_of_help() -> None:
    makefile = read("Makefile")
    internal = {"ready", "ready-all", "sglang-env-all"}
    told = set(re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE))
    assert checks.make_targets(makefile) - internal == told


def test_every_news_fragment_has_a_kind_that_the_changelog_knows() -> None:
    config = tomllib.loads(read("pyproject.toml"))["tool"]["towncrier"]
    kinds = {kind["directory"] for kind in config["type"]}
    fragments = [path.name for path in checks.files(".md", under="news")]
    assert fragments
    for name in fragments:
        issue, kind, suffix = name.split(".")
        assert issue.isdigit() or issue.startswith("+"), name
        assert (kind in kinds, suffix) == (True, "md"), name
