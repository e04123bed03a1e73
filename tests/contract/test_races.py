"""What every store promises when several writers and a reader are at it at once."""

from __future__ import annotations

import concurrent.futures
import random
import threading

from tests.log_records import record, run

from smgate.log import batch, chain, port

WRITERS = 4


def in_threads(work, count: int) -> list:
    start = threading.Barrier(count)

    def begin(index: int):
        start.wait(10)
        return work(index)

    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        return [each.result(60) for each in [pool.submit(begin, n) for n in range(count)]]


def test_racing_retries_of_the_same_records_write_each_once(bench) -> None:
    """Every writer sends the same streams, in overlapping batches, as after lost answers."""
    stores = [bench.open_another() for _ in range(WRITERS)]

    def send(index: int) -> dict[tuple[str, int], int]:
        rng = random.Random(index)
        places: dict[tuple[str, int], int] = {}
        for first in range(1, 60, 6):
            records = [
                one
                for stream in ("a", "b", "c")
                for one in run(stream, max(1, first - rng.randrange(6)), first + 5)
            ]
            answer = stores[index].append(records, writer=f"w{index}")
            for one, place in zip(records, answer.positions, strict=True):
                key = (one.stream, one.version)
                assert places.setdefault(key, place) == place
        return places

    answers = in_threads(send, WRITERS)
    assert all(answer == answers[0] for answer in answers)
    log = bench.store.read(after=0)
    assert [one.position for one in log] == list(range(1, len(answers[0]) + 1))
    assert {(one.stream, one.version): one.position for one in log} == answers[0]
    assert chain_is_whole(bench.store)


def test_racing_writers_of_one_version_have_one_winner_and_the_rest_conflict(bench) -> None:
    stores = [bench.open_another() for _ in range(WRITERS)]
    rounds = 15

    def decide(index: int) -> list[bool]:
        won = []
        for version in range(1, rounds + 1):
            try:
                stores[index].append(
                    [record("rollout/r1", version, f"by {index}")], writer=f"w{index}"
                )
                won.append(True)
            except port.ConflictError:
                won.append(False)
        return won

    outcomes = in_threads(decide, WRITERS)
    assert [sum(column) for column in zip(*outcomes, strict=True)] == [1] * rounds
    assert bench.store.head().position == rounds
    assert chain_is_whole(bench.store)


def test_two_writers_on_one_stream_make_no_gap(bench) -> None:
    """Each reads the stream's version and writes the next; the loser of a race tries again."""
    stores = [bench.open_another() for _ in range(WRITERS)]

    def extend(index: int) -> int:
        done = 0
        while done < 10:
            version = stores[index].stream_version("s") + 1
            try:
                stores[index].append(
                    [record("s", version, f"{index}/{done}")], writer="w", gapless=True
                )
                done += 1
            except port.ConflictError:
                pass
        return done

    in_threads(extend, WRITERS)
    versions = [one.version for one in bench.store.read_stream("s")]
    assert versions == list(range(1, 10 * WRITERS + 1))


def test_a_tailing_reader_never_misses_and_never_sees_a_gap(bench) -> None:
    """Positions become visible in order, whatever the writers' batches and pauses."""
    stores = [bench.open_another() for _ in range(WRITERS)]
    per_writer, seen, done = 40, [], threading.Event()
    reader = bench.open_another()

    def tail() -> None:
        after = 0
        while True:
            last_look = done.is_set()
            page = reader.read(after=after, limit=50)
            seen.extend(one.position for one in page)
            if page:
                after = page[-1].position
            elif last_look:
                return
            else:
                done.wait(0.002)

    def write(index: int) -> int:
        rng, version, written = random.Random(index), 0, 0
        for _ in range(per_writer):
            count = rng.randrange(1, 5)
            stores[index].append(run(f"s{index}", version + 1, version + count), writer=f"w{index}")
            version += count
            written += count
        return written

    tailing = threading.Thread(target=tail)
    tailing.start()
    try:
        total = sum(in_threads(write, WRITERS))
    finally:
        done.set()
        tailing.join(30)
    assert seen == list(range(1, total + 1))


def chain_is_whole(store: port.Store) -> bool:
    previous, records = chain.GENESIS, store.read(after=0, limit=100_000)
    for one in store.read_batches(after=0, limit=100_000):
        span = records[one.first_position - 1 : one.first_position - 1 + one.count]
        assert one.root == chain.merkle_root([batch.leaf_of(each) for each in span])
        previous = chain.link(
            previous,
            first_position=one.first_position,
            recorded_at_us=one.recorded_at_us,
            tail=chain.tail(count=one.count, root=one.root, writer=one.writer),
        )
        assert previous == one.chain
    return previous == store.head().chain
