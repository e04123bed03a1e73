"""Fixtures of the agent's tests."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.agent import fake_controller, samples
from tests.fixtures import fake_sglang

from smgate_agent import bake, clock, config, metrics, nvml, outbox, watch


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


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(samples.K3_CONFIG))
    return str(path)


@pytest.fixture
def log(tmp_path: Path) -> fake_sglang.FakeLog:
    return fake_sglang.FakeLog(tmp_path / "server.log")


@pytest.fixture
def open_watcher(tmp_path, model, box):
    opened = []

    def make(*, timeout_s=5.0, manual=None, wanted=None, process=None, **declared):
        declared.setdefault("model_config", model)
        instance = config.Instance(id="k3", **declared)
        settings = config.AgentConfig(
            state_dir=str(tmp_path), instance=(instance,), request_timeout_s=timeout_s
        )
        watcher = watch.Watcher(
            instance,
            settings,
            outbox_=box,
            metrics_=metrics.Metrics(["k3"]),
            clock_=manual or clock.SystemClock(),
            stop=threading.Event(),
            faults=nvml.FaultLog(clock.SystemClock()),
            wanted=wanted or bake.Wanted(),
            process=process,
        )
        opened.append(watcher)
        return watcher

    yield make
    for watcher in opened:
        if watcher._tail is not None:
            watcher._tail.close()
