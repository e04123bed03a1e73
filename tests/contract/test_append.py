"""What every store promises about appending: order, repeats, conflicts, time, two people."""

from __future__ import annotations

import pytest
from tests.log_records import record, run

from smgate.log import batch, chain, commit, formats, port


def test_an_empty_log_begins_at_zero(store: port.Store) -> None:
    head = store.head()
    assert (head.position, head.chain, head.epoch, head.holder) == (0, chain.GENESIS, 0, "")
    assert head.incarnation
    assert store.read(after=0) == []
    assert store.read_batches(after=0) == []
    assert store.stream_version("outbox-a") == 0


def test_positions_follow_one_another_across_streams_and_batches(store: port.Store) -> None:
    first = store.append(run("a", 1, 2) + run("b", 1, 1), writer="api-1")
    second = store.append(run("a", 3, 3), writer="api-1")
    assert first.positions == (1, 2, 3)
    assert (first.first_position, first.last_position) == (1, 3)
    assert second.positions == (4,)
    assert second.head == store.head()
    assert [(one.position, one.stream, one.version) for one in store.read(after=0)] == [
        (1, "a", 1),
        (2, "a", 2),
        (3, "b", 1),
        (4, "a", 3),
    ]


def test_a_record_is_read_back_as_it_was_given(store: port.Store) -> None:
    given = record(
        "rollout/ä/日本",
        7,
        bytes(range(256)),
        type="rollout_approved",
        schema_version=3,
        occurred_at_us=-5,
        actor="anna@example.org",
        counter_actor="bo@example.org",
    )
    store.append([given], writer="api-1")
    (read,) = store.read(after=0)
    assert (read.stream, read.version, read.type) == (given.stream, 7, "rollout_approved")
    assert (read.schema_version, read.occurred_at_us) == (3, -5)
    assert (read.actor, read.counter_actor, read.data) == (
        given.actor,
        given.counter_actor,
        given.data,
    )
    assert read.leaf == batch.leaf_of(given) == batch.leaf_of(read)


def test_an_empty_payload_and_the_largest_version_are_kept(store: port.Store) -> None:
    store.append([record("a", 2**63 - 1, b"", occurred_at_us=0)], writer="w")
    assert store.stream_version("a") == 2**63 - 1
    assert store.read(after=0)[0].data == b""


def test_appending_nothing_writes_nothing(store: port.Store) -> None:
    appended = store.append([], writer="w")
    assert (appended.positions, appended.already, appended.first_position) == ((), (), None)
    assert store.head().position == 0
    assert store.read_batches(after=0) == []


def test_a_repeated_batch_returns_its_positions_and_writes_nothing(store: port.Store) -> None:
    records = run("a", 1, 3)
    first = store.append(records, writer="w")
    again = store.append(records, writer="another")
    assert again.positions == first.positions
    assert again.already == first.positions
    assert (again.first_position, again.last_position) == (None, None)
    assert again.head == first.head == store.head()
    assert len(store.read_batches(after=0)) == 1


def test_of_a_batch_partly_known_only_the_rest_is_written(store: port.Store) -> None:
    store.append(run("a", 1, 2), writer="w")
    store.append(run("b", 1, 1), writer="w")
    mixed = store.append(run("a", 1, 4) + run("b", 1, 2), writer="w")
    assert mixed.positions == (1, 2, 4, 5, 3, 6)
    assert mixed.already == (1, 2, 3)
    assert mixed.written == (4, 5, 6)
    assert (mixed.first_position, mixed.last_position) == (4, 6)
    assert [one.position for one in store.read(after=0)] == [1, 2, 3, 4, 5, 6]


def test_a_record_given_twice_in_one_batch_is_written_once(store: port.Store) -> None:
    one = record("a", 1)
    appended = store.append([one, record("a", 2), one], writer="w")
    assert appended.positions == (1, 2, 1)
    assert store.head().position == 2


