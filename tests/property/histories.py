"""What must hold of a whole history, however it came about."""

from __future__ import annotations

import copy
import dataclasses
import random

from smgate.domain import decisions, evolve, planner, rulings, state, whatif
from smgate.log import codec, graph
from smgate.scenario import watch

SENSED = (
    *whatif.SEEN,
    decisions.LeadershipTaken,
    decisions.BreakerTripped,
    decisions.RulesChanged,
    decisions.LogRestored,
    rulings.GatePublished,
    rulings.PolicyPublished,
    rulings.IssuePublished,
)
"""What the controller records and no plan gives: what it senses, how a log begins, and the breaker,
which the tests trip by hand."""


def recomputes(history):
    """Every recorded decision is the one the rules give at its own position and time, in bytes."""
    watched = watch.Watch()
    watched.take(history)
    assert watched.violations == []
    told = sum(isinstance(one.event, decisions.OverrideSet) for one in history)
    assert watched.checks["recomputes"] == told


def plans_again(history):
    """Whatever else the controller decided follows from the state before it, in bytes."""
    fleet = state.Fleet()
    left = list(history)
    while left:
        first = left[0]
        if first.actor != "controller" or isinstance(first.event, SENSED):
            evolve.evolve(fleet, left.pop(0))
            continue
        planned = planner.plan(fleet, first.occurred_at_us).events
        assert planned, f"nothing gives {first}"
        for event in planned:
            assert codec.encode(event) == codec.encode(left[0].event)
            evolve.evolve(fleet, left.pop(0))


def replays(history, now_us):
    """Read in any portions, even overlapping ones, from its bytes or from any snapshot: one state."""
    whole = evolve.fold(history)
    for size in (1, 7, 100):
        portions = state.Fleet()
        for start in range(0, len(history), size):
            evolve.fold(history[max(0, start - 2) : start + size], portions)
        assert portions == whole
    cuts = random.Random(len(history))
    from_snapshots = state.Fleet()
    for one in history:
        if cuts.random() < 0.1:
            from_snapshots = from_its_bytes(from_snapshots)
        evolve.evolve(from_snapshots, one)
    assert from_snapshots == whole
    stored = state.Fleet()
    for one in history:
        name, data = codec.name_of(one.event), codec.encode(one.event)
        evolve.evolve(stored, one._replace(event=codec.decode(name, 1, data)))
    assert stored == whole
    turned = evolve.fold(one._replace(event=with_maps_turned(one.event)) for one in history)
    assert turned == whole
    plan = planner.plan(whole, now_us)
    assert planner.plan(turned, now_us) == plan
    assert planner.plan(from_snapshots, now_us) == plan
    assert planner.plan(with_maps_turned(copy.deepcopy(whole)), now_us) == plan


STATES = graph.Codec(state.Fleet)


def from_its_bytes(fleet):
    """What a snapshot gives back: the same state, and so the same bytes."""
    written = STATES.encode(fleet)
    read = STATES.decode(written)
    assert read == fleet
    assert STATES.encode(read) == written
    return read


def with_maps_turned(value):
    """The same value with the entries of every map in it in the opposite order."""
    if isinstance(value, dict):
        return type(value)(
            {key: with_maps_turned(item) for key, item in reversed(list(value.items()))}
        )
    if isinstance(value, list | tuple):
        return type(value)(with_maps_turned(item) for item in value)
    if not dataclasses.is_dataclass(value):
        return value
    turned = {
        field.name: with_maps_turned(getattr(value, field.name))
        for field in dataclasses.fields(value)
    }
    return type(value)(**turned)
