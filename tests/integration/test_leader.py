"""One leader at a time decides: lease, epoch, hand-over, standby, failure."""

from __future__ import annotations

import dataclasses
import logging
import pathlib
import threading
from collections.abc import Callable, Iterator

import msgspec
import pytest
from tests import controller_bench as cb

from smgate import bootstrap, clock as clocks
from smgate.domain import decisions, rules, shipped_issues
from smgate.log import memory, port, verify
from smgate.service import contacts, fold, leader, records, service as services

SECOND_US = 1_000_000
START_US = 1_764_480_000 * SECOND_US
TTL_S = 5.0


class NobodyHeard:
    """No heartbeats."""

    def read(self) -> dict[str, contacts.Contact]:
        return {}


@dataclasses.dataclass
class Pair:
    """Two leaders on one log in memory, with a clock that only the test moves."""

    clock: clocks.ManualClock
    store: memory.MemoryStore
    folders: tuple[fold.Folder, fold.Folder]
    first: leader.Leader
    second: leader.Leader

    def pass_s(self, seconds: float) -> None:
        self.clock.advance_to(self.clock.now_us() + round(seconds * SECOND_US))

    def taken(self) -> list[dict[str, object]]:
        """Every change of leadership in the log."""
        return [
            msgspec.json.decode(record.data)
            for record in self.store.read(after=0)
            if record.type == "leadership_taken"
        ]


@pytest.fixture
def pair() -> Pair:
    clock = clocks.ManualClock(START_US)
    store = memory.MemoryStore(clock_us=clock.now_us)
    folders = (fold.Folder(store), fold.Folder(store))
    made = [
        leader.Leader(
            store,
            folder=folder,
            heard=NobodyHeard(),
            clock=clock,
            holder=name,
            lease_ttl_s=TTL_S,
            tick_s=0.25,
        )
        for name, folder in zip(("first", "second"), folders, strict=True)
    ]
    return Pair(clock, store, folders, made[0], made[1])


def test_the_first_leader_begins_the_log_with_what_is_shipped(pair: Pair) -> None:
    pair.first.step()
    types = [record.type for record in pair.store.read(after=0)]
    assert types[:3] == ["leadership_taken", "gate_published", "policy_published"]
    assert types[3:] == ["issue_published"] * len(shipped_issues.ALL)
    assert pair.taken() == [
        {"epoch": 1, "holder": "first", "away_us": 0, "rules_version": rules.RULES_VERSION}
    ]


def test_a_later_leader_does_not_begin_it_again(pair: Pair) -> None:
    pair.first.step()
    pair.first.hand_over()
    pair.second.step()
    types = [record.type for record in pair.store.read(after=0)]
    assert types.count("policy_published") == types.count("gate_published") == 1
    assert pair.taken()[-1] == {
        "epoch": 2,
        "holder": "second",
        "away_us": 0,
        "rules_version": rules.RULES_VERSION,
    }


def test_while_one_leads_the_other_stands_by_and_writes_nothing(pair: Pair) -> None:
    pair.first.step()
    head = pair.store.head()
    for _ in range(20):
        pair.pass_s(1)
        pair.first.step()
        assert pair.second.step() < TTL_S
    assert (pair.first.status.leading, pair.second.status.leading) == (True, False)
    assert pair.store.head() == head


def test_when_the_leader_dies_the_other_takes_over_and_says_for_how_long_nobody_led(
    pair: Pair,
) -> None:
    pair.first.step()
    pair.pass_s(TTL_S - 1)
    pair.second.step()
    assert not pair.second.status.leading
    pair.pass_s(3601)
    pair.second.step()
    assert pair.second.status.leading
    assert pair.taken()[-1]["away_us"] == 3600 * SECOND_US
    with pair.folders[1].at_head() as fleet:
        assert fleet.led_us(fleet.now_us) == fleet.now_us - 3600 * SECOND_US


def test_a_leader_that_slept_through_its_lease_writes_nothing_and_steps_down(pair: Pair) -> None:
    pair.first.step()
    pair.pass_s(TTL_S + 1)
    pair.second.step()
    head = pair.store.head()
    pair.store.append(
        records.of_events(
            [decisions.NodeReturned(node="n1")],
            stream="outbox/o",
            first_version=1,
            actor="node:n1",
            at_us=1,
        ),
        writer="test",
    )
    pair.first.step()
    assert not pair.first.status.leading
    assert pair.store.head().position == head.position + 1
    assert pair.store.head().epoch == 2


