"""Group commit, on every store: what waits is written together, and everyone is answered."""

from __future__ import annotations

import concurrent.futures
import random
import threading
from collections.abc import Sequence
from typing import Final

import pytest
from tests.log_records import record, run

from smgate.log import batch, commit, memory, port, verify

CALLERS = 12


class Gate(memory.MemoryStore):
    """A store in memory whose commits begin when the test says so, and fail as it says."""

    def __init__(self) -> None:
        super().__init__(clock_us=lambda: 1)
        self.groups: Final[list[int]] = []
        self.begun: Final = threading.Semaphore(0)
        self.may_go: Final = threading.Semaphore(0)
        self.failures: Final[list[BaseException]] = []

    def append_group(
        self, asked: Sequence[batch.Prepared], *, writer: str, epoch: int | None = None
    ) -> list[port.Appended | port.LogError]:
        self.groups.append(len(asked))
        self.begun.release()
        assert self.may_go.acquire(timeout=20)
        if self.failures:
            raise self.failures.pop(0)
        if any(one.given[0].stream == "poison" for one in asked):
            raise OverflowError("what nobody foresaw")
        return super().append_group(asked, writer=writer, epoch=epoch)


class Callers:
    """Threads that append through one group commit."""

    def __init__(self, store: Gate) -> None:
        self.store: Final = store
        self.together: Final = commit.GroupCommit(store, writer="w")
        self._pool: Final = concurrent.futures.ThreadPoolExecutor(64)

    def __enter__(self) -> Callers:
        return self

    def __exit__(self, *_: object) -> None:
        self.store.may_go.release(1_000)
        self._pool.shutdown()

    def send(self, *records: port.NewRecord) -> concurrent.futures.Future[port.Appended]:
        """Append in a thread of its own; returns once it writes or waits."""
        before, begun = len(self.together._waiting), len(self.store.groups)
        sent = self._pool.submit(self.together.append, records)
        while len(self.together._waiting) == before and len(self.store.groups) == begun:
            if sent.done():
                break
        return sent


@pytest.fixture
def callers():
    with Callers(Gate()) as made:
        yield made


def test_a_lone_caller_waits_for_nobody(store: port.Store) -> None:
    together = commit.GroupCommit(store, writer="api/1")
    assert together.append(run("a", 1, 2)).positions == (1, 2)
    assert together.append(run("a", 2, 3)).positions == (2, 3)
    assert [one.writer for one in store.read_batches(after=0)] == ["api/1", "api/1"]


def test_what_waits_while_one_commit_runs_is_written_by_the_next(callers: Callers) -> None:
    sent = [callers.send(record(f"s{number}")) for number in range(6)]
    callers.store.may_go.release(2)
    assert sorted(one.result(20).positions for one in sent) == [(n,) for n in range(1, 7)]
    assert callers.store.groups == [1, 5]
    assert [one.count for one in callers.store.read_batches(after=0)] == [1, 5]


def test_who_comes_back_at_once_is_in_the_next_commit() -> None:
    """Else it would wait for that one and its own: half of them taking turns, twice the commits."""

    class Slow(memory.MemoryStore):
        def append_group(
            self, asked: Sequence[batch.Prepared], *, writer: str, epoch: int | None = None
        ) -> list[port.Appended | port.LogError]:
            threading.Event().wait(0.002)  # As a database: others may run meanwhile.
            return super().append_group(asked, writer=writer, epoch=epoch)

    store = Slow(clock_us=lambda: 1)
    together = commit.GroupCommit(store, writer="w")

    def call(index: int) -> None:
        for version in range(1, 31):
            together.append([record(f"s{index}", version)])

    with concurrent.futures.ThreadPoolExecutor(CALLERS) as pool:
        list(pool.map(call, range(CALLERS), timeout=60))
    commits = len(store.read_batches(after=0, limit=5_000))
    assert 30 <= commits < 30 * 1.5


def test_one_commit_takes_only_so_many_records_and_a_larger_batch_goes_alone(
    callers: Callers,
) -> None:
    most = commit.TOGETHER_MAX
    sent = [
        callers.send(record("first")),
        callers.send(*run("a", 1, most - 1)),
        callers.send(record("b")),
        callers.send(record("c")),
        callers.send(*run("d", 1, most + 1)),
        callers.send(record("e")),
    ]
    callers.store.may_go.release(10)
    for one in sent:
        one.result(20)
    assert [one.count for one in callers.store.read_batches(after=0)] == [
        1,
        most,
        1,
        most + 1,
        1,
    ]


def test_too_much_waiting_is_refused_and_taken_once_there_is_room(callers: Callers) -> None:
    first = callers.send(record("first"))
    half = commit.WAITING_MAX // 2
    waiting = [callers.send(*run(stream, 1, half)) for stream in ("a", "b")]
    refused = callers.send(record("c"))
    with pytest.raises(port.LogOverloadedError) as caught:
        refused.result(20)
    assert (caught.value.code, caught.value.waiting) == ("log_overloaded", commit.WAITING_MAX)
    callers.store.may_go.release(10)
    for one in (first, *waiting):
        one.result(20)
    assert callers.store.stream_version("c") == 0
    assert callers.send(record("c")).result(20).positions == (commit.WAITING_MAX + 2,)


