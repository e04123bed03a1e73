"""The fold of a process: a cold one keeps the cycle collector out of what it makes."""

import gc

import pytest

from smgate.domain import genesis
from smgate.log import memory
from smgate.service import fold, records


def a_log():
    store = memory.MemoryStore(clock_us=lambda: 1)
    made = records.of_events(
        genesis.events(), stream="controller", first_version=1, actor="controller", at_us=1
    )
    store.append(made, writer="test")
    return store


@pytest.mark.parametrize("collects", [True, False])
def test_a_cold_fold_leaves_the_collector_as_it_was(collects):
    store, frozen = a_log(), gc.get_freeze_count()
    events = store.head().position
    try:
        if not collects:
            gc.disable()
        fold.Folder(store, cold=events + 1).catch_up()
        assert gc.get_freeze_count() == frozen
        cold = fold.Folder(store, cold=events)
        assert cold.catch_up() == events
        assert gc.get_freeze_count() > frozen
        assert gc.isenabled() == collects
    finally:
        gc.unfreeze()
        gc.enable()
