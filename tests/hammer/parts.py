"""A writer or a reader that goes on until it is killed, and notes all it was told. Run as a script.

`writer URL NAME SEED` appends to streams of its own and to streams that every writer sends, as an
outbox sends again what nobody acknowledged. After an append returned it notes, for each record,
`ack STREAM VERSION POSITION DIGEST`. `reader URL AFTER` tails the log and notes `saw POSITION DIGEST`.
"""

from __future__ import annotations

import hashlib
import os
import random
import sys
import threading
import time

from tests.integration import log_writer

from smgate.log import commit, open as log_open, port

OWN_STREAMS = 2
SHARED_STREAMS = 2
REST_S_MAX = 0.1
POLL_S = 0.02
PAGE = 500


def write(together: commit.GroupCommit, store: port.Store, stream: str, seed: str) -> None:
    """Append run after run. What the database refuses for a moment is sent again."""
    rng = random.Random(f"{seed}/{stream}")
    while True:
        # What was not acknowledged before a kill may stand or not: send from a little before the end.
        version = max(1, store.stream_version(stream) - rng.randrange(6))
        count = rng.choice([1, 1, 2, 5, 20])
        records = [log_writer.record(stream, each) for each in range(version, version + count)]
        try:
            appended = together.append(records, gapless=True)
        except port.LogUnavailableError:
            continue
        for one, position in zip(records, appended.positions, strict=True):
            digest = hashlib.sha256(one.data).hexdigest()
            log_writer.say(f"ack {one.stream} {one.version} {position} {digest}")
        time.sleep(rng.uniform(0, REST_S_MAX))


def writer(url: str, name: str, seed: str) -> None:
    """All streams of one writer, each in a thread."""
    store = log_open.open_store(url, clock_us=lambda: time.time_ns() // 1_000)
    together = commit.GroupCommit(store, writer=name)
    own = [f"{name}-{number}" for number in range(OWN_STREAMS)]
    shared = [f"shared-{number}" for number in range(SHARED_STREAMS)]
    threads = [
        threading.Thread(target=write, args=(together, store, stream, seed), daemon=True)
        for stream in own + shared
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os._exit(3)  # a writer ends by being killed


def reader(url: str, after: str) -> None:
    """Everything after a position, as it comes in."""
    store = log_open.open_store(url, clock_us=lambda: 0, read_only=True)
    seen = int(after)
    while True:
        try:
            page = store.read(after=seen, limit=PAGE)
        except port.LogUnavailableError:
            page = []
        for record in page:
            log_writer.say(f"saw {record.position} {hashlib.sha256(record.data).hexdigest()}")
            seen = record.position
        if not page:
            time.sleep(POLL_S)


if __name__ == "__main__":
    {"writer": writer, "reader": reader}[sys.argv[1]](*sys.argv[2:])