@pytest.mark.parametrize(
    "change",
    [
        {"data": b"other"},
        {"type": "other"},
        {"schema_version": 2},
        {"occurred_at_us": 1},
        {"actor": "other"},
        {"counter_actor": "other"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_other_content_under_a_known_version_is_a_conflict_and_writes_nothing(
    store: port.Store, change: dict[str, object]
) -> None:
    store.append([*run("a", 1, 1), record("a", 2)], writer="w")
    before = store.head()
    with pytest.raises(port.ConflictError) as caught:
        store.append([record("b", 1), record("a", 2, **change), record("a", 3)], writer="w")
    assert (caught.value.stream, caught.value.version, caught.value.position) == ("a", 2, 2)
    assert "'a'" in str(caught.value)
    assert "version 2" in str(caught.value)
    assert store.head() == before
    assert store.stream_version("b") == 0


def test_two_contents_for_one_version_in_one_batch_are_a_conflict(store: port.Store) -> None:
    with pytest.raises(port.ConflictError) as caught:
        store.append([record("a", 1, b"x"), record("a", 1, b"y")], writer="w")
    assert (caught.value.stream, caught.value.version, caught.value.position) == ("a", 1, None)
    assert store.head().position == 0


@pytest.mark.parametrize("type", ["rollout_approved", "change_accepted"])
def test_trap_t21_the_same_person_cannot_ask_and_agree(store: port.Store, type: str) -> None:
    store.append([record("a", 1)], writer="w")
    with pytest.raises(port.SamePersonError) as caught:
        store.append(
            [record("a", 2), record("r", 1, type=type, actor="anna", counter_actor="anna")],
            writer="w",
        )
    assert (caught.value.actor, caught.value.stream) == ("anna", "r")
    assert store.head().position == 1
    store.append([record("r", 1, actor="anna", counter_actor="bo")], writer="w")
    assert store.head().position == 2


def test_without_gapless_the_caller_may_skip_versions(store: port.Store) -> None:
    store.append([record("a", 5)], writer="w")
    assert store.stream_version("a") == 5


def test_gapless_refuses_a_hole_and_writes_nothing(store: port.Store) -> None:
    store.append(run("a", 1, 2), writer="w", gapless=True)
    with pytest.raises(port.GapError) as caught:
        store.append(run("b", 1, 1) + run("a", 4, 5), writer="w", gapless=True)
    assert (caught.value.stream, caught.value.version) == ("a", 4)
    with pytest.raises(port.GapError) as caught:
        store.append([record("a", 3), record("a", 5)], writer="w", gapless=True)
    assert (caught.value.stream, caught.value.version) == ("a", 5)
    with pytest.raises(port.GapError):
        store.append([record("new", 2)], writer="w", gapless=True)
    assert store.head().position == 2
    assert store.append(run("a", 2, 4), writer="w", gapless=True).written == (3, 4)


def test_gapless_still_answers_for_a_record_that_stands_without_its_predecessor(
    store: port.Store,
) -> None:
    store.append([record("a", 5)], writer="w")
    again = store.append([*run("a", 6, 6), record("a", 5)], writer="w", gapless=True)
    assert (again.positions, again.already) == ((2, 1), (1,))
    alone = store.append([record("a", 5)], writer="w", gapless=True)
    assert (alone.positions, alone.already) == ((1,), (1,))
    with pytest.raises(port.ConflictError):
        store.append([record("a", 5, b"other")], writer="w", gapless=True)


def test_recorded_time_never_goes_back(bench) -> None:
    times = []
    for version, now_us in enumerate([1_000, 3_000, 2_000, 3_500], start=1):
        bench.clock.now_us = now_us
        appended = bench.store.append([record("a", version)], writer="w")
        times.append(appended.head.recorded_at_us)
    assert times == sorted(times)
    if bench.owns_clock:
        assert times == [1_000, 3_000, 3_000, 3_500]
    else:
        # Far from this process's manual clock: the server's own.
        assert times[0] > 1_700_000_000_000_000
    assert [one.recorded_at_us for one in bench.store.read(after=0)] == times
    assert [one.recorded_at_us for one in bench.store.read_batches(after=0)] == times


def test_a_batch_row_tells_writer_root_and_chain(store: port.Store) -> None:
    store.append(run("a", 1, 3), writer="api-1 ä")
    store.append(run("a", 4, 4), writer="api-2")
    first, second = store.read_batches(after=0)
    assert (first.first_position, first.count, first.writer) == (1, 3, "api-1 ä")
    assert (second.first_position, second.count, second.writer) == (4, 1, "api-2")
    assert first.root == chain.merkle_root([one.leaf for one in store.read(after=0)[:3]])
    previous = chain.GENESIS
    for one in (first, second):
        previous = chain.link(
            previous,
            first_position=one.first_position,
            recorded_at_us=one.recorded_at_us,
            tail=chain.tail(count=one.count, root=one.root, writer=one.writer),
        )
        assert one.chain == previous
    assert store.head().chain == previous
    assert store.read_batches(after=1) == [second]
    assert store.read_batches(after=0, limit=1) == [first]


@pytest.mark.parametrize(
    "bad",
    [
        record("a", 0),
        record("a", 2**63, occurred_at_us=0),
        record("a", 1, schema_version=2**31),
        record("a", 1, occurred_at_us=2**63),
        record("", 1),
        record("a", 1, type=""),
        record("a", 1, actor=""),
        record("a\x00b", 1),
        record("a", 1, counter_actor="x\x00"),
    ],
)
def test_a_record_that_no_store_could_hold_is_refused(
    store: port.Store, bad: port.NewRecord
) -> None:
    with pytest.raises(ValueError, match=r"record|version|zero byte"):
        store.append([bad], writer="w")
    assert store.head().position == 0


def test_too_many_records_and_a_nameless_writer_are_refused(store: port.Store) -> None:
    with pytest.raises(ValueError, match="at most"):
        store.append([record("a", 1)] * (port.RECORDS_MAX + 1), writer="w")
    with pytest.raises(ValueError, match="writer"):
        store.append([record("a", 1)], writer="")


def test_what_is_not_finalized_is_refused_alone_and_nothing_of_it_is_written(
    store: port.Store,
) -> None:
    store.above = frozenset({("node_reported", 2)})
    new = record("a", 1, schema_version=2)
    together = commit.GroupCommit(store, writer="w")
    for append in (lambda: store.append([new], writer="w"), lambda: together.append([new])):
        with pytest.raises(formats.NotFinalizedError):
            append()
    assert store.head().position == 0
    assert together.append([record("a", 1)]).positions == (1,)


def test_a_stream_has_a_name_that_every_index_can_hold(store: port.Store) -> None:
    longest = "".join(chr(0x10000 + number) for number in range(batch.STREAM_MAX))
    assert store.append([record(longest, 1)], writer="w").positions == (1,)
    with pytest.raises(ValueError, match="601 characters"):
        store.append([record(longest + "x", 1)], writer="w")
