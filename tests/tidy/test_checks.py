"""Every check of the tree finds what it is for: a check that cannot fail says nothing."""

from __future__ import annotations

import pathlib
import textwrap

import pytest
from tests.tidy import checks

FROZEN = "from dataclasses import dataclass\n\n@dataclass({})\nclass Paused:\n    at_us: int\n"


def test_a_short_module_with_a_docstring_is_fine() -> None:
    assert checks.module_problems('"""Owns nothing."""\n\ndef f() -> None:\n    pass\n') == []
    assert checks.module_problems("") == [], "an empty __init__.py needs no docstring"


def test_a_long_module_is_found() -> None:
    [problem] = checks.module_problems('"""Owns a lot."""\n' + "x = 1\n" * 400)
    assert problem.startswith("401 lines")


def test_a_module_without_a_docstring_is_found() -> None:
    [problem] = checks.module_problems("x = 1\n")
    assert "docstring" in problem


@pytest.mark.parametrize("word", ["def", "async def"])
def test_a_long_function_is_found(word: str) -> None:
    source = '"""Owns f."""\n' + f"{word} f() -> None:\n" + "    pass\n" * 59
    assert checks.module_problems(source) == ["f: 60 lines, below 60"]


@pytest.mark.parametrize("word", checks.MARKERS)
def test_a_left_over_marker_is_found(word: str) -> None:
    assert checks.left_over_problems(f"x = 1\n# {word}: later\n") == [f"line 2: {word}"]
    assert checks.left_over_problems(f"the {word.lower()} list and {word}ABLE\n") == []


@pytest.mark.parametrize("path", checks.HOST_PATHS)
def test_a_path_of_somebodys_machine_is_found(path: str) -> None:
    assert checks.left_over_problems(f"see {path}x\n") == [f"line 1: {path}"]


def test_a_frozen_class_with_slots_and_keywords_is_fine() -> None:
    assert checks.dataclass_problems(FROZEN.format("frozen=True, slots=True, kw_only=True")) == []


@pytest.mark.parametrize(
    "given",
    [
        "",
        "frozen=True, slots=True",
        "frozen=True, slots=True, kw_only=False",
        "frozen=False, slots=True, kw_only=True",
    ],
)
def test_a_class_that_is_not_frozen_with_slots_and_keywords_is_found(given: str) -> None:
    [problem] = checks.dataclass_problems(FROZEN.format(given))
    assert problem.startswith("Paused")


def test_a_class_that_is_no_dataclass_is_found() -> None:
    assert checks.dataclass_problems("class Paused:\n    pass\n") != []


@pytest.mark.parametrize(
    "source",
    [
        "pytest.skip('no GPU')",
        "@pytest.mark.skipif(True, reason='')\ndef test_x() -> None: ...",
        "torch = pytest.importorskip('torch')",
        "from pytest import skip",
        "import unittest.mock",
        "from unittest import mock",
        "from unittest.mock import patch",
    ],
)
def test_a_skip_without_proof_or_a_mock_is_found(source: str) -> None:
    assert checks.suite_problems(source) != []


def test_a_skip_with_proof_is_fine() -> None:
    assert checks.suite_problems("from tests import skips\nskips.needs_gpu()") == []


@pytest.mark.parametrize("text", ["a: [1\n", "a: 1\na: 2\n", "x:\n  b: 1\n  c: 2\n  b: 3\n"])
def test_broken_yaml_or_a_key_twice_is_found(text: str) -> None:
    assert checks.yaml_problems(text) != []


def test_good_yaml_is_fine() -> None:
    assert checks.yaml_problems("a: 1\nb: {c: [1, 2]}\n---\na: 1\n") == []


def test_a_link_that_leads_nowhere_is_found(tmp_path: pathlib.Path) -> None:
    (tmp_path / "there.md").write_text("# A heading, here\n")
    page = textwrap.dedent("""\
        # One
        [a](there.md) [b](there.md#a-heading-here) [c](#one) [d](https://example.org/x)
        [e](gone.md) [f](there.md#elsewhere) [g](#two) `[h](not-a-link.md)`
    """)
    found = checks.link_problems(page, tmp_path)
    assert [problem.split(":")[0] for problem in found] == ["gone.md", "there.md#elsewhere", "#two"]


def test_a_make_target_that_does_not_exist_is_found() -> None:
    page = "Run `make test`, or:\n```\nmake tset ONCE=1\n```\nand make sure."
    targets = checks.make_targets("test: setup ## All\n\t@true\nX := 1\n")
    assert targets == {"test"}
    assert checks.make_problems(page, targets) == ["make tset: no such target"]
