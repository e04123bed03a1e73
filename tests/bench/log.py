"""`make bench-log`: what the log writes and reads, beside the `eventsourcing` library and the driver.

One JSON line per name and database: {name, database, runs, value, peer, peer_value, ceiling,
ceiling_value, unit} are medians; `raw` has every run of the three, which took turns. No verdict.
`failed` says which of them could not be measured, and what it said.
Everything is durable: SQLite with synchronous=FULL, PostgreSQL with synchronous_commit=on.

    append_callers_N   N threads of one process, one fact per call (ceiling: N rows per commit)
    append_batch_N     one caller, N facts per call
    append_writers_4   four processes of 8 callers, one fact per call (ceiling: 8 rows per commit)
    replay_typed       the log read and decoded into events
    fold_1m            1,000,000 facts folded cold (peer: its typed replay alone; ceiling: the rows)
    projections_500    the views brought along, 500 facts per transaction (peer: one, its only way)
    verify             every hash of the log recomputed (ceiling: the rows read and hashed once)

BENCH_SCALE=0.1 shortens runs and logs tenfold; `n` says how many facts a log had.
BENCH_ONLY=append_callers_32,verify and BENCH_DATABASES=sqlite take a part.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping

from tests.bench import log_append, log_places, log_read, rates, turns

SCALE = float(os.environ.get("BENCH_SCALE") or 1)
RUNS = int(os.environ.get("BENCH_RUNS") or 3)
SECONDS = max(0.3, 2 * SCALE)
WRITERS, CALLERS_OF_A_WRITER = 4, 8


def say(
    place: log_places.Place,
    name: str,
    work: Mapping[str, turns.Work | None],
    *,
    unit: str,
    peer: str,
    ceiling: str,
    **more: int,
) -> None:
    """Measure, and print one line."""
    print(
        turns.line(
            name, place.kind, work, runs=RUNS, unit=unit, peer=peer, ceiling=ceiling, **more
        ),
        flush=True,
    )


def appending(place: log_places.Place, wanted: Callable[[str], bool]) -> None:
    """The lines of one process that appends."""
    urls = _places_of(place)

    def measured(name: str, work: Callable[[str], turns.Work]) -> None:
        if wanted(name):
            say(place, name, {kind: work(kind) for kind in urls}, unit="1/s", **_names(place))

    with _opened(urls) as subjects:
        for callers in (1, 32, 256):

            def calls(kind: str, callers: int = callers) -> turns.Work:
                alone = kind == "ceiling"
                return lambda: rates.rate(
                    subjects[kind],
                    callers=1 if alone else callers,
                    facts=callers if alone else 1,
                    seconds=SECONDS,
                )

            measured(f"append_callers_{callers}", calls)
        for facts in (10, 100, 1000):

            def batches(kind: str, facts: int = facts) -> turns.Work:
                return lambda: rates.rate(subjects[kind], callers=1, facts=facts, seconds=SECONDS)

            measured(f"append_batch_{facts}", batches)


def appending_at_once(place: log_places.Place, wanted: Callable[[str], bool]) -> None:
    """The line of several processes, on databases of their own: a subject that hung still holds its."""
    name = f"append_writers_{WRITERS}"
    if not wanted(name):
        return
    urls = _places_of(place)
    with _opened(urls):
        pass  # The tables are made by one, not by four at once.

    def processes(kind: str) -> turns.Work:
        alone = kind == "ceiling"
        return lambda: log_append.rate_of_processes(
            kind,
            urls[kind],
            processes=WRITERS,
            callers=1 if alone else CALLERS_OF_A_WRITER,
            facts=CALLERS_OF_A_WRITER if alone else 1,
            seconds=SECONDS,
        )

    work = {kind: processes(kind) for kind in urls}
    say(place, name, work, unit="1/s", **_names(place))


def _places_of(place: log_places.Place) -> dict[str, str]:
    return {"value": place.log(), "peer": place.empty(), "ceiling": place.empty()}


def _names(place: log_places.Place) -> dict[str, str]:
    bare = "executemany" if place.kind == "sqlite" else "COPY"
    return {"peer": "eventsourcing recorder", "ceiling": f"{bare}, one commit each"}


@contextlib.contextmanager
def _opened(urls: dict[str, str]) -> Iterator[dict[str, rates.Subject]]:
    subjects = {kind: log_append.SUBJECTS[kind](url) for kind, url in urls.items()}
    try:
        yield subjects
    finally:
        for subject in subjects.values():
            closing = threading.Thread(target=subject.close, daemon=True)
            closing.start()
            closing.join(rates.HANG_S)  # one that hangs may not close either


def reading(place: log_places.Place, wanted: Callable[[str], bool]) -> None:
    """All lines that read."""
    if not any(wanted(name) for name in log_read.NAMES):
        return
    with log_read.filled(place, facts=round(1_000_000 * SCALE)) as logs:
        for name in log_read.NAMES:
            if wanted(name):
                line = log_read.LINES[name](logs)
                say(
                    place,
                    name,
                    line.work,
                    unit=line.unit,
                    peer=line.peer,
                    ceiling=line.ceiling,
                    n=line.facts,
                )


def main() -> None:
    """Measure what is asked for."""
    only = [name for name in os.environ.get("BENCH_ONLY", "").split(",") if name]
    kinds = os.environ.get("BENCH_DATABASES") or "sqlite,postgres"

    def wanted(name: str) -> bool:
        return not only or name in only

    with log_places.places(kinds.split(",")) as places:
        for place in places:
            appending(place, wanted)
            appending_at_once(place, wanted)
            reading(place, wanted)


if __name__ == "__main__":
    main()
