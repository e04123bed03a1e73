"""Every scenario tells what happens as its transcript does; `--update-transcripts` writes them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.simulation import rendering

from smgate.scenario import runner

SCENARIOS = sorted((Path(__file__).parent / "scenarios").glob("*.yaml"))
LINES_MAX = 150


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda path: path.stem)
def test_a_scenario_goes_as_its_transcript_tells(
    scenario: Path, request: pytest.FixtureRequest
) -> None:
    result = runner.run_file(scenario)
    steps = rendering.steps_of(scenario.read_text(encoding="utf-8"))
    told = rendering.transcript(result, steps)
    expected = scenario.with_suffix(".out")
    if request.config.getoption("--update-transcripts"):
        expected.write_text(told, encoding="utf-8")
    assert told == expected.read_text(encoding="utf-8")
    assert told.count("\n") < LINES_MAX
    assert result["chain_ok"]


def test_every_transcript_has_its_scenario() -> None:
    transcripts = {path.stem for path in SCENARIOS[0].parent.glob("*.out")}
    assert transcripts == {path.stem for path in SCENARIOS}
