"""Whatever has no order of its own must not depend on the order it came in."""

import dataclasses
from typing import get_args

from hypothesis import given, settings, strategies as st
from tests import given as language
from tests.property import histories

from smgate.domain import decisions, evolve, facts, planner, policy, touches

NODES = ("a", "b", "c", "d", "e")


def at_one_instant(order, failing):
    """Nodes launch, and one fails a check, all at one instant; then a rollout starts."""
    fleet = language.Fleet().enforce().qualified()
    fleet.node(*sorted(order))
    for node in order:
        fleet.launch(node, settled=False)
        if node in failing:
            fleet.record(
                facts.CheckFinished(
                    check="moe_mxfp4",
                    outcome="failed",
                    reason="wrong",
                    sm="10.7",
                    gpu_uuids=(f"GPU-{node}",),
                    build=language.build(flashinfer_version="0.9.9"),
                    layout=language.LAYOUT,
                    probe_version="1",
                ),
                f"node:{node}",
            )
    fleet.settle()
    fleet.rollout(waves=[policy.Wave(count=3), policy.Wave(percent=100)])
    return {
        "told": {node: fleet.told(node) for node in order},
        "members": fleet.seen(decisions.WaveOpened)[0].units,
        "granted": [event.unit for event in fleet.seen(decisions.Granted)],
        "suspected": [event.gpu_uuids for event in fleet.seen(decisions.BuildSuspected)],
        "failed": [event.chassis for event in fleet.seen(decisions.BuildFailed)],
        "alarms": sorted(fleet.alarms()),
    }


@settings(max_examples=25, deadline=None)
@given(order=st.permutations(NODES), failing=st.sets(st.sampled_from(NODES), max_size=2))
def test_the_order_of_nodes_within_an_instant_changes_nothing(order, failing):
    assert at_one_instant(order, failing) == at_one_instant(sorted(order), failing)


@settings(max_examples=25, deadline=None)
@given(order=st.permutations(("p1", "p2", "p3", "p4", "p5")))
def test_the_pool_is_asked_in_one_order(order):
    fleet = language.Fleet().enforce()
    fleet.node(*sorted(order), pool=True)
    for node in order:
        fleet.launch(node, settled=False)
    fleet.settle()
    assert [event.node for event in fleet.seen(decisions.SelfTestWanted)] == ["p1", "p2", "p3"]


@settings(max_examples=25, deadline=None)
@given(cut=st.integers(1, 60))
def test_the_order_of_the_maps_of_a_state_changes_no_plan(cut):
    fleet = language.Fleet().enforce().qualified()
    fleet.granted("a", "b", bake_s=10)
    fleet.serves("c")
    fleet.check("b", outcome="failed")
    part = evolve.fold(fleet.history[:cut])
    turned = histories.with_maps_turned(evolve.fold(fleet.history[:cut]))
    assert planner.plan(turned, fleet.now_us) == planner.plan(part, fleet.now_us)


def test_every_fact_that_names_gpus_concerns_who_holds_them():
    named = {
        kind
        for kind in get_args(facts.Fact)
        if {"gpus", "gpu_uuids", "gpu_uuid"} & {field.name for field in dataclasses.fields(kind)}
    }
    assert named == touches._GPUS.keys()


def said_by(node):
    """What one node may report at one instant, in its own order."""
    server = {"instance_id": "k3", "gpu_uuids": (f"GPU-{node}",), "launch_id": f"{node}-2"}
    seen = {"instance_id": "k3", "a2a": "none", "source": "log", "mxfp4": True}
    checked = {
        "check": "moe_mxfp4",
        "reason": "r",
        "sm": "10.7",
        "gpu_uuids": (f"GPU-{node}",),
        "build": language.BUILD,
        "layout": language.LAYOUT,
        "probe_version": "1",
        "negative_control": "caught",
    }
    return st.lists(
        st.sampled_from(
            [
                facts.InstanceChanged(state="serving", **server),
                facts.InstanceChanged(state="exited", exit_code=1, **server),
                facts.InstanceChanged(state="unhealthy", **server),
                facts.EffectiveSeen(runner=language.TARGET, **seen),
                facts.EffectiveSeen(runner="auto", **seen),
                facts.CheckFinished(outcome="passed", **checked),
                facts.CheckFinished(outcome="failed", **checked),
                facts.GpuFaultSeen(gpu_uuid=f"GPU-{node}", xid=79),
                facts.MemoryFallbackSeen(instance_id="k3", phase="active"),
                facts.BakeInterval(instance_id="k3", interval_s=600, requests=9, failures=0),
                facts.GapNoticed(lost_outbox_id="box"),
            ]
        ),
        max_size=4,
    )


def after(said, order):
    """Servers on the target report all this at one instant, interleaved in an order."""
    fleet = language.Fleet(breaker_bad_units=2, drain_on_failed_build="auto").enforce().qualified()
    fleet.granted(*said, bake_s=600)
    left = {node: list(found) for node, found in said.items()}
    for node in order:
        fleet.record(left[node].pop(0), f"node:{node}")
    fleet.settle()
    found = fleet.state
    return {
        "told": {node: fleet.told(node) for node in said},
        "granted": {node: [g.kernel_keys for g in fleet.unit(node).grants] for node in said},
        "memory": {where: code for where, (code, _) in found.gpu_memory.items()},
        "alarms": {(e.cause, e.units) for e in found.episodes.values() if e.closed_us is None},
        "standing": {key: one.standing for key, one in found.keys.items()},
        "phase": {name: rollout.phase for name, rollout in found.rollouts.items()},
        "breaker": found.breaker_units,
        "drains": {unit: (one.code, one.nodes) for unit, one in found.drains.items()},
        "waits": sorted((wait.code, wait.subject) for wait in fleet.waits),
    }


@settings(max_examples=15, deadline=None)
@given(
    said=st.fixed_dictionaries({node: said_by(node) for node in ("a", "b", "c")}), data=st.data()
)
def test_the_interleaving_of_nodes_within_an_instant_changes_nothing(said, data):
    one_by_one = [node for node, found in said.items() for _ in found]
    order = data.draw(st.permutations(one_by_one))
    assert after(said, order) == after(said, one_by_one)
