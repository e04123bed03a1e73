"""Planning again costs what has changed, whatever the size of the fleet.

No clock: what is counted are the steps of the interpreter and the bytes it holds at once. The
first finds a loop over the fleet, the second a copy or a sort of something as large.
"""

import sys
import tracemalloc

import pytest
from tests.bench import fleets

from smgate.domain import facts, planner, policy

SMALL, LARGE = 50, 1_000
TRIES = 6
"""Of each the least is taken: now and then a table of the state grows, which is nobody's doing."""
STEPS_MORE = 1.05
"""A heap and a sort by a key are deeper in a larger fleet."""
BYTES_MORE = 4_096


def steps_of(work):
    """Instructions that a piece of work executes."""
    count = 0

    def trace(frame, event, _arg):
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def bytes_of(work):
    """The most that a piece of work holds at once."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        work()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def unlike_what_it_was_told(made, names):
    """Servers that were told the safe value attest the target: alarms of many units."""
    for name in names:
        made.record(fleets.effective(fleets.TARGET), f"node:{name}")
    made.settle()


def a_busy_fleet(nodes):
    """Waves by share and rack, limits that are reached, alarms and waits of a third of the units."""
    made = fleets.of(
        nodes,
        numbers=policy.Policy(exposure_limit_units=nodes, breaker_bad_units=10 * nodes),
        waves=(policy.Wave(percent=20), policy.Wave(percent=100)),
        spread_by="rack",
        max_in_flight=2,
        select=policy.Selector(units=tuple(fleets.names(nodes))),
    )
    waiting = [name for name in fleets.names(nodes) if fleets.unit(made, name).grant is None]
    unlike_what_it_was_told(made, waiting[: nodes // 3])
    return made


def a_limited_fleet(nodes):
    """Every unit is in the open wave, and all but a few wait for a limit."""
    return fleets.of(
        nodes,
        numbers=policy.Policy(exposure_limit_units=nodes // 10),
        waves=(policy.Wave(percent=100),),
    )


def hears_of(made, name):
    """One node reports, and what it reported is planned with a planner that knows all others."""
    kept = planner.Planner()
    assert not kept.plan(made.fleet, made.now_us).events
    weights = iter(range(1, 1_000))

    def hear():
        seen = facts.WeightsSeen(instance_id="k3", weight_bytes=next(weights) << 30)
        made.record(seen, f"node:{name}")
        assert not kept.plan(made.fleet, made.now_us).events

    hear()
    return hear


def member(made, names):
    return next(name for name in names if fleets.unit(made, name).grant is not None)


def stranger(made, names):
    return next(name for name in reversed(names) if fleets.unit(made, name).grant is None)


@pytest.mark.parametrize("who", [member, stranger])
@pytest.mark.parametrize("story", [fleets.of, a_busy_fleet, a_limited_fleet])
def test_planning_one_unit_again_takes_as_much_in_a_large_fleet_as_in_a_small_one(story, who):
    steps, held = {}, {}
    for nodes in (SMALL, LARGE):
        made = story(nodes)
        hear = hears_of(made, who(made, fleets.names(nodes)))
        steps[nodes] = min(steps_of(hear) for _ in range(TRIES))
        held[nodes] = min(bytes_of(hear) for _ in range(TRIES))
    assert steps[LARGE] <= steps[SMALL] * STEPS_MORE
    assert held[LARGE] <= held[SMALL] + BYTES_MORE
