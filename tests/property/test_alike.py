"""Units that count as alike are told the same, in any history."""

import pytest
from hypothesis import given, settings, strategies as st
from tests import given as language

from smgate.domain import alike, commands, errors, facts, policy, rules

NODES = ("a", "b", "c", "d")
HAPPENINGS = {
    "launch": lambda fleet, node: fleet.launch(node),
    "another build": lambda fleet, node: fleet.launch(
        node, build=language.build(torch_cuda="12.6")
    ),
    "old flashinfer": lambda fleet, node: fleet.launch(
        node, build=language.build(flashinfer_version="0.6.17")
    ),
    "own choice": lambda fleet, node: fleet.launch(node, asked_runner="triton"),
    "file": lambda fleet, node: fleet.launch(node, sink="file", asked_runner="auto"),
    "other model": lambda fleet, node: fleet.launch(
        node, model=language.OTHER_MODEL, model_digest=language.OTHER_MODEL.digest
    ),
    "a2a": lambda fleet, node: fleet.launch(node, asked_a2a="deepep"),
    "draft": lambda fleet, node: fleet.launch(node, draft_asserts_auto=True),
    "unread": lambda fleet, node: fleet.launch(node, argv_read=False),
    "serve": lambda fleet, node: fleet.serves(node, "marlin"),
    "on the target": lambda fleet, node: fleet.serves(node),
    "over deepep": lambda fleet, node: fleet.effective(node, "marlin", "deepep"),
    "fault": lambda fleet, node: fleet.says(
        node, facts.GpuFaultSeen(gpu_uuid=f"GPU-{node}", xid=79)
    ),
    "gap": lambda fleet, node: fleet.says(node, facts.GapNoticed(lost_outbox_id="o")),
    "silence": lambda fleet, node: fleet.later(301, silent=[node]),
    "rack": lambda fleet, node: fleet.node(node, rack="r2"),
    "other SM": lambda fleet, node: fleet.node(node, sm="10.3"),
    "exclude": lambda fleet, node: _tries(fleet, commands.ExcludeUnit, node),
    "release": lambda fleet, node: _tries(fleet, commands.ReleaseUnit, node),
    "adopt": lambda fleet, node: _tries(fleet, commands.AdoptFlag, node),
    "accept": lambda fleet, node: _tries(fleet, commands.AcceptUnit, node),
    "fail": lambda fleet, node: fleet.check(node, outcome="failed"),
    "bake": lambda fleet, node: fleet.bakes(node, 600),
    "answer": lambda fleet, node: fleet.says(
        node,
        facts.GoldenFinished(instance_id="k3", set_digest="ab" * 8, prompts=8, mismatches=0),
    ),
}
PLANS = (
    {"waves": [policy.Wave(count=2), policy.Wave(percent=100)]},
    {"select": policy.Selector(racks=("r1",))},
    {"select": policy.Selector(units=("a", "b"))},
    {"golden": "require"},
)


def _tries(fleet, kind, node):
    if fleet.state.units.get(fleet_unit(fleet, node)) is not None:
        try:
            fleet.orders(kind(unit=fleet_unit(fleet, node), reason="r"))
        except errors.RejectedError:
            return


def fleet_unit(fleet, node):
    return next((name for name in fleet.state.units if name.startswith(f"{node}:")), "")


@settings(max_examples=120, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(sorted(HAPPENINGS)), st.sampled_from(NODES)), max_size=8
    ),
    plan=st.sampled_from(PLANS),
    limit=st.sampled_from([None, 1, 2]),
    lease=st.sampled_from([None, 600]),
    enforced=st.booleans(),
)
def test_what_the_rules_say_of_one_they_say_of_all_that_are_alike(
    steps, plan, limit, lease, enforced
):
    fleet = language.Fleet(exposure_limit_units=limit, bake_lease_s=lease).qualified()
    if enforced:
        fleet.enforce()
    fleet.node(*NODES)
    for node in NODES:
        fleet.launch(node)
    fleet.rollout(**plan)
    for happens, node in steps:
        HAPPENINGS[happens](fleet, node)
        told = {}
        likeness = alike.Alike(fleet.state)
        for unit in fleet.state.units.values():
            like = likeness.of(unit)
            if like is not None:
                said = rules.says(fleet.state, unit, fleet.now_us)._replace(nodes=())
                assert told.setdefault(like, said) == said


STANDS_OUT = {
    **{name: HAPPENINGS[name] for name in sorted(HAPPENINGS.keys() - {"launch", "rack", "serve"})},
    "top level": lambda fleet, node: fleet.launch(
        node, model=language.ONLY_TOP_LEVEL, model_digest=language.ONLY_TOP_LEVEL.digest
    ),
    "no gate": lambda fleet, node: fleet.instance(node, launch_id="unknown"),
    "pin": lambda fleet, node: fleet.orders(
        commands.PinUnit(unit=fleet.id(node), direction="off", break_glass=False, reason="r")
    ),
    "grant": lambda fleet, node: fleet.rollout(
        select=policy.Selector(units=(fleet.id(node),)), waves=[policy.Wave(count=1)]
    ),
}
LEAVES_IT_ALIKE = {"accept", "adopt", "fault", "on the target", "over deepep", "bake", "answer"}
"""What does nothing to a server that holds the safe value."""


@pytest.mark.parametrize("what", sorted(STANDS_OUT.keys() - LEAVES_IT_ALIKE))
def test_a_server_that_stands_out_is_like_no_other(what):
    fleet = language.Fleet().enforce().qualified()
    fleet.node(*NODES)
    for node in NODES:
        fleet.launch(node)
        fleet.serves(node, "marlin")
    likeness = alike.Alike(fleet.state)
    assert len({likeness.of(fleet.unit(node)) for node in NODES}) == 1
    STANDS_OUT[what](fleet, "a")
    likeness = alike.Alike(fleet.state)
    assert likeness.of(fleet.unit("b")) == likeness.of(fleet.unit("c")) is not None
    assert likeness.of(fleet.unit("a")) != likeness.of(fleet.unit("b"))


def test_who_counts_as_exposed_is_like_none_who_does_not():
    fleet = language.Fleet(exposure_limit_units=1).enforce().qualified()
    fleet.node("a", "b")
    for node in "ab":
        fleet.launch(node)
        fleet.serves(node, "marlin")
    fleet.effective("a")
    likeness = alike.Alike(fleet.state)
    assert likeness.of(fleet.unit("a")) != likeness.of(fleet.unit("b"))


def test_who_has_a_lease_is_like_none_who_has_not():
    fleet = language.Fleet(bake_lease_s=600).enforce().qualified().granted("a", "b", "c")
    fleet.bakes("a", 600)
    likeness = alike.Alike(fleet.state)
    assert likeness.of(fleet.unit("b")) == likeness.of(fleet.unit("c")) is not None
    assert likeness.of(fleet.unit("a")) != likeness.of(fleet.unit("b"))
