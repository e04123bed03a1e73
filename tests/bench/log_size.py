"""What logs of different sizes cost, as JSON lines: one append, one page read, and bytes a fact.

Logs are filled with what nodes say at starts; then single appends and reads of a page at a random place
are timed in turns, one of each log.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator

import sqlalchemy as sa
from tests.bench import log_places, log_read

from smgate.log import codec, open as log_open, port, sql

SIZES = (10_000, 1_000_000, 5_000_000)
DISTINCT = 20_000
AT_ONCE = 1_000
TIMES = 300
PAGE = 1_000


def records() -> Iterator[port.NewRecord]:
    """Records without end: what a fleet says, again and again under other streams."""
    said = [
        (codec.name_of(one.event), codec.version_of(one.event), one.actor, codec.encode(one.event))
        for one in log_read.history(DISTINCT)
    ]
    for turn in itertools.count():
        for number, (name, schema_version, actor, data) in enumerate(said):
            yield port.NewRecord(
                stream=f"{turn}/{number % log_read.NODES_MAX}",
                version=number // log_read.NODES_MAX + 1,
                type=name,
                schema_version=schema_version,
                occurred_at_us=1,
                actor=actor,
                data=data,
            )


def timed_ms(work: Callable[[], object]) -> float:
    """Milliseconds of one call."""
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1_000


def stored_bytes(store: sql.SqlStore, kind: str, url: str) -> int:
    """What the log takes on disk, indexes and batches included."""
    with store.database.statement() as connection:
        if kind == "sqlite":
            connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
            return os.path.getsize(str(sa.make_url(url).database))
        found = connection.exec_driver_sql(
            "SELECT pg_total_relation_size('log_event') + pg_total_relation_size('log_batch')"
        )
        return int(found.scalar_one())


def fill(store: sql.SqlStore, some: list[port.NewRecord]) -> None:
    """Append; again where a busy machine made the database give up."""
    while True:
        try:
            store.append(some, writer="bench")
        except port.LogUnavailableError:
            continue
        return


def compared(place: log_places.Place, sizes: list[int]) -> Iterator[dict[str, object]]:
    """The figures of logs of these sizes, taken in turns."""
    dice, coming, logs = random.Random(1), records(), {}
    for size in sizes:
        url = place.log()
        store = log_open.open_sql_store(url, clock_us=lambda: time.time_ns() // 1_000)
        logs[size] = (url, store)
        for held in range(0, size, AT_ONCE):
            fill(store, list(itertools.islice(coming, min(AT_ONCE, size - held))))
    took: dict[tuple[str, int], list[float]] = {}
    for _ in range(TIMES):
        for size, (_, store) in logs.items():
            one, after = next(coming), dice.randrange(size - PAGE)
            append = functools.partial(store.append, [one], writer="bench")
            read = functools.partial(store.read, after=after, limit=PAGE)
            took.setdefault(("append_1", size), []).append(timed_ms(append))
            took.setdefault(("read_page_1000", size), []).append(timed_ms(read))
    for (name, size), values in sorted(took.items()):
        median = statistics.median(values)
        yield {
            "name": name,
            "database": place.kind,
            "facts": size,
            "value": round(median, 3),
            "p99": round(sorted(values)[int(len(values) * 0.99)], 3),
            "ratio_to_smallest": round(median / statistics.median(took[name, sizes[0]]), 2),
            "unit": "ms",
        }
    for size, (url, store) in logs.items():
        each = stored_bytes(store, place.kind, url) / store.head().position
        yield {
            "name": "stored",
            "database": place.kind,
            "facts": size,
            "value": round(each),
            "unit": "bytes/fact",
        }
        store.close()


def main() -> None:
    """A line per figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", default=["sqlite", "postgres"])
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    given = parser.parse_args()
    with log_places.places(given.kinds) as places:
        for place in places:
            for line in compared(place, [int(size) for size in given.sizes.split(",")]):
                sys.stdout.write(json.dumps(line) + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
