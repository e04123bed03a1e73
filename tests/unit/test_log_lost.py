"""A log that lost its end under a process that had seen it is told from one that went on."""

from __future__ import annotations

import pytest
from tests.log_records import run

from smgate.domain import genesis
from smgate.log import memory, port, port_archive
from smgate.service import fold, lost, records


def a_log(*parts: int, incarnation: str = "one") -> memory.MemoryStore:
    """The first events of a log, in batches of so many."""
    store = memory.MemoryStore(clock_us=lambda: 1, incarnation=incarnation)
    made = records.of_events(
        genesis.events() * 2, stream="controller", first_version=1, actor="controller", at_us=1
    )
    for count in parts:
        store.append(made[:count], writer="w")
        made = made[count:]
    return store


class Moved:
    """What a folder reads: another server answers in place of the one before."""

    def __init__(self, store: port.Store) -> None:
        self.store = store

    def __getattr__(self, name: str) -> object:
        return getattr(self.store, name)


def test_a_shorter_log_another_end_and_another_log_behind_it_are_told_until_one_begins_anew() -> (
    None
):
    others = {
        "shorter": a_log(1),
        "as long": a_log(1, 1),
        "longer": a_log(1, 2),
    }
    for what, other in others.items():
        moved = Moved(a_log(2))
        folder = fold.Folder(moved)  # type: ignore[arg-type]  all of a store, by name
        assert folder.catch_up() == 2
        moved.store = other
        for _ in range(2):
            with pytest.raises(lost.LogLostError) as caught:
                folder.catch_up()
            folder.reset()  # as a leader that steps down does
        assert caught.value.reason == "lost", what
        assert caught.value.next_step
        moved.store = a_log(1, incarnation="two")
        assert folder.catch_up() == 1, what


def test_a_log_that_went_on_or_was_cut_is_the_same() -> None:
    moved = Moved(a_log(2))
    folder = fold.Folder(moved)  # type: ignore[arg-type]
    folder.catch_up()
    moved.store = a_log(2, 1)
    assert folder.catch_up() == 3
    seen = moved.store.head()
    for version, events in enumerate(run("s", 1, 3), 1):
        moved.store.append([events], writer=f"w{version}")
    head = moved.store.head()
    moved.store.add_segment(
        port_archive.Segment(
            first_position=1,
            last_position=head.position,
            folder="",
            name="",
            sha256="",
            chain_before=b"",
            chain_after=head.chain,
            recorded_at_us=0,
        )
    )
    moved.store.raise_floor(head.position)
    lost.check(moved.store, moved.store.head(), seen)
