"""What must hold of a whole history, however it came about."""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import replace

from tests.property import watched

from smgate.domain import decisions, evolve, planner, rules, state
from smgate.log import codec


def recomputes(history):
    """Every recorded decision is the one the rules give at its own position and time, in bytes."""
    at = state.Fleet()
    left = list(history)
    for recorded in history:
        event = recorded.event
        if not isinstance(event, decisions.OverrideSet):
            continue
        while left and left[0].position <= event.as_of_position:
            evolve.evolve(at, left.pop(0))
        assert at.position == event.as_of_position
        if watched.is_late_copy(at, event):
            decided = at.units[event.unit].launch.decided
            assert (event.form, event.value, event.code) == (
                decided.form,
                decided.value,
                decided.code,
            )
            assert set(decided.launch_ids) < set(event.launch_ids)
            continue
        again = rules.decide_unit(at, event.unit, event.now_us).event
        if not event.launch_ids:
            again = replace(again, launch_ids=())
        assert codec.encode(again) == codec.encode(event)


def replays(history, now_us):
    """Read in any portions, even overlapping ones, and from its bytes: one state, one plan."""
    whole = evolve.fold(history)
    for size in (1, 7, 100):
        portions = state.Fleet()
        for start in range(0, len(history), size):
            evolve.fold(history[max(0, start - 2) : start + size], portions)
        assert portions == whole
    stored = state.Fleet()
    for one in history:
        name, data = codec.name_of(one.event), codec.encode(one.event)
        evolve.evolve(stored, replace(one, event=codec.decode(name, 1, data)))
    assert stored == whole
    turned = evolve.fold(replace(one, event=with_maps_turned(one.event)) for one in history)
    assert turned == whole
    plan = planner.plan(whole, now_us)
    assert planner.plan(turned, now_us) == plan
    assert planner.plan(with_maps_turned(copy.deepcopy(whole)), now_us) == plan


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
