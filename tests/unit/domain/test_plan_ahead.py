"""What a rollout plan would do, before it is proposed, and what is odd about one."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
from tests import given

from smgate.domain import decisions, errors, plan_ahead, plan_lint, policy

NODES = tuple("abcdefghij")
PLAN = policy.RolloutPlan(
    id="r1",
    gate=given.GATE,
    sm="10.7",
    waves=(policy.Wave(count=2), policy.Wave(percent=50), policy.Wave(percent=100)),
    max_in_flight=2,
    bake_s=600,
)


def fleet_of(*nodes, **numbers):
    """Nodes that serve the safe value, on a build that is qualified, under enforce."""
    fleet = given.Fleet(**numbers).enforce().qualified()
    fleet.node(*nodes)
    for node in nodes:
        fleet.restarts(node)
    return fleet


def foreseen(fleet, plan=PLAN):
    return plan_ahead.foresee(copy.deepcopy(fleet.state), plan, fleet.now_us)


def test_the_waves_foreseen_are_the_waves_that_open():
    fleet = fleet_of(*NODES)
    shown = foreseen(fleet)
    fleet.rollout(waves=PLAN.waves, max_in_flight=PLAN.max_in_flight, bake_s=PLAN.bake_s)
    for _ in PLAN.waves:
        opened = fleet.seen(decisions.WaveOpened)[-1]
        assert list(opened.units) == shown["waves"][opened.wave]["units"]
        assert opened.eligible == shown["eligible_units"]
        for unit in opened.units:
            node = unit.partition(":")[0]
            fleet.restarts(node)
            fleet.bakes(node, 600)
    assert fleet.phase() == "completed"
    assert [len(wave["units"]) for wave in shown["waves"]] == [2, 3, 5]


def test_a_plan_costs_its_restarts_its_bakes_and_its_exposure():
    shown = foreseen(fleet_of(*NODES))
    assert [wave["restarts"] for wave in shown["waves"]] == [2, 3, 5]
    # two at a time: one round of bakes, then two, then three
    assert [wave["least_duration_s"] for wave in shown["waves"]] == [600, 1200, 1800]
    assert [wave["exposed_units"] for wave in shown["waves"]] == [2, 5, 10]
    assert (shown["restarts"], shown["least_duration_s"]) == (10, 3600)
    assert shown["worst_exposed_units"] == 10
    assert shown["blocked"] == []
    assert shown["warnings"] == []


def test_a_sample_shortens_a_wave_and_a_unit_on_the_target_needs_no_restart():
    fleet = fleet_of("a", "b", "c")
    fleet.node("d")
    fleet.launch("d")
    fleet.serves("d", given.TARGET)
    plan = replace(PLAN, waves=(policy.Wave(percent=100),), min_sample=2)
    shown = foreseen(fleet, plan)
    [wave] = shown["waves"]
    assert wave["least_duration_s"] == 600
    assert wave["exposed_units"] == len({*wave["units"], fleet.id("d")})
    assert shown["worst_exposed_units"] == 4


def test_whom_it_cannot_take_is_listed_with_the_reason():
    fleet = fleet_of("a", "b", "c")
    fleet.node("old")
    fleet.restarts("old", build=given.build(flashinfer_version="0.1"))
    fleet.orders(given.commands.PinUnit(unit="b", direction="off", reason="wrong answers"))
    shown = foreseen(fleet)
    assert shown["eligible_units"] == 2
    assert shown["blocked_by_code"] == {"build_not_qualified": 1, "pinned_off": 1}
    assert {row["unit"] for row in shown["blocked"]} == {fleet.id("b"), fleet.id("old")}
    assert all(row["sentence"] for row in shown["blocked"])


def test_what_keeps_members_from_starting_now_is_counted_by_wave():
    fleet = fleet_of(*NODES)
    assert [wave["waits_for"] for wave in foreseen(fleet)["waves"]] == [{}, {}, {}]
    fleet.orders(given.commands.DeclareFreeze(id="holiday", reason="nobody is here"))
    waits = [wave["waits_for"] for wave in foreseen(fleet)["waves"]]
    assert waits == [{"freeze": 2}, {"freeze": 3}, {"freeze": 5}]


def test_in_observe_mode_nobody_is_eligible_and_the_mode_is_the_reason():
    fleet = given.Fleet().qualified()
    fleet.node("a")
    fleet.restarts("a")
    shown = foreseen(fleet)
    assert (shown["eligible_units"], shown["blocked_by_code"]) == (0, {"observe": 1})


def test_a_plan_that_cannot_be_proposed_is_refused_or_says_so():
    fleet = fleet_of("a")
    with pytest.raises(errors.RejectedError, match="needs a wave"):
        foreseen(fleet, replace(PLAN, waves=()))
    fleet.rollout()
    assert foreseen(fleet)["warnings"][0]["code"] == "rollout_exists"


ODD = {
    "last_wave_partial": {"waves": (policy.Wave(count=1), policy.Wave(percent=50))},
    "no_canary": {"waves": (policy.Wave(percent=100),)},
    "wave_adds_nobody": {
        "waves": (policy.Wave(count=3), policy.Wave(count=3), policy.Wave(percent=100))
    },
    "sample_above_wave": {"min_sample": 3},
    "failures_above_wave": {"failures_max": 3, "success_percent": 90.0},
    "failure_never_passes": {"failures_max": 2},
    "no_bake": {"bake_s": 0},
    "wave_ends_before_bake": {"wave_timeout_s": 600},
    "rollout_ends_before_bakes": {"rollout_timeout_s": 1800},
}


@pytest.mark.parametrize("code", ODD)
def test_what_is_odd_about_a_plan_is_said_and_nothing_else(code):
    assert plan_lint.remarks(PLAN) == []
    found = plan_lint.remarks(replace(PLAN, **ODD[code]))
    assert [one.code for one in found] == [code]
    assert all(one.sentence and one.next_step for one in found)


def test_the_edges_of_a_plan_are_not_odd():
    edges = {"min_sample": 2, "wave_timeout_s": 601, "rollout_timeout_s": 1801}
    assert plan_lint.remarks(replace(PLAN, **edges)) == []
    assert plan_lint.remarks(replace(PLAN, failures_max=2, success_percent=50.0)) == []


def test_where_the_units_are_counted_a_share_has_a_size_too():
    plan = replace(PLAN, waves=(policy.Wave(percent=10), policy.Wave(percent=100)), min_sample=2)
    assert plan_lint.remarks(plan) == []
    assert [one.code for one in plan_lint.remarks(plan, sizes=[1, 9])] == ["sample_above_wave"]
    assert plan_lint.remarks(plan, sizes=[2, 18]) == []
