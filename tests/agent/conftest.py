"""Fixtures of the agent's tests."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.agent import fake_controller
from tests.fixtures import fake_sglang

from smgate_agent import clock, outbox


@pytest.fixture
def manual_clock() -> clock.ManualClock:
    return clock.ManualClock(now_us=1_800_000_000_000_000)


@pytest.fixture
def open_outbox(
    tmp_path: Path, manual_clock: clock.ManualClock
) -> Iterator[Callable[..., outbox.Outbox]]:
    """Opens the one outbox of the test, as often as asked; ids count up."""
    numbers = itertools.count(1)
    opened: list[outbox.Outbox] = []

    def make(**options: int) -> outbox.Outbox:
        box = outbox.Outbox(
            tmp_path / "outbox.db",
            clock_=manual_clock,
            new_id=lambda: f"outbox-{next(numbers)}",
            **options,
        )
        opened.append(box)
        return box

    yield make
    for box in opened:
        box.close()


@pytest.fixture
def box(open_outbox: Callable[..., outbox.Outbox]) -> outbox.Outbox:
    return open_outbox()


@pytest.fixture
def sglang_server() -> Iterator[fake_sglang.FakeSglang]:
    with fake_sglang.FakeSglang() as server:
        yield server


@pytest.fixture
def controller() -> Iterator[fake_controller.FakeController]:
    with fake_controller.FakeController() as server:
        yield server
