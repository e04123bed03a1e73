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


def check(url: str, acknowledged: pathlib.Path) -> dict[str, object]:
    engine = sa.create_engine(database.normalize(url), poolclass=sa.NullPool)
    with engine.connect() as connection:
        rows = connection.exec_driver_sql(
            "SELECT position, stream, version, data FROM log_event ORDER BY position"
        ).all()
    stored = {
        (stream, version): (position, hashlib.sha256(data).hexdigest())
        for position, stream, version, data in rows
    }
    times = collections.Counter(hashlib.sha256(row[3]).hexdigest() for row in rows)
    lost, acks = [], set()
    for line in acknowledged.read_text().splitlines():
        _, stream, version, position, digest = line.split()
        acks.add((stream, int(version)))
        if stored.get((stream, int(version))) != (int(position), digest):
            lost.append(line)
    gaps = [
        stream
        for stream in {key[0] for key in stored}
        if sorted(key[1] for key in stored if key[0] == stream)
        != list(range(1, sum(key[0] == stream for key in stored) + 1))
    ]
    store = log_open.open_store(url, clock_us=lambda: 0, read_only=True)
    report = verify.verify(store)
    store.close()
    return {
        "acknowledged": len(acks),
        "stored": len(rows),
        "lost": lost,
        "twice": [digest for digest, count in times.items() if count > 1],
        "positions_whole": [row[0] for row in rows] == list(range(1, len(rows) + 1)),
        "streams_with_gaps": gaps,
        "chain_ok": report.ok,
        "verified": report.positions,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(check(sys.argv[1], pathlib.Path(sys.argv[2]))))
