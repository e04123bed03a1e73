"""`verify` passes a log as it was written and names the first row of one that was touched."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Iterator, Sequence

import pytest
import sqlalchemy as sa
from tests.log_records import other, record, run

from smgate.log import batch, chain, database, open as log_open, port, tables, verify

CLOCK_US = 1_764_480_000_000_000


class Tamper:
    """A small log of four batches (1-3, 4-5, 6, 7-8), and a hand that changes its rows."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.engine = sa.create_engine(database.normalize(url), poolclass=sa.NullPool)
        ticks = iter(range(CLOCK_US, CLOCK_US + 100))
        self.store = log_open.open_sql_store(url, clock_us=lambda: next(ticks))
        self.store.append(run("a", 1, 2) + run("b", 1, 1), writer="api-1")
        self.middle = self.store.append([*run("a", 3, 3), approval()], writer="api-2").head
        self.store.append(run("b", 2, 2), writer="api-1")
        self.kept = self.store.append(run("a", 4, 5), writer="api-1").head

    def change(self, *statements: sa.Executable) -> None:
        with self.engine.begin() as connection:
            for statement in statements:
                connection.execute(statement)

    def report(self, *kept: port.Head) -> verify.VerifyReport:
        heads = [held(one) for one in kept]
        report = verify.verify(self.store, kept=heads)
        for stretch in (1, 3):
            cut = verify.verify(self.store, kept=heads, stretch=stretch)
            assert cut == report, "stretches that meet say the same as one walk"
        return report

    def assert_bad(
        self,
        table: str,
        position: int,
        *kinds: verify.Kind,
        kept: Sequence[port.Head] = (),
    ) -> verify.BadRow:
        report = self.report(*kept)
        bad = report.first_bad
        assert not report.ok
        assert bad is not None
        assert (bad.table, bad.position, bad.kind) == (table, position, bad.kind)
        assert bad.kind in kinds
        assert report.kind == bad.kind
        assert bad.sentence
        return bad


def held(head: port.Head) -> verify.Kept:
    return verify.Kept(position=head.position, chain=head.chain)


def approval() -> port.NewRecord:
    return record("rollout/r1", 1, type="rollout_approved", actor="anna", counter_actor="bo")


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def tamper(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[Tamper]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'log.db'}"
        log_open.upgrade(url)
    else:
        url = request.getfixturevalue("postgres_url")
    made = Tamper(url)
    yield made
    made.store.close()


EVENT, BATCH, HEAD = tables.LOG_EVENT, tables.LOG_BATCH, tables.LOG_HEAD


def at(position: int) -> sa.ColumnElement[bool]:
    return EVENT.c.position == position


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_log_as_written_passes(kind: str, tmp_path: pathlib.Path) -> None:
    url = log_open.MEMORY_URL if kind == "memory" else f"sqlite:///{tmp_path / 'log.db'}"
    if kind == "sqlite":
        log_open.upgrade(url)
    store = log_open.open_store(url, clock_us=lambda: CLOCK_US)
    empty = verify.verify(store)
    assert (empty.ok, empty.positions, empty.batches) == (True, 0, 0)
    for first in range(1, 5_000, 500):
        store.append(run("a", first, first + 499), writer="w")
    report = verify.verify(store, kept=[held(store.head())])
    assert (report.ok, report.first_bad, report.kind) == (True, None, None)
    assert (report.positions, report.batches) == (5_000, 10)
    assert report.chain_hex == store.head().chain.hex()
    store.close()


def test_the_untouched_log_of_these_tests_passes(tamper: Tamper) -> None:
    report = tamper.report(tamper.kept)
    assert (report.ok, report.positions, report.batches) == (True, 8, 4)
    assert tamper.report(tamper.middle).ok


# position is among the columns that `other` changes: 8 becomes 9 and so on.
@pytest.mark.parametrize("column", [one.name for one in EVENT.columns])
@pytest.mark.parametrize("position", [1, 4, 6, 8])
def test_a_changed_column_of_any_record_is_named(
    tamper: Tamper, column: str, position: int
) -> None:
    with tamper.engine.connect() as connection:
        value = connection.execute(sa.select(EVENT.c[column]).where(at(position))).scalar()
    if column in {"version", "stream"}:
        new = other(value) if column == "stream" else value + 100
    elif column == "position":
        new = 100
    else:
        new = other(value)
    tamper.change(sa.update(EVENT).where(at(position)).values({column: new}))
    kind = verify.Kind.REMOVED if column == "position" else verify.Kind.CHANGED
    tamper.assert_bad("log_event", position, kind)


def test_taking_the_counter_actor_away_is_named(tamper: Tamper) -> None:
    tamper.change(sa.update(EVENT).where(at(5)).values(counter_actor=None))
    tamper.assert_bad("log_event", 5, verify.Kind.CHANGED)


