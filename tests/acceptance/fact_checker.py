"""Compares what senders wrote down as acknowledged with the database, by SQL of its own.

Run as a process of its own: `fact_checker.py DATABASE_URL OUTBOX=ACKS_FILE...`. It prints one JSON
object: acknowledged, stored, lost, twice, other.
"""

from __future__ import annotations

import collections
import json
import pathlib
import sqlite3
import sys

QUERY = "SELECT stream, version, data FROM log_event WHERE stream LIKE 'outbox/%'"


def rows(url: str) -> list[tuple[str, int, bytes]]:
    if url.startswith("sqlite:///"):
        connection = sqlite3.connect(url.removeprefix("sqlite:///"))
        found = connection.execute(QUERY).fetchall()
        connection.close()
        return found
    import psycopg

    with psycopg.connect(url) as session:
        return session.execute(QUERY.replace("%", "%%"), ()).fetchall()


def main(url: str, *given: str) -> None:
    stored = rows(url)
    counts = collections.Counter((stream, version) for stream, version, _ in stored)
    contents = collections.Counter(json.loads(data)["rack"] for _, _, data in stored)
    racks = {(stream, version): json.loads(data)["rack"] for stream, version, data in stored}
    acknowledged, lost, other = 0, [], []
    for pair in given:
        outbox, _, acks = pair.partition("=")
        for line in pathlib.Path(acks).read_text().split():
            key = (f"outbox/{outbox}", int(line))
            acknowledged += 1
            if key not in racks:
                lost.append(key)
            elif racks[key] != f"{outbox}.{line}":
                other.append(key)
    twice = [key for key, count in counts.items() if count > 1]
    twice += [rack for rack, count in contents.items() if count > 1]
    print(
        json.dumps(
            {
                "acknowledged": acknowledged,
                "stored": len(stored),
                "lost": lost,
                "twice": twice,
                "other": other,
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