def test_who_waits_learns_at_once_that_the_database_fails(callers: Callers) -> None:
    """Else every caller behind would wait out a time-out of its own, one after the other."""
    callers.store.failures.append(port.LogUnavailableError("timeout", "no answer"))
    sent = [callers.send(record(f"s{number}")) for number in range(4)]
    callers.store.may_go.release(1)
    for one in sent:
        with pytest.raises(port.LogUnavailableError, match="no answer"):
            one.result(20)
    callers.store.may_go.release(1)
    assert callers.send(record("s1")).result(20).positions == (1,)
    assert callers.store.groups == [1, 1]


def test_what_nobody_foresaw_in_one_batch_fails_that_one_alone(callers: Callers) -> None:
    sent = [callers.send(record(stream)) for stream in ("first", "a", "poison", "b")]
    callers.store.may_go.release(10)
    with pytest.raises(OverflowError):
        sent.pop(2).result(20)
    assert sorted(one.result(20).positions for one in sent) == [(1,), (2,), (3,)]
    assert callers.store.groups == [1, 3, 1, 1, 1]


def test_when_the_writing_thread_is_stopped_another_writes_for_those_that_wait(
    callers: Callers,
) -> None:
    first = callers.send(record("first"))
    sent = [callers.send(record(stream)) for stream in ("a", "b", "c")]
    callers.store.may_go.release(1)
    first.result(20)
    assert callers.store.begun.acquire(timeout=20)
    callers.store.failures.append(KeyboardInterrupt())
    callers.store.may_go.release(10)
    with pytest.raises(KeyboardInterrupt):
        sent[0].result(20)
    assert [one.result(20).positions for one in sent[1:]] == [(2,), (3,)]
    assert callers.send(record("a")).result(20).positions == (4,)


def test_a_bad_record_is_refused_before_it_waits_with_others(store: port.Store) -> None:
    together = commit.GroupCommit(store, writer="w")
    with pytest.raises(ValueError, match="version 0"):
        together.append([record("a", 0)])
    with pytest.raises(port.ConflictError):
        together.append([record("a", 1, b"x"), record("a", 1, b"y")])
    assert together.append([record("a", 1)]).positions == (1,)


def test_many_callers_in_two_processes_each_get_their_own_answer(bench) -> None:
    """Every caller has a stream of its own, sends some twice and some with other content."""
    processes = [commit.GroupCommit(bench.open_another(), writer=f"api/{n}") for n in range(2)]
    contested = [0] * 20

    def call(index: int) -> dict[tuple[str, int], int]:
        rng, together = random.Random(index), processes[index % 2]
        stream, version, places = f"s{index}", 0, {}
        for step in range(20):
            count = rng.randrange(1, 4)
            # From before the end: what went before is sent again.
            sent = run(stream, max(1, version - rng.randrange(3)), version + count)
            answer = together.append(sent, gapless=True)
            for one, place in zip(sent, answer.positions, strict=True):
                assert places.setdefault((one.stream, one.version), place) == place
            version += count
            with pytest.raises(port.ConflictError) as conflict:
                together.append([record(stream, version, b"other")])
            assert conflict.value.position == places[stream, version]
            with pytest.raises(port.GapError):
                together.append([record(stream, version + 9)], gapless=True)
            try:
                together.append([record("contested", step + 1, f"by {index}")])
                contested[step] += 1
            except port.ConflictError:
                pass
        return places

    with concurrent.futures.ThreadPoolExecutor(CALLERS) as pool:
        answers = list(pool.map(call, range(CALLERS), timeout=120))
    log = {(one.stream, one.version): one.position for one in bench.store.read(after=0, limit=5000)}
    assert contested == [1] * 20
    assert log == {key: place for told in answers for key, place in told.items()} | {
        key: place for key, place in log.items() if key[0] == "contested"
    }
    assert sorted(log.values()) == list(range(1, len(log) + 1))
    assert len(bench.store.read_batches(after=0, limit=5000)) < len(log)
    assert verify.verify(bench.store).ok


# A PostgreSQL connection that comes back after the closing is only closed with the process.
@pytest.mark.parametrize("bench", ["memory", "sqlite"], indirect=True)
def test_a_store_closed_under_its_callers_leaves_none_without_a_true_answer(bench) -> None:
    """As at the end of a process whose last requests were cut: acknowledged is durable."""
    doomed = bench.open_another()
    together = commit.GroupCommit(doomed, writer="w")
    stop, told = threading.Event(), []

    def call(index: int) -> None:
        version = 0
        while not stop.is_set():
            version += 1
            try:
                told.append((f"s{index}", version, together.append([record(f"s{index}", version)])))
            except port.LogUnavailableError:
                return

    threads = [threading.Thread(target=call, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    while len(told) < 50:
        stop.wait(0.001)
    doomed.close()
    stop.set()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    after = bench.open_another()
    stored = {(one.stream, one.version): one.position for one in after.read(after=0, limit=100_000)}
    for stream, version, answer in told:
        assert stored[stream, version] == answer.positions[0]
    doomed.close()
