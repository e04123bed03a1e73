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
