"""The list of mutants is sound: every line is there, and a runner that judges nothing is caught."""

from __future__ import annotations

import dataclasses

import pytest
from tests.mutants import run

MUTANTS_MIN = 60
CAUGHT = run.Mutant(
    file="controller/smgate/domain/drain_budget.py",
    before="def budget(",
    after="def budget_of(",
    killed_by="tests/unit/domain/test_drains.py",
)


def test_every_listed_line_stands_in_its_file_once_and_its_test_is_there() -> None:
    mutants = run.read()
    assert len({(one.file, one.before, one.after) for one in mutants}) == len(mutants)
    assert len(mutants) >= MUTANTS_MIN
    for one in mutants:
        assert one.before != one.after
        compile(one.source(), one.file, "exec")
        path, _, name = one.killed_by.partition("::")
        text = (run.ROOT / path).read_text(encoding="utf-8")
        assert f"def {name.partition('[')[0]}(" in text, one.killed_by


def test_a_line_that_is_not_there_once_is_an_error() -> None:
    with pytest.raises(ValueError, match="0 times"):
        dataclasses.replace(CAUGHT, before="no such line").source()
    with pytest.raises(ValueError, match="not once"):
        dataclasses.replace(CAUGHT, before="return").source()


def test_only_a_test_that_fails_kills() -> None:
    test = "tests/unit/domain/test_cohort.py"
    same = run.Mutant(
        file="controller/smgate/domain/cohort.py",
        before='digest()[:8], "big")',
        after='digest()[:8], byteorder="big")',
        killed_by=test,
    )
    assert run.judge(same) == "survived"
    assert run.judge(dataclasses.replace(same, after='digest()[:8], "little")')) == "killed"
    assert run.judge(dataclasses.replace(same, after='digest()[:8], "big"')) == "broken"
