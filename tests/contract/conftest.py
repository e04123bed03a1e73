"""The stores that must all keep the same promises, and a clock that the tests can move."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Iterator

import pytest

from smgate.log import open as log_open, port

STORES = ["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]


@dataclasses.dataclass
class ManualClock:
    """The database clock of the stores that are given one."""

    now_us: int = 1_000_000_000_000_000

    def __call__(self) -> int:
        return self.now_us


@dataclasses.dataclass
class Bench:
    """One log, and the ways a test can reach it."""

    kind: str
    store: port.Store
    clock: ManualClock
    open_another: Callable[[], port.Store]
    """Another store object on the same log, as another process would have."""

    @property
    def owns_clock(self) -> bool:
        """Whether the test can move this store's clock; PostgreSQL's server has its own."""
        return self.kind != "postgres"


@pytest.fixture(params=STORES)
def bench(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[Bench]:
    """A fresh, empty log of every kind."""
    clock = ManualClock()
    opened: list[port.Store] = []
    if request.param == "memory":
        url = log_open.MEMORY_URL
    elif request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'log.db'}"
        log_open.upgrade(url)
    else:
        url = request.getfixturevalue("postgres_url")

    def open_another() -> port.Store:
        if request.param == "memory" and opened:
            return opened[0]
        opened.append(log_open.open_store(url, clock_us=clock))
        return opened[-1]

    yield Bench(kind=request.param, store=open_another(), clock=clock, open_another=open_another)
    for store in opened:
        store.close()


@pytest.fixture
def store(bench: Bench) -> port.Store:
    """The log alone, for tests that need nothing else."""
    return bench.store