@pytest.mark.parametrize("column", [one.name for one in BATCH.columns])
@pytest.mark.parametrize("first", [1, 4, 6, 7])
def test_a_changed_column_of_any_batch_is_named(tamper: Tamper, column: str, first: int) -> None:
    with tamper.engine.connect() as connection:
        value = connection.execute(
            sa.select(BATCH.c[column]).where(BATCH.c.first_position == first)
        ).scalar()
    new = 100 if column == "first_position" else other(value)
    tamper.change(sa.update(BATCH).where(BATCH.c.first_position == first).values({column: new}))
    kind = verify.Kind.REMOVED if column == "first_position" else verify.Kind.CHANGED
    tamper.assert_bad("log_batch", first, kind)


@pytest.mark.parametrize("column", ["position", "chain", "recorded_at_us"])
def test_a_changed_head_is_named(tamper: Tamper, column: str) -> None:
    tamper.change(sa.update(HEAD).values({column: other(getattr(tamper.kept, column))}))
    tamper.assert_bad("log_head", 8, verify.Kind.CHANGED)


def test_a_head_lowered_alone_is_named(tamper: Tamper) -> None:
    tamper.change(sa.update(HEAD).values(position=7))
    tamper.assert_bad("log_head", 8, verify.Kind.CHANGED)


def test_a_removed_head_is_named(tamper: Tamper) -> None:
    tamper.change(sa.delete(HEAD))
    report = tamper.report()
    assert report.head is None
    assert report.chain_hex == ""
    tamper.assert_bad("log_head", 0, verify.Kind.REMOVED)


@pytest.mark.parametrize("position", range(1, 9))
def test_a_removed_record_is_named(tamper: Tamper, position: int) -> None:
    tamper.change(sa.delete(EVENT).where(at(position)))
    tamper.assert_bad("log_event", position, verify.Kind.REMOVED)


@pytest.mark.parametrize("first", [1, 4, 6, 7])
def test_a_removed_batch_row_is_named(tamper: Tamper, first: int) -> None:
    tamper.change(sa.delete(BATCH).where(BATCH.c.first_position == first))
    tamper.assert_bad("log_batch", first, verify.Kind.REMOVED)


@pytest.mark.parametrize("position", [-3, 0, 9, 50])
def test_an_inserted_record_is_named(tamper: Tamper, position: int) -> None:
    copy = sa.select(
        sa.literal(position),
        sa.literal("forged"),
        *(one for one in EVENT.columns if one.name not in {"position", "stream"}),
    ).where(at(2))
    names = ["position", "stream"] + [
        one.name for one in EVENT.columns if one.name not in {"position", "stream"}
    ]
    tamper.change(sa.insert(EVENT).from_select(names, copy))
    tamper.assert_bad("log_event", position, verify.Kind.INSERTED)


@pytest.mark.parametrize("first", [-1, 0, 2, 5, 8, 9, 70])
def test_an_inserted_batch_row_is_named(tamper: Tamper, first: int) -> None:
    one = tamper.store.read_batches(after=0)[0]
    tamper.change(sa.insert(BATCH).values(dataclasses.asdict(one) | {"first_position": first}))
    tamper.assert_bad("log_batch", first, verify.Kind.INSERTED)


@pytest.mark.parametrize("pair", [(1, 2), (1, 3), (4, 5), (7, 8)])
def test_two_exchanged_records_of_a_batch_are_named(tamper: Tamper, pair: tuple[int, int]) -> None:
    exchange(tamper, *pair)
    bad = tamper.assert_bad("log_event", pair[0], verify.Kind.REORDERED)
    assert str(pair[1]) in bad.sentence


def test_two_exchanged_records_of_different_batches_are_found(tamper: Tamper) -> None:
    """Their times differ, so the first of them is seen at once."""
    exchange(tamper, 2, 6)
    tamper.assert_bad("log_event", 2, verify.Kind.CHANGED)


def exchange(tamper: Tamper, left: int, right: int) -> None:
    tamper.change(
        sa.update(EVENT).where(at(left)).values(position=1000),
        sa.update(EVENT).where(at(right)).values(position=left),
        sa.update(EVENT).where(at(1000)).values(position=right),
    )


@pytest.mark.parametrize(("position", "span"), [(2, (1, 3)), (6, (6, 6))])
def test_a_record_replaced_leaf_and_all_is_traced_to_its_batch(
    tamper: Tamper, position: int, span: tuple[int, int]
) -> None:
    stored = tamper.store.read(after=position - 1, limit=1)[0]
    forged = stored._replace(data=b"forged")
    tamper.change(
        sa.update(EVENT).where(at(position)).values(data=b"forged", leaf=batch.leaf_of(forged))
    )
    bad = tamper.assert_bad("log_event", span[0], verify.Kind.CHANGED)
    assert bad.last_position == span[1]


