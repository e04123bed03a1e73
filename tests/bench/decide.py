"""`make bench-decide`: what planning and folding cost, as JSON lines {name, n, runs, value, unit}.

Medians as measured and no verdict. `n` is the number of nodes, from BENCH_NODES (1000,10000).

    plan_full     the whole plan of a settled fleet: what a new leader does first
    replan_one    a node's news folded, and planned with what is remembered of all others
    fold_rate     events of the log decoded and folded per second
    fold_typed    the same events folded per second, decoded before
    memory_bytes  what the folded fleet and its planner hold
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import time
import tracemalloc
from collections.abc import Callable

from tests.bench import fleets

from smgate.domain import evolve, facts, planner, state
from smgate.log import codec, port

RUNS = 5
NODES = "1000,10000"


def _timed_s(work: Callable[[], object]) -> float:
    gc.collect()
    begun = time.process_time()
    work()
    return time.process_time() - begun


def _cold_s(work: Callable[[], object]) -> float:
    """Without the cycle collector, as `service.fold` does a cold fold."""
    gc.disable()
    try:
        return _timed_s(work)
    finally:
        gc.enable()


def _say(name: str, nodes: int, found: list[float], unit: str) -> None:
    value = statistics.median(found)
    row = {
        "name": name,
        "n": nodes,
        "runs": len(found),
        "value": round(value, 6) if value < 1_000 else round(value),
        "unit": unit,
    }
    print(json.dumps(row), flush=True)


def plan_full(made: fleets.History, runs: int) -> list[float]:
    """The whole plan, by a planner that remembers nothing."""
    return [
        _timed_s(lambda run=run: planner.Planner().plan(made.fleet, made.now_us + run))
        for run in range(runs)
    ]


def replan_one(made: fleets.History, runs: int) -> list[float]:
    """One node reports how much its weights take; then the plan is made again."""
    kept = planner.Planner()
    assert not kept.plan(made.fleet, made.now_us).events
    nodes = [node.name for node in made.fleet.nodes.values() if not node.name.startswith("pool")]

    def hear(number: int) -> None:
        weights = facts.WeightsSeen(instance_id="k3", weight_bytes=number << 30)
        made.record(weights, f"node:{nodes[number % len(nodes)]}")
        assert not kept.plan(made.fleet, made.now_us).events

    return [_timed_s(lambda number=number: hear(number)) for number in range(1, runs + 1)]


def stored(made: fleets.History) -> list[port.StoredRecord]:
    """The history as the log keeps it."""
    return [
        port.StoredRecord(
            position=one.position,
            recorded_at_us=one.at_us,
            occurred_at_us=one.occurred_at_us,
            stream=one.stream,
            version=one.version,
            type=codec.name_of(one.event),
            schema_version=codec.version_of(one.event),
            actor=one.actor,
            counter_actor=None,
            data=codec.encode(one.event),
            leaf=b"",
        )
        for one in made.recorded
    ]


def _folded(log: list[port.StoredRecord]) -> state.Fleet:
    return evolve.fold(codec.recorded(record) for record in log)


def memory_bytes(log: list[port.StoredRecord], now_us: int) -> float:
    """What is allocated and still held after folding the log and planning it once."""
    gc.collect()
    tracemalloc.start()
    try:
        fleet, kept = _folded(log), planner.Planner()
        kept.plan(fleet, now_us)
        gc.collect()
        return float(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()


def measure(nodes: int, runs: int) -> None:
    """All lines for one size."""
    made = fleets.of(nodes)
    log = stored(made)
    _say("plan_full", nodes, plan_full(made, runs), "s")
    _say("fold_rate", nodes, [len(log) / _cold_s(lambda: _folded(log)) for _ in range(runs)], "1/s")
    typed = [codec.recorded(record) for record in log]
    _say(
        "fold_typed",
        nodes,
        [len(log) / _cold_s(lambda: evolve.fold(typed)) for _ in range(runs)],
        "1/s",
    )
    typed.clear()
    _say("replan_one", nodes, replan_one(made, runs * 20), "s")
    now_us = made.now_us
    del made
    _say("memory_bytes", nodes, [memory_bytes(log, now_us)], "bytes")


def main() -> None:
    """Measure the sizes asked for, smallest first."""
    asked = argparse.ArgumentParser(description="What deciding costs, as JSON lines.")
    asked.add_argument("--nodes", default=os.environ.get("BENCH_NODES") or NODES)
    asked.add_argument("--runs", type=int, default=RUNS)
    given = asked.parse_args()
    for nodes in sorted(int(number) for number in given.nodes.split(",")):
        measure(nodes, given.runs)


if __name__ == "__main__":
    main()
