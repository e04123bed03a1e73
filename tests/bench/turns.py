"""What the log's bench measures of each subject in turn, and the line it says about it."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping

Work = Callable[[], float]
Runs = dict[str, list[float]]


def taking_turns(work: Mapping[str, Work | None], runs: int) -> tuple[Runs, dict[str, str]]:
    """Every subject once, then every one again: what slows the machine slows all of them.

    A subject that fails is asked no more; what it said is in the second dictionary.
    """
    found: Runs = {kind: [] for kind in work}
    failed: dict[str, str] = {}
    for _ in range(runs):
        for kind, measure in work.items():
            if measure is None or kind in failed:
                continue
            try:
                found[kind].append(measure())
            except Exception as error:
                failed[kind] = f"{type(error).__name__}: {error}"
    return found, failed


def line(
    name: str,
    database: str,
    work: Mapping[str, Work | None],
    *,
    runs: int,
    unit: str,
    peer: str,
    ceiling: str,
    **more: int,
) -> str:
    """Measure, and say it as one line of JSON."""
    found, failed = taking_turns(work, runs)
    middle = {kind: statistics.median(each) if each else None for kind, each in found.items()}
    row = {
        "name": name,
        "database": database,
        "runs": runs,
        "value": _rounded(middle["value"]),
        "peer": peer,
        "peer_value": _rounded(middle["peer"]),
        "ceiling": ceiling,
        "ceiling_value": _rounded(middle["ceiling"]),
        "unit": unit,
        "raw": {kind: [_rounded(run) for run in each] for kind, each in found.items()},
        **({"failed": failed} if failed else {}),
        **more,
    }
    return json.dumps(row)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3) if value < 1_000 else round(value)
