"""The log that each scenario leaves behind, run once."""

from __future__ import annotations

import functools
from pathlib import Path

from smgate.domain.events import Recorded
from smgate.log import codec, port
from smgate.scenario import document, runner

SCENARIOS = sorted((Path(__file__).parent / "scenarios").glob("*.yaml"))


@functools.cache
def history(scenario: Path) -> tuple[tuple[Recorded, ...], int]:
    """All events of a scenario, and its last moment."""
    run = runner.Run(document.parse(scenario.read_text(encoding="utf-8")))
    run.run()
    return tuple(everything(run.core.store)), run.core.clock.now_us()


def everything(store: port.Store) -> list[Recorded]:
    """All events of a log."""
    found: list[Recorded] = []
    while page := store.read(after=len(found)):
        found += [codec.recorded(record) for record in page]
    return found
