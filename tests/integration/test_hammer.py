"""Writers and readers killed at random moments, for a few seconds; `make hammer` goes on longer."""

from __future__ import annotations

import pathlib

from tests.hammer import run

from smgate.log import open as log_open

SECONDS = 4


def test_nothing_is_lost_doubled_or_skipped_by_anybody(
    database_url: str, tmp_path: pathlib.Path
) -> None:
    log_open.upgrade(database_url)
    found = run.hammer(database_url, tmp_path, seconds=SECONDS, seed=7)
    assert found["ok"], found
    assert found["kills"] > 1
    assert found["stored"] >= found["acknowledged"] > 100
    judges_its_readers(database_url, tmp_path)


def judges_its_readers(url: str, folder: pathlib.Path) -> None:
    """What judges must itself be able to fail."""
    writers = [run.Part("writer", f"w{n}", url, folder / f"w{n}") for n in range(run.WRITERS)]
    readers = [run.Part("reader", f"r{n}", url, folder / f"r{n}") for n in range(run.READERS)]
    first, second = (part.notes.read_text().splitlines() for part in readers)
    readers[0].notes.write_text("\n".join([*first[:5], *first[6:]]))
    readers[1].notes.write_text("\n".join([*second[:7], second[8], second[7], *second[9:]]))
    found = run.judge(url, writers, readers, folder)
    assert found["readers_that_saw_otherwise"] == ["r0", "r1"]
    readers[1].notes.write_text("\n".join(second[:50]))
    assert run.judge(url, writers, readers[1:], folder)["readers_that_saw_otherwise"] == ["r1"]
    assert not found["ok"]
    writers[0].notes.write_text(f"ack nobody 1 1 {'0' * 64}\n")
    assert len(run.judge(url, writers, [], folder)["lost"]) == 1
