"""Who is in a wave: by GPUs, over failure domains, and who comes late."""

import pytest
from tests import given

from smgate.domain import cohort, commands, decisions, facts, policy, state_rollouts, values, waves


def server(fleet, node, *, gpus=1, rack="r1", chassis=None):
    """A server of some GPUs on a node that stands somewhere."""
    held = tuple(values.Gpu(uuid=f"GPU-{node}-{n}", sm="10.7") for n in range(gpus))
    fleet.node(node, gpus=held, rack=rack, chassis=chassis)
    fleet.launch(node, gpus=held)


@pytest.fixture
def fleet():
    return given.Fleet().enforce().qualified()


def members(fleet, wave=0, rollout="r1"):
    return [unit.partition(":")[0] for unit in fleet.state.rollouts[rollout].waves[wave].units]


def in_order(fleet, nodes, rollout="r1"):
    return [u.partition(":")[0] for u in cohort.in_cohort_order(rollout, map(fleet.id, nodes))]


# By GPUs


@pytest.mark.parametrize("large", ["a", "b", "c", "d"])
def test_a_share_is_of_gpus(fleet, large):
    for node in "abcd":
        server(fleet, node, gpus=8 if node == large else 1)
    order = in_order(fleet, "abcd")
    fleet.rollout(waves=[policy.Wave(percent=50)])
    assert members(fleet) == order[: order.index(large) + 1]


def test_a_count_is_of_units(fleet):
    for number, node in enumerate("abcd"):
        server(fleet, node, gpus=8**number)
    fleet.rollout(waves=[policy.Wave(count=2)])
    assert members(fleet) == in_order(fleet, "abcd")[:2]


# Over failure domains


@pytest.mark.parametrize(("spread_by", "racks"), [("rack", 3), ("chassis", None), ("none", None)])
def test_a_wave_takes_units_of_as_many_domains_as_it_can(fleet, spread_by, racks):
    nodes = "abcdefghi"
    for node in nodes:
        server(fleet, node)
    order = in_order(fleet, nodes)
    place = dict.fromkeys(order[:7], "r1") | {order[7]: "r2", order[8]: "r3"}
    chassis = dict.fromkeys(order[:8], "c1") | {order[8]: "c2"}
    for node in nodes:
        fleet.node(
            node,
            gpus=(values.Gpu(uuid=f"GPU-{node}-0", sm="10.7"),),
            rack=place[node],
            chassis=chassis[node],
        )
    fleet.rollout(waves=[policy.Wave(count=3)], spread_by=spread_by)
    found = members(fleet)
    if spread_by == "rack":
        assert found == [order[0], order[7], order[8]]
        assert len({place[node] for node in found}) == racks
    elif spread_by == "chassis":
        assert found == [order[0], order[8], order[1]]
    else:
        assert found == order[:3]


def test_a_chassis_of_no_known_rack_is_a_domain_of_its_own(fleet):
    for node in "abc":
        server(fleet, node)
    order = in_order(fleet, "abc")
    server(fleet, order[2], rack=None)
    fleet.rollout(waves=[policy.Wave(count=2)], spread_by="rack")
    assert members(fleet) == [order[0], order[2]]


# Late joiners


def joined(fleet):
    return [unit.partition(":")[0] for e in fleet.seen(decisions.WaveJoined) for unit in e.units]


def bake(fleet, *nodes):
    for node in nodes:
        held = fleet.unit(node).known_ranks[0].planned.gpus
        fleet.restarts(node, gpus=held)
        fleet.bakes(node, 600)


@pytest.mark.parametrize(
    ("wave", "enters"),
    [
        (policy.Wave(percent=100), True),
        (policy.Wave(count=5), True),
        (policy.Wave(count=4), False),
    ],
    ids=["all", "room", "full"],
)
def test_a_late_unit_enters_an_open_wave_that_has_room(fleet, wave, enters):
    for node in "abcd":
        server(fleet, node)
    fleet.rollout(waves=[wave])
    server(fleet, "late")
    assert joined(fleet) == (["late"] if enters else [])
    told = (
        ("append", given.TARGET, "granted") if enters else ("append", given.SAFE, "wave_not_open")
    )
    assert fleet.told("late") == told


def test_a_late_unit_enters_a_share_only_where_its_place_is_among_the_members(fleet):
    nodes = [f"n{number}" for number in range(12)]
    for node in nodes[:6]:
        server(fleet, node)
    fleet.rollout(waves=[policy.Wave(percent=50), policy.Wave(percent=100)])
    first = members(fleet)
    for node in nodes[6:]:
        server(fleet, node)
    order = in_order(fleet, nodes)
    within = order[: order.index(first[-1]) + 1]
    assert set(members(fleet)) == set(within)
    assert 0 < len(joined(fleet)) < 6
    bake(fleet, *first)
    assert set(members(fleet, 1)) == set(nodes) - set(within)