def test_a_stalled_leaders_append_is_fenced_even_before_it_looks_at_its_lease(
    pair: Pair,
) -> None:
    pair.first.step()
    epoch = pair.first.status.epoch
    pair.first.hand_over()
    pair.second.step()
    made = records.of_events(
        [decisions.NodeReturned(node="n1")],
        stream=records.CONTROLLER,
        first_version=pair.store.stream_version(records.CONTROLLER) + 1,
        actor=records.CONTROLLER,
        at_us=1,
    )
    with pytest.raises(port.FencedError):
        pair.store.append(made, writer="first", epoch=epoch)
    pair.store.append(made, writer="second", epoch=pair.second.status.epoch)


def test_a_failure_drops_the_fold_steps_down_and_the_next_step_leads_again(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    pair.first.step()
    broken = port.NewRecord(
        stream="outbox/x",
        version=1,
        type="from_the_future",
        schema_version=1,
        occurred_at_us=1,
        actor="node:n1",
        data=b"{}",
    )
    pair.store.append([broken], writer="a newer release")
    with caplog.at_level(logging.ERROR):
        first_wait = pair.first.step()
        waits = [pair.first.step() for _ in range(8)]
    assert not pair.first.status.leading
    assert pair.first.status.failures == 9
    assert pair.folders[0].position == 0
    assert "read this log with the release that wrote it" in caplog.text
    assert 0 < first_wait < max(waits) <= leader.BACKOFF_S_MAX
    assert pair.second.step() == pytest.approx(waits[0], abs=15)  # the lease was handed over


def test_the_led_clock_stands_still_from_the_end_of_a_handed_over_lease(pair: Pair) -> None:
    pair.first.step()
    pair.first.hand_over()
    pair.pass_s(40)
    pair.second.step()
    assert pair.taken()[-1]["away_us"] == 40 * SECOND_US


@pytest.fixture
def standby(
    bench: cb.Bench, database_url: str, tmp_path: pathlib.Path
) -> Iterator[services.Service]:
    """A second controller on the first one's database."""
    with bootstrap.assembled(cb.settings(database_url, tmp_path, lease_ttl_s=1)) as made:
        yield made


def test_a_standby_serves_what_the_leader_decided_and_takes_over_when_it_stops(
    bench: cb.Bench, standby: services.Service
) -> None:
    unit = bench.enrol("n1").launch("l1")["unit"]
    standby.leader.step()
    assert not standby.leader.status.leading
    bench.lead()
    standby.folder.catch_up()
    assert standby.directives.generation("n1") == bench.service.directives.generation("n1")
    assert standby.queries.rows("units") == bench.service.queries.rows("units")
    assert standby.queries.why_unit(unit, at=None)["override"]["code"] == "observe"
    bench.service.leader.hand_over()
    standby.leader.step()
    assert standby.leader.status.leading
    standby.leader.hand_over()


def test_two_processes_that_race_to_lead_leave_a_whole_log_with_rising_epochs(
    bench: cb.Bench, standby: services.Service
) -> None:
    bench.enrol("n1")

    def lead_and_stop(one: services.Service) -> None:
        for _ in range(15):
            one.leader.step()
            one.leader.hand_over()

    both = [threading.Thread(target=lead_and_stop, args=(s,)) for s in (bench.service, standby)]
    for thread in both:
        thread.start()
    bench.enrol("n2").launch("l1")
    for thread in both:
        thread.join()
    epochs = [
        msgspec.json.decode(record.data)["epoch"] for record in bench.events("leadership_taken")
    ]
    assert epochs == sorted(set(epochs))
    versions = [record.version for record in bench.events() if record.stream == records.CONTROLLER]
    assert versions == list(range(1, len(versions) + 1))
    assert verify.verify(bench.service.store).ok
    assert bench.service.leader.status.failures == standby.leader.status.failures == 0


def test_the_thread_leads_wakes_on_facts_and_hands_the_lease_over_when_stopped(
    bench: cb.Bench, standby: services.Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "SNAPSHOT_LEAST", 1)
    bench.service.leader.hand_over()
    errors: list[Exception] = []
    running = services.Background(standby, on_error=errors.append)
    running.start()
    try:
        _until(lambda: standby.leader.status.leading)
        bench.enrol("n1").launch("l1")  # taken in by the other process: found by polling
        _until(lambda: bench.events("override_set") != [])
        assert standby.leader.status.leading
    finally:
        running.stop(timeout_s=10)
    assert not errors
    assert bench.service.store.acquire_lease(leader.LEASE, holder="next", ttl_s=1) is not None
    [kept] = bench.service.store.snapshots()
    assert kept.position == standby.folder.position > 0


def _until(happened: Callable[[], bool]) -> None:
    waiting = threading.Event()
    for _ in range(200):
        if happened():
            return
        waiting.wait(0.05)
    pytest.fail("it did not happen within 10 s")