def cut_after(tamper: Tamper, head: port.Head) -> None:
    """Remove the tail and lower the head, as somebody who knows the scheme would."""
    tamper.change(
        sa.delete(EVENT).where(EVENT.c.position > head.position),
        sa.delete(BATCH).where(BATCH.c.first_position > head.position),
        sa.update(HEAD).values(
            position=head.position, chain=head.chain, recorded_at_us=head.recorded_at_us
        ),
    )


def test_a_cut_tail_is_found_by_the_head_that_was_kept(tamper: Tamper) -> None:
    cut_after(tamper, tamper.middle)
    assert tamper.report().ok, "nothing inside the database can show it"
    tamper.assert_bad("log_event", 6, verify.Kind.TRUNCATED, kept=[tamper.kept])
    assert tamper.report(tamper.middle).ok


def test_a_cut_tail_grown_again_is_found_by_the_head_that_was_kept(tamper: Tamper) -> None:
    cut_after(tamper, tamper.middle)
    tamper.store.append(run("forged", 1, 3), writer="api-1")
    assert tamper.report().ok
    tamper.assert_bad("log_batch", 8, verify.Kind.REWRITTEN, kept=[tamper.kept])


def test_a_cut_tail_grown_past_the_kept_head_is_found(tamper: Tamper) -> None:
    cut_after(tamper, tamper.middle)
    tamper.store.append(run("forged", 1, 7), writer="api-1")
    tamper.assert_bad("log_batch", 8, verify.Kind.REWRITTEN, kept=[tamper.kept])


def test_the_first_of_several_bad_rows_is_named(tamper: Tamper) -> None:
    tamper.change(
        sa.delete(EVENT).where(at(7)),
        sa.update(EVENT).where(at(3)).values(data=b"x"),
        sa.update(BATCH).where(BATCH.c.first_position == 6).values(writer="x"),
    )
    tamper.assert_bad("log_event", 3, verify.Kind.CHANGED)
    assert tamper.report().positions == 0


def test_verifying_reads_only_and_needs_no_more_than_the_file(tmp_path: pathlib.Path) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    log_open.upgrade(url)
    Tamper(url).store.close()
    reader = log_open.open_store(url, clock_us=lambda: CLOCK_US, read_only=True)
    assert verify.verify(reader).ok
    with pytest.raises(port.LogUnavailableError) as caught:
        reader.append(run("z", 1, 1), writer="w")
    assert caught.value.reason == "read_only"
    reader.close()


@pytest.mark.postgres
def test_a_read_only_postgres_store_verifies_and_cannot_write(postgres_url: str) -> None:
    Tamper(postgres_url).store.close()
    reader = log_open.open_store(postgres_url, clock_us=lambda: CLOCK_US, read_only=True)
    assert verify.verify(reader).ok
    with pytest.raises(port.LogUnavailableError) as caught:
        reader.append(run("z", 1, 1), writer="w")
    assert caught.value.reason == "read_only"
    reader.close()


def test_appends_while_verifying_raise_no_alarm() -> None:
    """Each page that verify asks for lets another batch in first."""
    store = log_open.open_store(log_open.MEMORY_URL, clock_us=lambda: CLOCK_US)
    store.append(run("a", 1, 3), writer="w")

    class Busy:
        def __init__(self) -> None:
            self.version = 0

        def __getattr__(self, name: str) -> Callable[..., object]:
            self.version += 1
            store.append(run(f"late/{self.version}", 1, 2), writer="w")
            return getattr(store, name)

    report = verify.verify(Busy())  # type: ignore[arg-type]
    assert report.ok, report.first_bad
    assert report.positions >= 3


def test_the_merkle_root_is_that_of_rfc_6962() -> None:
    """Against the RFC's own recursive definition, for every size up to 40."""
    import hashlib

    def root_of(leaves: list[bytes]) -> bytes:
        if len(leaves) == 1:
            return leaves[0]
        split = 1
        while split * 2 < len(leaves):
            split *= 2
        both = root_of(leaves[:split]) + root_of(leaves[split:])
        return hashlib.sha256(b"\x01" + both).digest()

    for size in range(1, 41):
        leaves = [hashlib.sha256(bytes([number])).digest() for number in range(size)]
        assert chain.merkle_root(leaves) == root_of(leaves)


def test_no_two_ways_to_split_the_fields_share_a_leaf() -> None:
    seen = set()
    for stream, kind, actor in [
        ("ab", "c", "d"),
        ("a", "bc", "d"),
        ("a", "b", "cd"),
        ("abc", "d", "e"),
    ]:
        for counter in (None, "", "x"):
            seen.add(
                batch.leaf_of(record(stream, 1, type=kind, actor=actor, counter_actor=counter))
            )
    assert len(seen) == 12
