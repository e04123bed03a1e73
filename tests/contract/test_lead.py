"""What every store promises about leading: one lease, rising epochs, no write from an old one."""

from __future__ import annotations

import threading
import time

import pytest
from tests.log_records import record

from smgate.log import port


def pass_time(bench, seconds: float) -> None:
    if bench.owns_clock:
        bench.clock.now_us += round(seconds * 1_000_000)
    else:
        time.sleep(seconds)


def test_epochs_rise_and_name_their_holder(store: port.Store) -> None:
    assert store.take_epoch(holder="one") == 1
    assert store.take_epoch(holder="two") == 2
    assert (store.head().epoch, store.head().holder) == (2, "two")


def test_an_epoch_does_not_touch_the_chain(store: port.Store) -> None:
    before = store.append([record("a", 1)], writer="w").head
    store.take_epoch(holder="one")
    after = store.head()
    assert (after.position, after.chain) == (before.position, before.chain)
    assert after.incarnation == before.incarnation


def test_an_append_of_an_old_epoch_is_refused(store: port.Store) -> None:
    old = store.take_epoch(holder="one")
    store.append([record("decisions", 1)], writer="one", epoch=old)
    new = store.take_epoch(holder="two")
    for fenced in (old, new + 1):
        with pytest.raises(port.FencedError) as caught:
            store.append([record("decisions", 2)], writer="one", epoch=fenced)
        assert (caught.value.epoch, caught.value.current, caught.value.holder) == (
            fenced,
            new,
            "two",
        )
    assert store.head().position == 1
    # Facts of nodes carry no epoch and are never fenced.
    store.append([record("a", 1)], writer="api-1")
    store.append([record("decisions", 2)], writer="two", epoch=new)


def test_a_fenced_leader_is_told_so_even_if_its_records_stand(store: port.Store) -> None:
    old = store.take_epoch(holder="one")
    store.append([record("decisions", 1)], writer="one", epoch=old)
    store.take_epoch(holder="two")
    with pytest.raises(port.FencedError):
        store.append([record("decisions", 1)], writer="one", epoch=old)


def test_a_lease_has_one_holder_until_it_expires(bench) -> None:
    first = bench.store.acquire_lease("leader", holder="one", ttl_s=0.4)
    assert first is not None
    assert (first.holder, first.previous_holder, first.previous_expires_at_us) == (
        "one",
        None,
        None,
    )
    assert first.expires_at_us - first.acquired_at_us == 400_000
    assert bench.store.acquire_lease("leader", holder="two", ttl_s=9) is None
    assert bench.store.acquire_lease("another", holder="two", ttl_s=9) is not None
    pass_time(bench, 0.5)
    second = bench.store.acquire_lease("leader", holder="two", ttl_s=9)
    assert second is not None
    assert (second.previous_holder, second.previous_expires_at_us) == ("one", first.expires_at_us)
    assert second.acquired_at_us >= first.expires_at_us
    assert bench.store.renew_lease("leader", holder="one", ttl_s=9) is None
    assert not bench.store.release_lease("leader", holder="one")


def test_renewing_prolongs_and_an_expired_lease_cannot_be_renewed(bench) -> None:
    first = bench.store.acquire_lease("leader", holder="one", ttl_s=0.3)
    assert first is not None
    renewed = bench.store.renew_lease("leader", holder="one", ttl_s=0.4)
    assert renewed is not None
    assert renewed.expires_at_us > first.expires_at_us
    assert renewed.previous_expires_at_us == first.expires_at_us
    pass_time(bench, 0.5)
    assert bench.store.renew_lease("leader", holder="one", ttl_s=9) is None
    again = bench.store.acquire_lease("leader", holder="one", ttl_s=9)
    assert again is not None
    # What tells a leader for how long nobody led, also when it was the last to lead.
    assert again.previous_expires_at_us == renewed.expires_at_us


def test_a_released_lease_is_free_at_once_and_says_since_when(bench) -> None:
    first = bench.store.acquire_lease("leader", holder="one", ttl_s=60)
    assert first is not None
    pass_time(bench, 0.01)
    assert bench.store.release_lease("leader", holder="one")
    assert not bench.store.release_lease("leader", holder="one")
    second = bench.store.acquire_lease("leader", holder="two", ttl_s=60)
    assert second is not None
    assert second.previous_expires_at_us is not None
    assert first.acquired_at_us < second.previous_expires_at_us <= second.acquired_at_us
    assert second.previous_expires_at_us < first.expires_at_us


def test_renewing_and_releasing_a_lease_nobody_ever_took_says_no(store: port.Store) -> None:
    assert store.renew_lease("leader", holder="one", ttl_s=1) is None
    assert not store.release_lease("leader", holder="one")


def test_only_the_holder_of_the_named_lease_takes_an_epoch(bench) -> None:
    assert bench.store.acquire_lease("leader", holder="one", ttl_s=0.3) is not None
    assert bench.store.take_epoch(holder="one", lease="leader") == 1
    with pytest.raises(port.LeaseLostError):
        bench.store.take_epoch(holder="two", lease="leader")
    with pytest.raises(port.LeaseLostError):
        bench.store.take_epoch(holder="one", lease="never taken")
    pass_time(bench, 0.4)
    with pytest.raises(port.LeaseLostError):
        bench.store.take_epoch(holder="one", lease="leader")
    assert bench.store.head().epoch == 1


def test_of_racing_candidates_one_gets_the_lease(bench) -> None:
    stores = [bench.open_another() for _ in range(4)]
    won: list[str] = []
    start = threading.Barrier(len(stores))

    def stand(index: int) -> None:
        start.wait(10)
        if stores[index].acquire_lease("leader", holder=f"c{index}", ttl_s=60) is not None:
            won.append(f"c{index}")

    threads = [threading.Thread(target=stand, args=(index,)) for index in range(len(stores))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(won) == 1
