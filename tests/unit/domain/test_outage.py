"""Most of the fleet out of contact at once is one outage; and machines that should exist."""

import pytest
from tests import given

from smgate import metrics
from smgate.domain import commands, decisions, facts, fleet_asks, rules, rulings

NAMES = tuple(f"n{number}" for number in range(10))


@pytest.fixture
def fleet():
    made = given.Fleet().enforce()
    made.node(*NAMES)
    return made


def silences(fleet):
    return len(fleet.seen(decisions.NodeWentSilent)), len(fleet.seen(decisions.FleetUnreachable))


def takes_over(fleet, *, after_s):
    """A new leader, who has heard nobody yet."""
    fleet.contacts.clear()
    fleet.now_us += after_s * 1_000_000
    taken = decisions.LeadershipTaken(
        epoch=2, holder="c2", away_us=after_s * 1_000_000, rules_version=rules.RULES_VERSION
    )
    fleet.record(taken, "controller")
    fleet.later(0, silent=NAMES)


def episode(fleet, cause="fleet_unreachable"):
    return [e.units for e in fleet.state.episodes.values() if e.cause == cause and not e.closed_us]


def test_losing_half_of_the_fleet_at_once_is_one_event_and_one_alarm(fleet):
    fleet.later(300, silent=NAMES[:5])
    (lost,) = fleet.seen(decisions.FleetUnreachable)
    assert (lost.nodes, lost.known_nodes) == (NAMES[:5], 10)
    assert silences(fleet) == (0, 1)
    assert episode(fleet) == [("fleet",)]


@pytest.mark.parametrize("percent", [50, 60])
def test_the_share_is_of_the_policy(percent):
    fleet = given.Fleet(outage_percent=percent)
    fleet.node(*NAMES)
    fleet.later(300, silent=NAMES[:5])
    assert silences(fleet) == ((0, 1) if percent == 50 else (5, 0))


def test_four_nodes_are_no_fleet():
    fleet = given.Fleet()
    fleet.node(*NAMES[:4])
    fleet.later(300, silent=NAMES[:4])
    assert silences(fleet) == (4, 0)


def test_nodes_lost_at_one_moment_reach_their_limit_one_after_another_and_are_one_outage(fleet):
    fleet.later(25, silent=["n0"])  # n0 was heard last some seconds before the others
    fleet.later(275, silent=NAMES)
    assert silences(fleet) == (0, 1)
    assert set(fleet.state.inventory.unreachable) == set(NAMES)


def test_nodes_lost_long_before_are_not_counted_again(fleet):
    fleet.later(300, silent=NAMES[:4])
    fleet.later(300, silent=NAMES[:5])
    assert silences(fleet) == (5, 0)


def test_silence_of_an_outage_refuses_starts_and_ends_nothing(fleet):
    fleet.qualified()
    fleet.granted("a")
    fleet.launch("n0")
    fleet.later(300, silent=[*NAMES, *given.POOL, "a"])
    assert silences(fleet) == (0, 1)
    decided = rules.decide_unit(fleet.state, fleet.id("n0"), fleet.now_us)
    assert "silent" in dict(decided.refusals)
    assert fleet.told("a") == ("append", given.TARGET, "granted")


def test_nodes_of_an_outage_come_back_together(fleet):
    fleet.later(300, silent=NAMES)
    fleet.later(10, silent=NAMES[3:])
    fleet.later(10)
    back = fleet.seen(decisions.FleetReachable)
    assert [(len(one.nodes), one.unreachable_nodes) for one in back] == [(3, 7), (7, 0)]
    assert fleet.seen(decisions.NodeReturned) == []
    fleet.later(300)
    assert episode(fleet) == []


def test_a_new_leader_does_not_take_the_silent_for_returned(fleet):
    fleet.later(300, silent=NAMES)
    takes_over(fleet, after_s=86_400)
    assert fleet.seen(decisions.FleetReachable) == []
    assert all(fleet.state.nodes[name].silent for name in NAMES)


def test_after_an_absence_of_the_controller_a_fleet_that_stays_away_is_one_outage(fleet):
    takes_over(fleet, after_s=86_400)
    fleet.later(299, silent=NAMES)
    assert silences(fleet) == (0, 0)
    fleet.later(1, silent=NAMES)
    assert silences(fleet) == (0, 1)


def test_in_an_outage_no_ephemeral_machine_retires_itself(fleet):
    for name in NAMES:
        fleet.says(name, facts.NodeReported(agent_version="1", ephemeral=True))
    fleet.later(300, silent=NAMES)
    fleet.later(2 * 86_400, silent=NAMES)
    assert not any(fleet.state.nodes[name].retired for name in NAMES)
    fleet.later(1)
    fleet.later(300, silent=NAMES[:1])
    fleet.later(86_400, silent=NAMES[:1])
    assert [n for n in NAMES if fleet.state.nodes[n].retired] == ["n0"]


def test_a_machine_that_is_retired_is_no_longer_missed(fleet):
    fleet.later(300, silent=NAMES)
    for name in NAMES[:6]:
        fleet.orders(commands.RetireNode(node=name, reason="gone"))
    fleet.later(300, silent=NAMES)
    assert episode(fleet) == []


# Machines that should exist


def expect(fleet, *names, sm="10.7"):
    nodes = tuple(rulings.ExpectedNode(name=name, sm=sm) for name in names)
    return fleet.orders(fleet_asks.ExpectFleet(nodes=nodes, reason="inventory"), role="operator")


def missing(fleet):
    return {
        sample.labels["sm"]: sample.value
        for family in metrics.of_fleet(fleet.state)
        if family.name == "smgate_expected_nodes_without_agent"
        for sample in family.samples
    }


def test_a_machine_that_should_exist_and_has_no_agent_is_alarmed_and_counted(fleet):
    assert missing(fleet)["10.7"] == 0
    expect(fleet, "n0", "n1", "x", "y")
    assert episode(fleet, "expected_without_agent") == [("x", "y")]
    assert missing(fleet)["10.7"] == 2


def test_it_is_no_longer_missed_once_it_enrolled_or_spoke(fleet):
    expect(fleet, "x", "y")
    fleet.node("x")
    enrolled = rulings.NodeEnrolled(node="y", machine_id="m", agent_version="1")
    fleet.record(enrolled, "operator:join/1")
    fleet.settle()
    fleet.later(300)
    assert episode(fleet, "expected_without_agent") == []
    assert missing(fleet)["10.7"] == 0


def test_a_retired_machine_that_should_exist_is_missed(fleet):
    expect(fleet, "n0")
    fleet.orders(commands.RetireNode(node="n0", reason="sent back"))
    assert episode(fleet, "expected_without_agent") == [("n0",)]


def test_a_new_list_replaces_the_one_before(fleet):
    expect(fleet, "x")
    expect(fleet, "y", sm="12.0")
    assert fleet.state.inventory.without_agent == {"y": "12.0"}
    assert missing(fleet) == missing(fleet) | {"10.7": 0, "12.0": 1}
    assert expect(fleet, "y", sm="12.0") == ()


@pytest.mark.parametrize(
    "nodes", [[("", "10.7")], [("a" * 121, "10.7")], [("a", "blackwell")], [("a", "10.7")] * 2]
)
def test_a_list_that_cannot_be_meant_is_refused(fleet, nodes):
    made = tuple(rulings.ExpectedNode(name=name, sm=sm) for name, sm in nodes)
    assert fleet.refuses(fleet_asks.ExpectFleet(nodes=made, reason="r")) == "bad_node"
