"""The walk through the table of rules: the row that applies is the one that decided, and each other
row says what it looked at."""

import pytest
from tests import given

from smgate.domain import (
    commands,
    context,
    decisions,
    evolve,
    facts,
    policy,
    rules,
    rules_end,
    rules_ours,
    rules_start,
    state,
    values,
    walk,
)

ISSUE = policy.KnownIssue(id="fi-4122", title="It is wrong", match={"flashinfer": ("0.7.2.*",)})


def walked(fleet, name):
    """Every row of a unit's walk."""
    return walk.rows(rules.decide_unit(fleet.state, fleet.id(name), fleet.now_us))


def rows(fleet, name, state="applies"):
    """The codes of the rows in one state."""
    return [row.codes[0] for row in walked(fleet, name) if row.state == state]


def said(fleet, name, code):
    """What the row of a code says."""
    return next(row.sentence for row in walked(fleet, name) if code in row.codes)


@pytest.fixture
def fleet():
    """One server on the safe value: its build is qualified, and no rollout was proposed."""
    made = given.Fleet().enforce().qualified()
    made.node("a")
    made.launch("a")
    return made


def test_every_rule_of_the_table_has_a_row_in_its_order(fleet):
    told = walked(fleet, "a")
    assert [(row.part, row.number) for row in told] == sorted(
        (row.part, row.number) for row in told
    )
    starts = [row.codes[0] for row in told if row.number == 16]
    assert tuple(starts) == rules_start.ORDER == tuple(walk.LOOKED_AT)
    codes = {code for row in told for code in row.codes}
    assert {
        "observe",
        "excluded",
        "layout_not_covered",
        "pinned_off",
        "adopted",
        "standing",
    } <= codes


def test_one_rule_applies_and_those_that_would_be_next_come_behind_it(fleet):
    fleet.orders(commands.DeclareFreeze(id="x", reason="holidays"))
    assert rows(fleet, "a") == ["no_rollout"]
    assert rows(fleet, "a", "would_be_next") == ["freeze"]
    fleet.orders(commands.PublishIssue(issue=ISSUE, reason="read"))
    fleet.orders(commands.PinUnit(unit="a", direction="off", reason="mine"))
    assert rows(fleet, "a") == ["pinned_off"]
    assert rows(fleet, "a", "would_be_next") == ["known_issue:fi-4122", "no_rollout", "freeze"]


def test_what_does_not_apply_says_what_it_looked_at(fleet):
    fleet.orders(commands.PublishPolicy(policy=policy.Policy(exposure_limit_units=7), reason="7"))
    assert said(fleet, "a", "gate_disabled") == (
        "The kill switch of gate kimi-k3-mxfp4 is not thrown for SM 10.7."
    )
    assert said(fleet, "a", "explicit_choice") == "The operator's own arguments name no runner."
    assert said(fleet, "a", "build_failed") == f"Kernel key {given.KEY} is qualified."
    assert said(fleet, "a", "unit_incomplete") == "1 of 1 ranks reported."
    assert said(fleet, "a", "exposure_limit").startswith("0 other units on SM 10.7 may run")
    assert "the limit is 7" in said(fleet, "a", "exposure_limit")


def test_observe_applies_and_the_rest_is_what_would_be(fleet):
    fleet.orders(commands.SetGateMode(gate=given.GATE, sm="10.7", mode="observe", reason="back"))
    assert rows(fleet, "a") == ["observe"]
    assert rows(fleet, "a", "would_be_next") == ["no_rollout"]


def test_a_grant_applies_and_what_would_refuse_a_start_is_next():
    fleet = given.Fleet().enforce().qualified().granted("a")
    fleet.orders(commands.DeclareFreeze(id="x", reason="holidays"))
    told = walked(fleet, "a")
    assert [(row.part, row.codes) for row in told if row.state == "applies"] == [
        ("C", ("granted",))
    ]
    assert rows(fleet, "a", "would_be_next") == ["freeze"]


def test_a_start_that_nothing_stands_against_is_the_last_row(fleet):
    fleet.rollout()
    kinds = [type(one.event) for one in fleet.history]
    fleet.state = evolve.fold(fleet.history[: kinds.index(decisions.Granted)], state.Fleet())
    told = [row for row in walked(fleet, "a") if row.state == "applies"]
    assert [(row.part, row.number, row.codes) for row in told] == [("D", 17, ("granted",))]


def test_the_rank_that_needs_the_most_care_decides_and_the_other_is_outweighed():
    fleet = given.Fleet().enforce()
    fleet.node("a", "b")
    shape = {"unit_name": "k3", "nnodes": 2, "rendezvous": "a:1"}
    fleet.launch("a", **shape, settled=False)
    fleet.launch("b", **shape, node_rank=1, platform="rocm")
    assert rows(fleet, "k3") == ["not_cuda"]
    told = {row.codes[0]: row for row in walked(fleet, "k3")}
    assert told["not_cuda"].nodes == ("b",)
    fleet.launch("a", **shape, settled=False, gpus=(values.Gpu(uuid="GPU-x", sm=None),))
    fleet.launch("b", **shape, node_rank=1, argv_read=False)
    assert rows(fleet, "k3") == ["choice_unknown"]
    assert rows(fleet, "k3", "would_be_next")[:1] == ["sm_unknown"]


def test_a_target_that_cannot_start_is_outweighed_by_what_sglang_can_do(fleet):
    fleet.launch("a", build=given.build(torch_cuda="12.4"))
    fleet.orders(commands.PinUnit(unit="a", direction="on", break_glass=True, reason="try"))
    assert rows(fleet, "a") == ["target_raises", "no_safe_value"]
    assert rows(fleet, "a", "outweighed") == ["pinned_on"]
    fleet.orders(commands.SetGateMode(gate=given.GATE, sm="10.7", mode="observe", reason="back"))
    assert rows(fleet, "a") == ["observe"]
    assert rows(fleet, "a", "outweighed") == ["pinned_on"]
    assert rows(fleet, "a", "would_be_next")[-2:] == ["target_raises", "no_safe_value"]


def test_a_model_that_no_gate_covers_asks_no_rule_of_a_gate(fleet):
    fleet.launch("a", model=given.OTHER_MODEL, model_digest=given.OTHER_MODEL.digest)
    assert rows(fleet, "a") == ["not_applicable"]
    assert said(fleet, "a", "gate_disabled") == "No gate covers this model, so it is not asked."
    assert rows(fleet, "a", "would_be_next") == []


def test_a_unit_that_nothing_is_known_of_has_one_row(fleet):
    fleet.says("z", facts.InstanceChanged(instance_id="k3", state="exited", gpu_uuids=("GPU-z",)))
    assert rows(fleet, "z") == ["unit_unsteerable"]


@pytest.mark.parametrize(
    "passed",
    [
        one
        for module in (context, rules_ours, rules_end, rules_start)
        for one in vars(module).values()
        if isinstance(one, context.Passed)
    ],
    ids=lambda one: one.sentence,
)
def test_every_way_out_of_a_rule_has_a_sentence_with_its_names(fleet, passed):
    ctx = context.of_unit(fleet.state, fleet.unit("a"), fleet.now_us)
    sentence = walk.said(passed, ctx, ctx.members[0])
    assert sentence.endswith(".")
    assert "{" not in sentence
    assert "None" not in sentence.split()[1:]
