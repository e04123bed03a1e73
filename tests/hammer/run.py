"""Four writers and two tailing readers, killed by SIGKILL at random moments, and a judge outside.

`python -m tests.hammer.run sqlite postgres --seconds 600` prints a JSON line per database and fails
where anything was lost, written twice, skipped, seen in another order or not verified.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

import sqlalchemy as sa
from tests.bench import log_places
from tests.integration import log_checker

from smgate.log import database

WRITERS = 4
READERS = 2
BETWEEN_KILLS_S = (0.05, 1.5)
CATCH_UP_S = 60


@dataclasses.dataclass
class Part:
    """One writer or reader, started again whenever it was killed."""

    kind: str
    name: str
    url: str
    notes: pathlib.Path
    starts: int = 0
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Go on from where its notes end."""
        self.starts += 1
        last = [str(self.seen())] if self.kind == "reader" else [self.name, str(self.starts)]
        with self.notes.open("ab") as notes:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.hammer.parts", self.kind, self.url, *last],
                stdin=subprocess.DEVNULL,
                stdout=notes,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            )

    def kill(self) -> None:
        """SIGKILL; what it died of must be that."""
        assert self.process is not None
        assert self.process.poll() is None, f"{self.name} ended by itself"
        self.process.kill()
        self.process.wait(30)

    def lines(self) -> list[list[str]]:
        """What it noted."""
        return [line.split() for line in self.notes.read_text().splitlines()]

    def seen(self) -> int:
        """The last position it noted."""
        if not self.notes.exists():
            return 0
        with self.notes.open("rb") as notes:
            notes.seek(max(0, notes.seek(0, os.SEEK_END) - 4096))
            lines = notes.read().split(b"\n")
        return int(lines[-2].split()[1]) if len(lines) > 1 else 0


def hammer(url: str, folder: pathlib.Path, *, seconds: float, seed: int) -> dict[str, object]:
    """Let them run, kill them, and judge what they left."""
    dice = random.Random(seed)
    writers = [Part("writer", f"w{n}", url, folder / f"w{n}") for n in range(WRITERS)]
    readers = [Part("reader", f"r{n}", url, folder / f"r{n}") for n in range(READERS)]
    parts, kills = [*writers, *readers], 0
    try:
        for part in parts:
            part.start()
        while not all(part.notes.stat().st_size for part in parts):
            time.sleep(0.1)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(dice.uniform(*BETWEEN_KILLS_S))
            part = dice.choice(parts)
            part.kill()
            part.start()
            kills += 1
        for part in writers:
            part.kill()
        head = _head(url)
        give_up = time.monotonic() + CATCH_UP_S
        while any(part.seen() < head for part in readers) and time.monotonic() < give_up:
            time.sleep(0.2)
    finally:
        for part in parts:
            if part.process is not None and part.process.poll() is None:
                part.kill()
    return {"seconds": seconds, "kills": kills} | judge(url, writers, readers, folder)


def judge(
    url: str, writers: list[Part], readers: list[Part], folder: pathlib.Path
) -> dict[str, object]:
    """What the writers were told, and what the readers saw, beside what the tables hold."""
    acknowledged = folder / "acknowledged"
    acknowledged.write_text("".join(part.notes.read_text() for part in writers))
    found = log_checker.check(url, acknowledged)
    stored = [digest for _, digest in sorted(log_checker.stored(url).values())]
    expected = [[str(position), digest] for position, digest in enumerate(stored, 1)]
    # SQLite may find a commit of a killed writer only when the file is opened anew: then nobody was
    # told of it, and no reader that was open saw it.
    least = max((int(line[3]) for part in writers for line in part.lines()), default=0)
    wrong = []
    for part in readers:
        saw = [line[1:] for line in part.lines()]
        if len(saw) < least or saw != expected[: len(saw)]:
            wrong.append(part.name)
    ok = (
        not (found["lost"] or found["twice"] or found["streams_with_gaps"] or wrong)
        and bool(found["positions_whole"] and found["chain_ok"])
        and found["verified"] == found["stored"]
    )
    return found | {"readers_that_saw_otherwise": wrong, "ok": ok}


def _head(url: str) -> int:
    engine = sa.create_engine(database.normalize(url), poolclass=sa.NullPool)
    with engine.connect() as connection:
        return int(connection.exec_driver_sql("SELECT position FROM log_head").scalar() or 0)


def main() -> int:
    """One line per database."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="+", choices=["sqlite", "postgres"])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    all_ok = True
    with log_places.places(given.kinds) as places, tempfile.TemporaryDirectory() as folder:
        for place in places:
            notes = pathlib.Path(folder) / place.kind
            notes.mkdir()
            found = hammer(place.log(), notes, seconds=given.seconds, seed=given.seed)
            sys.stdout.write(json.dumps({"database": place.kind} | found) + "\n")
            sys.stdout.flush()
            all_ok = all_ok and bool(found["ok"])
    return 0 if all_ok else 1


if __name__ == "__main__":
    sys.exit(main())
