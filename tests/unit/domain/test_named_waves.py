"""A wave that names its units: exactly these enter with it, and nothing passes in their absence."""

import copy
from dataclasses import replace

import pytest
from tests import given

from smgate.domain import cohort, commands, plan_ahead, plan_lint, policy, values, why_rollout

NODES = tuple("abcdef")
ALL = policy.Wave(percent=100)


def named(*units, **lists):
    return policy.Wave(select=policy.Selector(units=units, **lists))


@pytest.fixture
def fleet():
    """Six servers; d, e and f stand in rack r2 and f has another build, qualified too."""
    made = given.Fleet().enforce().qualified()
    other = given.build(flashinfer_version="0.7.3")
    made.passes(*given.POOL, made=other)
    made.node(*NODES[:3])
    made.node(*NODES[3:], rack="r2")
    for node in NODES:
        made.launch(node, build=other if node == "f" else given.BUILD)
    return made


def members(fleet, wave=0):
    return {unit.partition(":")[0] for unit in fleet.state.rollouts["r1"].waves[wave].units}


def bake(fleet, *nodes):
    for node in nodes:
        fleet.restarts(node)
        fleet.bakes(node, 600)


OTHER_KEY = given.key_of(given.build(flashinfer_version="0.7.3"))


@pytest.mark.parametrize(
    ("wave", "expected"),
    [
        (named("a", "c"), "ac"),
        (named(racks=("r2",)), "def"),
        (named(kernel_keys=(OTHER_KEY,)), "f"),
        (named("a", "d", racks=("r2",)), "d"),
        (named(racks=("r1", "r2"), kernel_keys=(given.KEY,)), "abcde"),
    ],
    ids=["units", "rack", "key", "both", "racks-of-a-key"],
)
def test_exactly_the_named_units_enter(fleet, wave, expected):
    fleet.rollout(waves=[wave, ALL])
    assert members(fleet) == set(expected)


def test_a_unit_goes_by_its_own_name_too(fleet):
    fleet.rollout(waves=[named(fleet.id("b")), ALL])
    assert members(fleet) == {"b"}


@pytest.mark.parametrize("spread_by", ["none", "rack", "chassis"])
def test_all_named_enter_however_waves_are_spread(fleet, spread_by):
    fleet.rollout(waves=[named("a", "b", "c"), ALL], spread_by=spread_by)
    assert members(fleet) == set("abc")


@pytest.mark.parametrize(
    ("after", "new"),
    [(policy.Wave(count=2), 0), (policy.Wave(count=3), 1), (policy.Wave(percent=50), 1), (ALL, 4)],
    ids=str,
)
def test_they_count_towards_the_waves_that_follow(fleet, after, new):
    fleet.rollout(waves=[named("a", "b"), after, named("f"), ALL])
    bake(fleet, "a", "b")
    assert len(members(fleet, 1)) == new
    assert not members(fleet, 1) & {"a", "b"}


def test_who_was_taken_before_is_not_taken_again_and_the_wave_passes(fleet):
    fleet.rollout(waves=[named("a", "b"), named("b"), ALL])
    bake(fleet, "a", "b")
    assert fleet.verdicts() == ["passed", "passed", None]
    assert "Every unit it names" in fleet.seen(given.decisions.WaveJudged)[-1].sentence


@pytest.mark.parametrize("first", [True, False])
def test_a_wave_waits_for_those_it_names_and_is_never_passed_by(fleet, first):
    fleet.later(301, silent="b")
    fleet.rollout(waves=[named("b"), ALL] if first else [named("a"), named("b"), ALL])
    if not first:
        bake(fleet, "a")
    opened = len(fleet.state.rollouts["r1"].waves)
    assert opened == (0 if first else 1)
    told = why_rollout.explain_rollout(fleet.state, "r1", fleet.now_us)["next_wave"]
    assert (told["units"], told["wave"]) == ([], opened)
    assert "waits" in told["sentence"]
    fleet.later(1)
    assert members(fleet, opened) == {"b"}


def test_a_name_that_nobody_has_opens_nothing(fleet):
    fleet.rollout(waves=[named("a"), named("zzz"), ALL])
    bake(fleet, "a")
    assert fleet.verdicts() == ["passed"]
    assert fleet.told("b") == ("append", given.SAFE, "wave_not_open")


@pytest.mark.parametrize(
    "order",
    [
        commands.ExcludeUnit(unit="b", reason="mine"),
        commands.PinUnit(unit="b", direction="off", reason="mine"),
        commands.ReleaseUnit(unit="b", reason="theirs"),
    ],
    ids=lambda order: type(order).__name__,
)
def test_who_was_taken_out_by_a_person_is_not_waited_for(fleet, order):
    fleet.orders(order)
    fleet.rollout(waves=[named("a"), named("b"), ALL])
    bake(fleet, "a")
    assert fleet.verdicts() == ["passed", "passed", None]


