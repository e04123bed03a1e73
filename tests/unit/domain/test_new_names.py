"""What is new gets a name that a person can read, type and tell from another."""

from dataclasses import replace

import pytest
from tests import given

from smgate.domain import commands, errors, fleet_asks, plan_ahead, policy, rulings

PACKAGES = {"sglang_version": "0.5.23", "flashinfer_version": "0.7.2", "torch_cuda": "13.0"}
PLAN = policy.RolloutPlan(
    id="r", gate=given.GATE, sm="10.7", waves=(policy.Wave(count=1),), max_in_flight=1
)
ISSUE = policy.KnownIssue(id="i", url="u", title="t", severity="block", match={"sm": ("10.7",)})
NEW = {
    "build": lambda name: commands.AnnounceBuild(name=name, packages=PACKAGES, reason="r"),
    "freeze": lambda name: commands.DeclareFreeze(id=name, reason="r"),
    "gate": lambda name: commands.PublishGate(
        gate=replace(policy.KIMI_K3, id=name, architecture="Another"), reason="r"
    ),
    "known issue": lambda name: commands.PublishIssue(issue=replace(ISSUE, id=name), reason="r"),
    "rollout": lambda name: commands.ProposeRollout(plan=replace(PLAN, id=name), reason="r"),
}


@pytest.mark.parametrize("thing", NEW)
@pytest.mark.parametrize("name", ["", " ", " a", "a\n", "a\nb", "\u202eb", "\x1b[1m", "-x"])
def test_a_name_that_nobody_could_read_or_type_is_refused(thing, name):
    assert given.Fleet().refuses(NEW[thing](name)) == "bad_name"


@pytest.mark.parametrize("thing", NEW)
@pytest.mark.parametrize("name", ["a", "3", "k3:2026/05", "bad night", "größer"])
def test_others_are_taken(thing, name):
    given.Fleet().orders(NEW[thing](name))


def test_a_machine_of_such_a_name_is_not_expected():
    nodes = (rulings.ExpectedNode(name="a\u202e", sm="10.7"),)
    assert given.Fleet().refuses(fleet_asks.ExpectFleet(nodes=nodes, reason="r")) == "bad_node"


def test_a_plan_without_a_name_is_refused_before_it_is_proposed():
    with pytest.raises(errors.RejectedError) as caught:
        plan_ahead.foresee(given.Fleet().state, replace(PLAN, id=""), given.START_US)
    assert caught.value.code == "bad_name"
