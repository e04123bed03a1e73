"""Two rollouts beside each other: whom each takes when, what else differs, and what it costs."""

import copy
from dataclasses import replace

import pytest
from tests import given

from smgate.domain import cohort, commands, errors, plan_diff, policy

NODES = tuple("abcdef")
WAVES = (policy.Wave(count=1), policy.Wave(count=3), policy.Wave(percent=100))


@pytest.fixture
def fleet():
    made = given.Fleet().enforce().qualified()
    made.node(*NODES)
    for node in NODES:
        made.launch(node)
    return made


def plan_of(fleet, name="r1"):
    return fleet.state.rollouts[name].plan


def compared(fleet, before, after):
    two = (copy.deepcopy(fleet.state) for _ in range(2))
    return plan_diff.diff(*two, before, after, fleet.now_us)


def in_order(fleet, rollout="r1"):
    return cohort.in_cohort_order(rollout, map(fleet.id, NODES))


def changes(shown):
    return [
        (row["gained"], row["lost"], [(one["unit"], one["from_wave"]) for one in row["moved"]])
        for row in shown["waves"]
    ]


def test_a_rollout_does_not_differ_from_itself(fleet):
    fleet.rollout(waves=WAVES)
    shown = compared(fleet, "r1", "r1")
    assert shown["changed"] == []
    assert changes(shown) == [([], [], [])] * 3
    assert all(pair["before"] == pair["after"] for pair in shown["numbers"].values())
    assert shown["same_cohorts"]


def test_a_wider_wave_has_gained_from_a_later_one(fleet):
    fleet.rollout(waves=WAVES)
    other = replace(plan_of(fleet), waves=(policy.Wave(count=2), *WAVES[1:]))
    order = in_order(fleet)
    shown = compared(fleet, "r1", other)
    assert changes(shown) == [([], [], [(order[1], 1)]), ([], [], []), ([], [], [])]
    assert [(row["before_units"], row["after_units"]) for row in shown["waves"]] == [
        (1, 2),
        (2, 1),
        (3, 3),
    ]
    assert [one["field"] for one in shown["changed"]] == ["waves"]


def test_a_narrower_selector_has_lost_and_a_wider_one_has_gained(fleet):
    plan = policy.RolloutPlan(
        id="r1",
        gate=given.GATE,
        sm="10.7",
        waves=(policy.Wave(percent=100),),
        select=policy.Selector(units=("a", "b")),
    )
    fleet.orders(commands.ProposeRollout(plan=plan, reason="better"))
    other = replace(plan, select=policy.Selector(units=("b", "c")))
    [row] = compared(fleet, "r1", other)["waves"]
    assert (row["gained"], row["lost"]) == ([fleet.id("c")], [fleet.id("a")])
    assert row["moved"] == []


def test_a_wave_that_one_side_does_not_have_is_shown_too(fleet):
    fleet.rollout(waves=WAVES)
    shown = compared(fleet, "r1", replace(plan_of(fleet), waves=WAVES[:2]))
    assert shown["waves"][2]["after_units"] == 0
    assert len(shown["waves"][2]["lost"]) == 3
    assert shown["numbers"]["worst_exposed_units"] == {"before": 6, "after": 3}


def test_thresholds_are_told_with_both_values_and_the_duration_follows(fleet):
    fleet.rollout(waves=WAVES, bake_s=600, max_in_flight=1)
    other = replace(plan_of(fleet), bake_s=1200, failures_max=2, approvals=2)
    shown = compared(fleet, "r1", other)
    assert {one["field"]: (one["before"], one["after"]) for one in shown["changed"]} == {
        "bake_s": (600, 1200),
        "failures_max": (1, 2),
        "approvals": (1, 2),
    }
    assert shown["numbers"]["least_duration_s"] == {"before": 3600, "after": 7200}


def test_another_id_is_another_order_and_that_is_said(fleet):
    fleet.rollout(waves=WAVES)
    shown = compared(fleet, "r1", replace(plan_of(fleet), id="r2", supersedes="r1"))
    assert not shown["same_cohorts"]
    assert [one["field"] for one in shown["changed"]] == ["supersedes"]


def test_what_has_opened_is_as_it_opened_and_the_rest_is_foreseen(fleet):
    fleet.rollout(waves=WAVES)
    first = in_order(fleet)[0].partition(":")[0]
    fleet.restarts(first)
    fleet.bakes(first, 600)
    assert fleet.verdicts() == ["passed", None]
    other = replace(plan_of(fleet), id="r2")
    shown = compared(fleet, "r1", other)
    assert [row["before_units"] for row in shown["waves"]] == [1, 2, 3]
    # one wave has passed: what is left are the bakes of the two that follow
    assert shown["numbers"]["least_duration_s"]["before"] == 1200
    # r2 does not supersede r1, so whom r1 has granted is none of its units
    assert shown["numbers"]["eligible_units"] == {"before": 6, "after": 3}


@pytest.mark.parametrize("end", [commands.HaltRollout, commands.AbortRollout])
def test_one_that_has_ended_opens_nothing_more(fleet, end):
    fleet.rollout(waves=WAVES)
    fleet.orders(end(rollout="r1", reason="no"))
    shown = compared(fleet, "r1", replace(plan_of(fleet), id="r2"))
    assert [row["before_units"] for row in shown["waves"]] == [1, 0, 0]


def test_one_that_was_only_proposed_is_foreseen(fleet):
    fleet.rollout("r1", waves=WAVES)
    plan = replace(plan_of(fleet), id="r2", supersedes="r1")
    fleet.orders(commands.ProposeRollout(plan=plan, reason="better"))
    shown = compared(fleet, "r1", "r2")
    assert sum(row["after_units"] for row in shown["waves"]) == 6


def test_it_is_as_the_plan_says_of_itself(fleet):
    """`rollout plan` and `rollout diff` never say two things of one plan."""
    from smgate.domain import plan_ahead

    fleet.rollout(waves=WAVES, select=policy.Selector(units=("a",)))
    other = replace(plan_of(fleet), id="r2", select=policy.Selector())
    shown = compared(fleet, "r1", other)
    foreseen = plan_ahead.foresee(copy.deepcopy(fleet.state), other, fleet.now_us)
    assert [row["after_units"] for row in shown["waves"]] == [
        len(row["units"]) for row in foreseen["waves"]
    ]
    for name in plan_diff.SIDE_BY_SIDE:
        assert shown["numbers"][name]["after"] == foreseen[name]


def test_what_is_not_there_is_refused(fleet):
    fleet.rollout()
    for before, after, code in [
        ("r9", "r1", "unknown_rollout"),
        ("r1", "r9", "unknown_rollout"),
        ("r1", replace(plan_of(fleet), waves=()), "bad_policy"),
    ]:
        with pytest.raises(errors.RejectedError) as refusal:
            compared(fleet, before, after)
        assert refusal.value.code == code
