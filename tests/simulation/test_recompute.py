"""Every decision of every scenario, worked out again from its own position, time and rules."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.property import histories

from smgate.domain import decisions
from smgate.domain.events import Recorded
from smgate.log import codec
from smgate.scenario import document, runner

SCENARIOS = sorted((Path(__file__).parent / "scenarios").glob("*.yaml"))
OLDER_RULES = {"new_rules_are_held"}
"""Here the rules of an earlier release decided at first, and only they could decide so again."""


def history(scenario: Path) -> tuple[list[Recorded], int]:
    run = runner.Run(document.parse(scenario.read_text(encoding="utf-8")))
    run.run()
    found: list[Recorded] = []
    while page := run.core.store.read(after=len(found)):
        found += [codec.recorded(record) for record in page]
    return found, run.core.clock.now_us()


@pytest.mark.parametrize(
    "scenario",
    [path for path in SCENARIOS if path.stem not in OLDER_RULES],
    ids=lambda path: path.stem,
)
def test_every_decision_is_what_the_rules_give_at_its_own_position(scenario: Path) -> None:
    found, now_us = history(scenario)
    histories.recomputes(found)
    histories.plans_again(found)
    histories.replays(found, now_us)


def test_a_decision_that_was_recorded_otherwise_is_found() -> None:
    found, _ = history(SCENARIOS[0].with_name("first_canary.yaml"))
    for kind, changes in (
        (decisions.OverrideSet, {"code": "granted"}),
        (decisions.OverrideSet, {"now_us": 0}),
        (decisions.Granted, {"wave": 1}),
        (decisions.WaveJudged, {"sentence": "All is well."}),
    ):
        index = next(i for i, one in enumerate(found) if isinstance(one.event, kind))
        forged = [*found]
        forged[index] = replace(found[index], event=replace(found[index].event, **changes))
        with pytest.raises(AssertionError):
            histories.plans_again(forged)
