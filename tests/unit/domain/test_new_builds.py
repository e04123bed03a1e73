"""What a kernel key that no rollout ran needs, once a rollout has completed."""

import pytest
from tests import given

from smgate.domain import commands, decisions, facts, policy

NEWER = given.build(flashinfer_version="0.7.3")
NODES = ("a", "b")


def completed(on_new_build="canary", *, qualified=True, name="r1", **plan):
    """A fleet whose rollout completed; then a newer build is qualified on the pool, or not."""
    fleet = given.Fleet().enforce().qualified()
    fleet.node(*NODES)
    for node in NODES:
        fleet.launch(node)
    fleet.rollout(name, on_new_build=on_new_build, **plan)
    for node in NODES:
        fleet.restarts(node)
        fleet.bakes(node, 600)
    assert fleet.phase(name) == "completed"
    if qualified:
        fleet.passes(*given.POOL, made=NEWER)
    return fleet


@pytest.mark.parametrize(
    ("on_new_build", "qualified", "told"),
    [
        ("trust_pool", True, given.TARGET),
        ("trust_pool", False, given.SAFE),
        ("canary", True, given.SAFE),
        ("hold", True, given.SAFE),
    ],
)
def test_a_new_build_stands_only_where_the_pool_is_trusted_and_qualified_it(
    on_new_build, qualified, told
):
    fleet = completed(on_new_build, qualified=qualified)
    fleet.launch("a", build=NEWER)
    assert fleet.told("a")[:2] == ("append", told)
    codes = [event.code for event in fleet.seen(decisions.Granted)[2:]]
    assert codes == (["standing"] if told == given.TARGET else [])


@pytest.mark.parametrize(
    ("on_new_build", "said"),
    [
        ("canary", "No rollout covers this unit and its kernel key."),
        ("hold", "Rollout r1 completed without this kernel key and holds new builds."),
    ],
)
def test_the_refusal_says_whether_new_builds_are_held(on_new_build, said):
    fleet = completed(on_new_build)
    fleet.launch("a", build=NEWER)
    assert fleet.told("a")[2] == "no_rollout"
    assert fleet.override("a").sentence == said


def test_where_the_pool_is_trusted_the_decision_says_so():
    fleet = completed("trust_pool")
    fleet.orders(commands.DeclareFreeze(id="f", reason="holiday"))
    fleet.launch("a", build=NEWER)
    assert fleet.told("a")[2] == "freeze"
    fleet.orders(commands.LiftFreeze(id="f", reason="over"))
    assert fleet.told("a") == ("append", given.TARGET, "granted")


def test_a_rollout_begun_since_decides_instead_of_the_pool():
    fleet = completed("trust_pool")
    fleet.launch("a", build=NEWER)
    fleet.rollout("r2", waves=[policy.Wave(count=1)])
    fleet.restarts("b", build=NEWER)
    fleet.says("b", facts.GpuFaultSeen(gpu_uuid="GPU-b", xid=79))
    assert fleet.phase("r2") == "halted"
    fleet.node("c")
    fleet.launch("c", build=NEWER)
    assert fleet.told("c") == ("append", given.SAFE, "rollout_halted")


@pytest.mark.parametrize(("newest", "value"), [("hold", given.SAFE), ("trust_pool", given.TARGET)])
def test_the_newest_completed_rollout_says_what_a_new_build_needs(newest, value):
    fleet = given.Fleet().enforce().qualified()
    fleet.node(*NODES)
    for node in NODES:
        fleet.launch(node)
    for name, node, rule in (("r1", "a", "trust_pool"), ("r2", "b", newest)):
        taken = NODES if name == "r2" else (node,)
        select = policy.Selector(units=tuple(map(fleet.id, taken)))
        fleet.rollout(name, select=select, on_new_build=rule)
        fleet.restarts(node)
        fleet.bakes(node, 600)
        assert fleet.phase(name) == "completed"
    fleet.passes(*given.POOL, made=NEWER)
    fleet.launch("a", build=NEWER)
    assert fleet.told("a")[:2] == ("append", value)


def test_a_rollout_of_some_units_trusts_for_those_alone():
    fleet = completed("trust_pool", waves=[policy.Wave(count=2)])
    fleet.node("c")
    fleet.launch("a", build=NEWER)
    fleet.launch("c", build=NEWER)
    assert fleet.told("a")[1] == given.TARGET
    assert fleet.told("c") == ("append", given.SAFE, "no_rollout")


def test_a_rollout_that_was_halted_before_does_not_decide():
    fleet = given.Fleet().enforce().qualified()
    fleet.node(*NODES)
    for node in NODES:
        fleet.launch(node)
    fleet.rollout("r0")
    fleet.orders(commands.HaltRollout(rollout="r0", reason="too early"))
    fleet.node("c")
    fleet.launch("c")
    fleet.rollout("r1", on_new_build="trust_pool")
    fleet.restarts("c")
    fleet.bakes("c", 600)
    assert fleet.phase("r1") == "completed"
    fleet.passes(*given.POOL, made=NEWER)
    fleet.launch("a", build=NEWER)
    assert fleet.told("a") == ("append", given.TARGET, "granted")
