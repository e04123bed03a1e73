"""A process that appends until it is killed, and says what was acknowledged. Run as a script.

Started once per test, so that the imports are paid once; each line on its standard input (the seed
of a round) makes it fork a child that writes. The child prints one line per acknowledged record,
after the append returned: `ack STREAM VERSION POSITION DIGEST`. The parent says `pid N` and, when
the child is dead, `dead`.
"""

from __future__ import annotations

import hashlib
import os
import random
import sys
import threading
import time

from smgate.log import commit, open as log_open, port

THREADS = 8  # More than one commit's worth: they write each other's records.


def say(line: str) -> None:
    # One write per line: what a kill leaves is whole lines and at most one broken one.
    os.write(sys.stdout.fileno(), f"{line}\n".encode())


def payload(stream: str, version: int, rng: random.Random) -> bytes:
    return f"{stream}/{version}:".encode() + rng.randbytes(rng.randrange(20, 600))


def record(stream: str, version: int) -> port.NewRecord:
    # Seeded by its key: after a restart the same record has the same content, as an outbox has.
    rng = random.Random(f"{stream}/{version}")
    return port.NewRecord(
        stream=stream,
        version=version,
        type="node_reported",
        schema_version=1,
        occurred_at_us=version,
        actor=f"node:{stream}",
        data=payload(stream, version, rng),
    )


def write(together: commit.GroupCommit, stream: str, version: int, seed: int) -> None:
    rng = random.Random(f"{seed}/{stream}")
    while True:
        count = rng.choice([1, 1, 2, 5, 20])
        records = [record(stream, each) for each in range(version, version + count)]
        appended = together.append(records, gapless=True)
        for one, position in zip(records, appended.positions, strict=True):
            digest = hashlib.sha256(one.data).hexdigest()
            say(f"ack {one.stream} {one.version} {position} {digest}")
        version += count


def child(url: str, seed: int) -> None:
    store = log_open.open_store(url, clock_us=lambda: time.time_ns() // 1_000)
    together = commit.GroupCommit(store, writer=f"writer-{seed}")
    threads = []
    for stream in [f"s{number}" for number in range(THREADS)]:
        # What was not acknowledged before the kill may stand or not: send from a little before the
        # end.
        version = max(1, store.stream_version(stream) - 5)
        threads.append(
            threading.Thread(target=write, args=(together, stream, version, seed), daemon=True)
        )
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main(url: str) -> None:
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            try:
                child(url, int(line))
            finally:
                os._exit(3)
        say(f"pid {pid}")
        _, status = os.waitpid(pid, 0)
        say(f"dead {status}")


if __name__ == "__main__":
    main(sys.argv[1])
