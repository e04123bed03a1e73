"""The launch gate decides alone where nobody answers: its vectors hold for the controller's rules too."""

import json
import pathlib

import pytest
from tests import given

from smgate.domain import context, facts, keys, rules_ours, values
from smgate.log import codec

GOLDEN = pathlib.Path(__file__).parents[2] / "golden" / "gate"
KEYS = json.loads((GOLDEN / "kernel_key.json").read_text(encoding="utf-8"))
RULES = json.loads((GOLDEN / "local_rule.json").read_text(encoding="utf-8"))


def name_of(vector):
    return vector["name"]


@pytest.mark.parametrize("vector", KEYS, ids=name_of)
def test_the_kernel_key_is_the_gates(vector):
    key = keys.kernel_key(
        sm=vector["sm"],
        build=values.Build(**vector["build"]),
        layout=values.Layout(**vector["layout"]),
        a2a=vector["a2a"],
    )
    assert key == vector["key"]


def reading(launch):
    """What the controller makes of a gate's launch: the only member of its unit."""
    payload = {name: value for name, value in launch.items() if name != "type"}
    planned = codec.decode("launch_planned", 1, json.dumps(payload).encode())
    assert isinstance(planned, facts.LaunchPlanned)
    fleet = given.Fleet()
    fleet.record(planned, "node:node-a")
    (unit,) = fleet.state.units.values()
    ctx = context.of_unit(fleet.state, unit, fleet.now_us)
    return next(
        (ctx, member)
        for member in ctx.members
        if member.rank is not None and member.rank.planned == planned
    )


@pytest.mark.parametrize("vector", RULES, ids=name_of)
def test_rules_3_to_6_are_the_gates(vector):
    ctx, member = reading(vector["launch"])
    answers = (rule.ask(ctx, member) for rule in rules_ours.OF_THE_LAUNCH)
    first = next((one for one in answers if isinstance(one, context.Answer)), None)
    assert (first.code if first is not None else None) == vector["rule"]


@pytest.mark.parametrize("vector", RULES, ids=name_of)
def test_the_safe_value_is_the_gates(vector):
    ctx, _ = reading(vector["launch"])
    if vector["expect"]["value"] == given.SAFE:
        assert ctx.safe_value() == given.SAFE
    if vector["expect"]["code"] == "local_no_safe_value":
        assert ctx.safe_value() is None
    if vector["expect"]["value"] == given.TARGET:
        assert not ctx.raises(given.TARGET)


def test_the_vectors_speak_of_the_safe_value_and_of_the_target():
    assert {vector["expect"]["value"] for vector in RULES} == {None, given.SAFE, given.TARGET}