@pytest.mark.parametrize("rack", ["r1", "r2"])
def test_where_waves_are_spread_a_late_unit_is_placed_within_its_rack(fleet, rack):
    for node in "abcd":
        server(fleet, node)
    fleet.rollout(waves=[policy.Wave(percent=75), policy.Wave(percent=100)], spread_by="rack")
    last = in_order(fleet, "abcd")[2]
    nodes = [f"n{number}" for number in range(9)]
    for node in nodes:
        server(fleet, node, rack=rack)
    order = in_order(fleet, [*nodes, last])
    assert set(joined(fleet)) == (set(order[: order.index(last)]) if rack == "r1" else set())
    assert joined(fleet) != nodes


@pytest.mark.parametrize("silent_first", [True, False])
def test_a_unit_that_becomes_eligible_while_the_wave_is_open_enters_it(fleet, silent_first):
    server(fleet, "a")
    server(fleet, "b")
    if silent_first:
        fleet.later(301, silent="b")
    fleet.rollout()
    assert len(members(fleet)) == (1 if silent_first else 2)
    fleet.later(1)
    assert joined(fleet) == (["b"] if silent_first else [])


def test_nobody_enters_while_nothing_may_open(fleet):
    server(fleet, "a")
    fleet.rollout()
    fleet.orders(commands.PauseRollout(rollout="r1", reason="look"))
    server(fleet, "b")
    assert joined(fleet) == []
    fleet.orders(commands.DeclareFreeze(id="f", reason="holiday"))
    fleet.orders(commands.ResumeRollout(rollout="r1", reason="go on"))
    assert joined(fleet) == []
    fleet.orders(commands.LiftFreeze(id="f", reason="over"))
    assert joined(fleet) == ["b"]


def test_a_wave_passes_without_those_that_came_late_and_fails_with_them(fleet):
    for node in "ab":
        server(fleet, node)
    fleet.rollout(waves=[policy.Wave(percent=100), policy.Wave(percent=100)])
    server(fleet, "c")
    server(fleet, "d")
    bake(fleet, "a")
    assert fleet.verdicts() == [None]
    bake(fleet, "c")
    assert fleet.verdicts() == [None]
    bake(fleet, "b")
    assert fleet.verdicts() == ["passed", "passed"]
    assert fleet.phase() == "completed"
    bake(fleet, "d")
    assert fleet.told("d") == ("append", given.TARGET, "granted")


def test_a_late_unit_that_goes_bad_halts(fleet):
    server(fleet, "a")
    fleet.rollout()
    server(fleet, "b")
    fleet.restarts("b", gpus=fleet.unit("b").known_ranks[0].planned.gpus)
    fleet.says("b", facts.GpuFaultSeen(gpu_uuid="GPU-b-0", xid=79))
    assert fleet.phase() == "halted"


def test_a_wave_whose_first_members_are_gone_waits_for_the_late_ones(fleet):
    server(fleet, "a")
    fleet.rollout()
    server(fleet, "b")
    fleet.orders(commands.ExcludeUnit(unit="a", reason="mine"))
    assert fleet.verdicts() == [None]
    bake(fleet, "b")
    assert fleet.phase() == "completed"


def test_after_completion_a_new_unit_stands(fleet):
    server(fleet, "a")
    fleet.rollout()
    bake(fleet, "a")
    server(fleet, "b")
    assert joined(fleet) == []
    assert fleet.seen(decisions.Granted)[-1].code == "standing"
    assert fleet.told("b") == ("append", given.TARGET, "granted")


@pytest.mark.parametrize(
    ("good", "bad", "pending", "verdict"),
    [("ab", "", "c", "passed"), ("a", "b", "c", "inconclusive"), ("", "", "c", "running")],
)
def test_a_late_unit_without_an_outcome_changes_no_verdict(good, bad, pending, verdict):
    plan = policy.RolloutPlan(
        id="r1",
        gate=given.GATE,
        sm="10.7",
        waves=(policy.Wave(percent=100),),
        failures_max=9,
        failure_percent=90,
    )
    rollout = state_rollouts.Rollout(plan=plan, author="a", position=1, since_led_us=0)
    counted = waves.Tally(
        good=tuple(good), bad=tuple(bad), pending=tuple(pending), late=frozenset(pending)
    )
    assert waves.verdict(rollout, counted.counts)[0] == verdict
