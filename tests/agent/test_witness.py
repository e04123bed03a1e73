"""A node keeps heads of the controller's log, and the log is verified against them."""

import pathlib

from tests.log_records import run

from smgate.log import kept, memory, verify
from smgate.wire import facts
from smgate_agent import clock, witness

DAY_US = 86_400_000_000
NOON_US = 1_764_504_000_000_000


def head(number: int) -> facts.ChainHead:
    return facts.ChainHead(position=number, chain=f"{number:064x}")


def positions(folder: pathlib.Path) -> list[int]:
    read, without = kept.read((folder / witness.HEADS_FILE).read_text().splitlines())
    assert without == 0
    assert all(one.chain == one.position.to_bytes(32, "big") for one in read)
    return [one.position for one in read]


def test_the_first_and_the_newest_of_each_day_are_kept(tmp_path: pathlib.Path) -> None:
    number = 0
    for day in range(40):
        for minute in range(5):
            at = clock.ManualClock(now_us=NOON_US + day * DAY_US + minute * 60_000_000)
            number += 1
            witness.Witness(tmp_path, clock_=at).keep(head(number))
    first_day = 40 - witness.LINES_MAX // 2
    assert positions(tmp_path) == [
        place for day in range(first_day, 40) for place in (5 * day + 1, 5 * day + 5)
    ]


def test_a_busy_node_writes_once_a_minute(tmp_path: pathlib.Path) -> None:
    at = clock.ManualClock(now_us=NOON_US)
    keeping = witness.Witness(tmp_path, clock_=at)
    keeping.keep(head(1))
    keeping.keep(head(2))
    assert positions(tmp_path) == [1]
    at.advance(-86_400)  # a clock that was put back
    keeping.keep(head(3))
    assert positions(tmp_path) == [1, 3]


def test_no_file_that_cannot_be_written_stops_it(tmp_path: pathlib.Path) -> None:
    keeping = witness.Witness(tmp_path / "gone", clock_=clock.ManualClock(now_us=NOON_US))
    keeping.keep(head(1))
    assert not (tmp_path / "gone").exists()


def test_a_rewritten_log_does_not_lead_through_what_a_node_kept(tmp_path: pathlib.Path) -> None:
    stores = [memory.MemoryStore(clock_us=lambda: NOON_US) for _ in range(2)]
    for store, stream in zip(stores, ("told", "forged"), strict=True):
        end = store.append(run(stream, 1, 4), writer="w").head
        if stream == "told":
            told = facts.ChainHead(position=end.position, chain=end.chain.hex())
            witness.Witness(tmp_path, clock_=clock.ManualClock(now_us=NOON_US)).keep(told)
    heads, _ = kept.read((tmp_path / witness.HEADS_FILE).read_text().splitlines())
    assert [verify.verify(store, kept=heads).kind for store in stores] == [
        None,
        verify.Kind.REWRITTEN,
    ]
