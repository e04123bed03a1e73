"""A process that judges a log by a record of acknowledgements it was given. Run as a script.

It reads the tables by SQL of its own, so that a mistake of the store's reads cannot hide one of its
writes; only the chain is left to `verify`. Prints one JSON object.
"""

from __future__ import annotations

import collections
import hashlib
import json
import pathlib
import sys

import sqlalchemy as sa

from smgate.log import database, open as log_open, verify


def stored(url: str) -> dict[tuple[str, int], tuple[int, str]]:
    """Position and digest by stream and version."""
    engine = sa.create_engine(database.normalize(url), poolclass=sa.NullPool)
    with engine.connect() as connection:
        rows = connection.exec_driver_sql(
            "SELECT position, stream, version, data FROM log_event ORDER BY position"
        )
        return {
            (stream, version): (position, hashlib.sha256(data).hexdigest())
            for position, stream, version, data in rows
        }


def check(url: str, acknowledged: pathlib.Path) -> dict[str, object]:
    found = stored(url)
    times = collections.Counter(digest for _, digest in found.values())
    lost, acks = [], set()
    for line in acknowledged.read_text().splitlines():
        _, stream, version, position, digest = line.split()
        acks.add((stream, int(version)))
        if found.get((stream, int(version))) != (int(position), digest):
            lost.append(line)
    versions = collections.defaultdict(set)
    for stream, version in found:
        versions[stream].add(version)
    gaps = [name for name, held in versions.items() if held != set(range(1, len(held) + 1))]
    positions = sorted(position for position, _ in found.values())
    store = log_open.open_store(url, clock_us=lambda: 0, read_only=True)
    report = verify.verify(store)
    store.close()
    return {
        "acknowledged": len(acks),
        "stored": len(found),
        "lost": lost,
        "twice": [digest for digest, count in times.items() if count > 1],
        "positions_whole": positions == list(range(1, len(found) + 1)),
        "streams_with_gaps": gaps,
        "chain_ok": report.ok,
        "verified": report.positions,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(check(sys.argv[1], pathlib.Path(sys.argv[2]))))
