"""What every store promises about the appends of several callers that it writes together."""

from __future__ import annotations

import random

import pytest
from tests.log_records import record, run

from smgate.log import batch, memory, port, verify


def together(
    store: port.Store, *asked: list[port.NewRecord], gapless: bool = False
) -> list[port.Appended | port.LogError]:
    prepared = [batch.prepare(each, gapless=gapless) for each in asked]
    return store.append_group(prepared, writer="w")


def test_callers_written_together_share_a_batch_and_have_their_own_positions(
    store: port.Store,
) -> None:
    answers = together(store, run("a", 1, 2), run("b", 1, 1), [], run("a", 3, 3))
    assert [each.positions for each in answers] == [(1, 2), (3,), (), (4,)]
    assert [each.already for each in answers] == [(), (), (), ()]
    assert {each.head for each in answers} == {store.head()}
    (written,) = store.read_batches(after=0)
    assert (written.first_position, written.count, written.writer) == (1, 4, "w")
    assert verify.verify(store).ok


def test_what_one_caller_is_refused_stops_no_other(store: port.Store) -> None:
    store.append([*run("a", 1, 2), record("r", 1, actor="anna")], writer="w")
    prepared = [
        batch.prepare(records, gapless=gapless)
        for records, gapless in [
            (run("b", 1, 2), True),
            ([record("new", 1), record("a", 2, b"other")], False),
            (run("c", 7, 7), True),
            ([record("new", 1), record("r", 2, actor="anna", counter_actor="anna")], False),
            ([record("b", 2, b"other")], False),
            (run("a", 1, 3), True),
            (run("a", 2, 4), True),
        ]
    ]
    first, conflict, gap, same, clash, known, overlapping = store.append_group(prepared, writer="w")
    assert (first.positions, first.already) == ((4, 5), ())
    assert isinstance(conflict, port.ConflictError)
    assert (conflict.stream, conflict.version, conflict.position) == ("a", 2, 2)
    assert isinstance(gap, port.GapError)
    assert (gap.stream, gap.version) == ("c", 7)
    assert isinstance(same, port.SamePersonError)
    assert isinstance(clash, port.ConflictError)
    assert (clash.stream, clash.version, clash.position) == ("b", 2, 5)
    assert (known.positions, known.already) == ((1, 2, 6), (1, 2))
    assert (overlapping.positions, overlapping.already) == ((2, 6, 7), (2, 6))
    assert [(one.stream, one.version) for one in store.read(after=3)] == [
        ("b", 1),
        ("b", 2),
        ("a", 3),
        ("a", 4),
    ]
    assert len(store.read_batches(after=3)) == 1
    assert verify.verify(store).ok


def test_a_predecessor_may_come_with_a_caller_before_and_not_with_one_behind(
    store: port.Store,
) -> None:
    behind = together(store, run("a", 2, 2), run("a", 1, 1), gapless=True)
    assert isinstance(behind[0], port.GapError)
    assert behind[1].positions == (1,)
    before = together(store, run("a", 2, 2), run("a", 3, 3), gapless=True)
    assert [each.positions for each in before] == [(2,), (3,)]


def test_what_a_refused_caller_would_have_added_stands_for_nobody(store: port.Store) -> None:
    store.append(run("x", 1, 1), writer="w")
    answers = together(store, [record("a", 1), record("x", 1, b"other")], run("a", 2, 2))
    assert isinstance(answers[0], port.ConflictError)
    assert answers[1].positions == (2,)
    gapless = together(
        store, [record("b", 1), record("x", 1, b"other")], run("b", 2, 2), gapless=True
    )
    assert [type(each) for each in gapless] == [port.ConflictError, port.GapError]
    assert store.head().position == 2


def test_a_group_that_writes_nothing_answers_with_the_head(store: port.Store) -> None:
    store.append(run("a", 1, 2), writer="w")
    answers = together(store, run("a", 1, 1), run("a", 2, 2), [record("a", 1, b"other")])
    assert [each.positions for each in answers[:2]] == [(1,), (2,)]
    assert isinstance(answers[2], port.ConflictError)
    assert store.head().position == 2
    assert answers[0].head == store.head()


def test_an_old_epoch_is_refused_for_the_whole_group(store: port.Store) -> None:
    epoch = store.take_epoch(holder="one")
    store.take_epoch(holder="two")
    prepared = [batch.prepare(run(stream, 1, 1), gapless=False) for stream in ("a", "b")]
    with pytest.raises(port.FencedError):
        store.append_group(prepared, writer="w", epoch=epoch)
    assert store.head().position == 0
    assert len(store.append_group(prepared, writer="w", epoch=epoch + 1)) == 2


@pytest.mark.parametrize("seed", range(4))
def test_a_group_is_answered_as_its_callers_one_after_the_other(bench, seed: int) -> None:
    """Random callers, many of them repeating, contradicting or skipping, against a log of lists."""
    rng = random.Random(seed)
    alone = memory.MemoryStore(clock_us=bench.clock)
    for _ in range(12):
        asked = [_random_records(rng) for _ in range(rng.randrange(1, 9))]
        prepared = []
        expected: list[port.Appended | port.LogError] = []
        for records in asked:
            gapless = rng.random() < 0.5
            try:
                prepared.append(batch.prepare(records, gapless=gapless))
            except port.LogError:
                continue
            try:
                expected.append(alone.append(records, writer="w", gapless=gapless))
            except port.LogError as error:
                expected.append(error)
        answers = bench.store.append_group(prepared, writer="w")
        assert [_told(each) for each in answers] == [_told(each) for each in expected]
    assert [_content(one) for one in bench.store.read(after=0)] == [
        _content(one) for one in alone.read(after=0)
    ]
    assert verify.verify(bench.store).ok


def _random_records(rng: random.Random) -> list[port.NewRecord]:
    first, note = rng.randrange(1, 12), rng.choice(["", "", "", "other"])
    made = run(rng.choice("abc"), first, first + rng.randrange(3), note=note)
    if rng.random() < 0.1:
        made.append(record("r", first, actor="anna", counter_actor=rng.choice(["anna", "bo"])))
    return made


def _told(answer: port.Appended | port.LogError) -> object:
    if isinstance(answer, port.Appended):
        return answer.positions, answer.already
    return type(answer), str(answer)


def _content(one: port.StoredRecord) -> tuple[object, ...]:
    return one.position, one.stream, one.version, one.actor, one.data, one.leaf
