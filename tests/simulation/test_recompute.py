"""Every decision of every scenario, worked out again from its own position, time and rules."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.property import histories
from tests.simulation import logs

from smgate.domain import decisions

OLDER_RULES = {"new_rules_are_held"}
"""Here the rules of an earlier release decided at first, and only they could decide so again."""


@pytest.mark.parametrize(
    "scenario",
    [path for path in logs.SCENARIOS if path.stem not in OLDER_RULES],
    ids=lambda path: path.stem,
)
def test_every_decision_is_what_the_rules_give_at_its_own_position(scenario: Path) -> None:
    found, now_us = logs.history(scenario)
    histories.recomputes(found)
    histories.plans_again(found)
    histories.replays(found, now_us)


def test_a_decision_that_was_recorded_otherwise_is_found() -> None:
    found, _ = logs.history(logs.SCENARIOS[0].with_name("first_canary.yaml"))
    for kind, changes in (
        (decisions.OverrideSet, {"code": "granted"}),
        (decisions.OverrideSet, {"now_us": 0}),
        (decisions.Granted, {"wave": 1}),
        (decisions.WaveJudged, {"sentence": "All is well."}),
    ):
        index = next(i for i, one in enumerate(found) if isinstance(one.event, kind))
        forged = [*found]
        forged[index] = found[index]._replace(event=replace(found[index].event, **changes))
        with pytest.raises(AssertionError):
            histories.plans_again(forged)