def test_who_has_the_target_by_another_grant_is_not_waited_for():
    fleet = given.Fleet().qualified()
    fleet.node("a", "b")
    fleet.launch("b")
    fleet.serves("b")
    fleet.enforce()
    fleet.launch("a")
    fleet.orders(commands.AcceptUnit(unit="b", reason="it is fine"))
    fleet.rollout(waves=[named("a"), named("b"), ALL])
    bake(fleet, "a")
    assert fleet.verdicts() == ["passed", "passed", "passed"]


def test_a_named_unit_joins_the_open_wave_late_and_no_other_does(fleet):
    fleet.rollout(waves=[named("a", "late"), ALL])
    fleet.node("late", "other")
    fleet.launch("late")
    fleet.launch("other")
    assert members(fleet) == {"a", "late"}


@pytest.mark.parametrize("spread_by", ["none", "rack"])
def test_the_place_of_a_named_member_lets_nobody_in(fleet, spread_by):
    """Its place is the last of all; by it every late unit would be before the last member."""
    order = cohort.in_cohort_order("r1", map(fleet.id, "abcde"))
    last, first = order[-1].partition(":")[0], order[0].partition(":")[0]
    plan = [named(last), policy.Wave(percent=34), ALL]
    fleet.rollout(waves=plan, spread_by=spread_by, select=policy.Selector(kernel_keys=(given.KEY,)))
    bake(fleet, last)
    assert members(fleet, 1) == {first}
    late = [f"n{number}" for number in range(12)]
    for node in late:
        fleet.node(node, rack="r1" if first in "abc" else "r2")
        fleet.launch(node)
    before = {n for n in late if _place(fleet, n) < _place(fleet, first)}
    assert members(fleet, 1) == {first, *before}
    assert len(before) < len(late)


def _place(fleet, node):
    return cohort.cohort_hash("r1", fleet.id(node))


def test_after_a_last_wave_of_named_units_nobody_else_stands(fleet):
    fleet.rollout(waves=[named("a")])
    bake(fleet, "a")
    assert fleet.phase() == "completed"
    assert fleet.told("a")[2] == "granted"
    assert fleet.told("b") == ("append", given.SAFE, "no_rollout")


# Before it is proposed

PLAN = policy.RolloutPlan(
    id="r1", gate=given.GATE, sm="10.7", waves=(named("a", "b"), ALL), bake_s=600
)


def test_the_plan_foresees_the_named_wave(fleet):
    shown = plan_ahead.foresee(copy.deepcopy(fleet.state), PLAN, fleet.now_us)
    assert [len(wave["units"]) for wave in shown["waves"]] == [2, 4]
    assert set(shown["waves"][0]["units"]) == {fleet.id("a"), fleet.id("b")}
    assert shown["warnings"] == []


def test_a_wave_that_would_take_nobody_is_said(fleet):
    plan = replace(PLAN, waves=(named("a"), named("zzz"), ALL))
    shown = plan_ahead.foresee(copy.deepcopy(fleet.state), plan, fleet.now_us)
    assert [one["code"] for one in shown["warnings"]] == ["wave_takes_nobody"]


@pytest.mark.parametrize(
    ("changes", "codes"),
    [
        ({}, []),
        ({"waves": (named("a"),)}, ["last_wave_partial"]),
        ({"waves": (named("a"), named("a"), ALL)}, ["wave_takes_nobody"]),
        ({"select": policy.Selector(units=("a",))}, ["wave_outside_plan"]),
        ({"select": policy.Selector(units=("a", "b"))}, []),
        ({"select": policy.Selector(racks=("r1",))}, []),
        (
            {"waves": (named(racks=("r9",)), ALL), "select": policy.Selector(racks=("r1",))},
            ["wave_outside_plan"],
        ),
    ],
    ids=str,
)
def test_what_is_odd_about_named_waves_is_said_without_a_fleet(changes, codes):
    assert [one.code for one in plan_lint.remarks(replace(PLAN, **changes))] == codes


def test_a_unit_of_several_nodes_is_in_a_rack_with_all_of_them(fleet):
    for rank, (node, rack) in enumerate((("x", "r7"), ("y", "r8"))):
        fleet.node(node, rack=rack)
        fleet.launch(
            node,
            unit_name="pair",
            nnodes=2,
            node_rank=rank,
            gpus=(values.Gpu(uuid=f"GPU-{node}", sm="10.7"),),
        )
    fleet.rollout(waves=[named(racks=("r7", "r2")), ALL])
    assert members(fleet) == set("def")
    assert fleet.told("pair")[2] == "wave_not_open"
