"""The log's bench: a subject that fails or hangs is said in its line and takes no figure with it."""

from __future__ import annotations

import itertools
import json
import threading

import pytest
from tests.bench import rates, turns


def test_a_subject_that_fails_leaves_the_figures_of_the_others() -> None:
    asked = itertools.count(1)

    def second_time() -> float:
        if next(asked) == 2:
            raise RuntimeError("tuple concurrently updated")
        return 5.0

    rates = iter((1.0, 3.0, 2_000.4))
    row = json.loads(
        turns.line(
            "append_writers_4",
            "postgres",
            {"value": lambda: next(rates), "peer": second_time, "ceiling": None},
            runs=3,
            unit="1/s",
            peer="library",
            ceiling="driver",
        )
    )
    assert row["failed"] == {"peer": "RuntimeError: tuple concurrently updated"}
    assert (row["value"], row["peer_value"], row["ceiling_value"]) == (3.0, 5.0, None)
    assert row["raw"] == {"value": [1.0, 3.0, 2000], "peer": [5.0], "ceiling": []}


def test_a_line_without_a_failure_has_no_such_word() -> None:
    work = {kind: (lambda: 1.0) for kind in ("value", "peer", "ceiling")}
    row = json.loads(turns.line("n", "sqlite", work, runs=1, unit="s", peer="p", ceiling="c", n=7))
    assert "failed" not in row
    assert row["n"] == 7


def test_a_call_that_never_comes_back_is_an_error_in_the_end() -> None:
    class Hanging:
        def writer(self, facts: int):
            return threading.Event().wait

        def close(self) -> None: ...

    with pytest.raises(TimeoutError, match=r"did not come back in 0\.1 s"):
        rates.rate(Hanging(), callers=2, facts=1, seconds=0.01, hang_s=0.1)
