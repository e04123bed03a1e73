"""Rule 15 of the decision table: what stands, stays."""

import pytest
from tests import given

from smgate.domain import commands, decisions, facts, policy

GRANTED = ("append", given.TARGET, "granted")
NEWER = given.build(flashinfer_version="0.7.3")


@pytest.fixture
def fleet():
    """Two servers on SM107 of a qualified build; no rollout yet."""
    made = given.Fleet().enforce().qualified()
    made.node("a", "b")
    made.launch("a")
    made.launch("b")
    return made


def only(*units):
    return policy.Selector(units=units)


def silence(fleet, node):
    fleet.says(node, facts.GapNoticed(lost_outbox_id="box"))


# 15 what stands


def test_a_grant_stands_whatever_stops_new_starts(fleet):
    fleet.rollout()
    assert fleet.told("a") == GRANTED
    fleet.orders(commands.DeclareFreeze(id="f", reason="holidays"))
    fleet.orders(commands.PauseRollout(rollout="r1", reason="look"))
    fleet.orders(
        commands.PublishPolicy(policy=policy.Policy(exposure_limit_units=0), reason="less")
    )
    silence(fleet, "a")
    fleet.check("p1", outcome="failed")
    fleet.later(200 * 86400, silent=fleet.state.nodes)
    assert fleet.told("a") == GRANTED
    assert fleet.seen(decisions.GrantEnded) == []


def test_a_grant_does_not_cover_another_kernel_key_and_counts_when_the_key_comes_back(fleet):
    fleet.rollout()
    fleet.launch("a", build=NEWER)
    assert fleet.told("a") == ("append", given.SAFE, "build_not_qualified")
    fleet.launch("a")
    assert fleet.told("a") == GRANTED
    assert len(fleet.seen(decisions.Granted)) == len(
        {event.unit for event in fleet.seen(decisions.Granted)}
    )


def test_a_grant_for_a_newer_build_leaves_the_older_one_standing(fleet):
    fleet.rollout(select=only(fleet.id("a")))
    fleet.restarts("a")
    fleet.bakes("a", 600)
    assert fleet.phase() == "completed"
    fleet.passes(*given.POOL, made=NEWER)
    fleet.launch("a", build=NEWER)
    fleet.rollout("r2")
    assert fleet.told("a") == GRANTED
    fleet.orders(commands.DeclareFreeze(id="f", reason="go back"))
    fleet.launch("a")
    assert fleet.told("a") == GRANTED


def test_serving_on_the_older_grant_bakes_nothing_for_the_newer_one(fleet):
    fleet.rollout(select=only(fleet.id("a")))
    fleet.restarts("a")
    fleet.bakes("a", 600)
    fleet.passes(*given.POOL, made=NEWER)
    fleet.launch("a", build=NEWER)
    fleet.rollout("r2")
    fleet.restarts("a")
    fleet.bakes("a", 6000)
    assert fleet.verdicts("r2") == [None]
    fleet.restarts("a", build=NEWER)
    fleet.bakes("a", 600)
    assert fleet.verdicts("r2") == [None]
    assert fleet.unit("a").grant.bake_s == 600


def test_a_server_first_seen_on_the_target_is_adopted_and_stays_so_in_enforce():
    fleet = given.Fleet()
    fleet.node("a")
    fleet.launch("a")
    fleet.serves("a")
    assert fleet.told("a")[2] == "observe"
    assert fleet.would("a") == ("keep", None, "adopted")
    fleet.enforce()
    assert fleet.told("a") == ("keep", None, "adopted")
    assert {"adopted", "uncontrolled", "exposed"} <= fleet.alarms()


def test_accepting_an_adopted_unit_grants_what_it_runs_and_taking_back_ends_that(fleet):
    fleet = given.Fleet()
    fleet.node("a")
    fleet.launch("a")
    fleet.serves("a")
    fleet.enforce()
    fleet.orders(commands.AcceptUnit(unit="a", reason="it is good"))
    assert fleet.told("a") == GRANTED
    assert not {"adopted", "uncontrolled", "exposed"} & fleet.alarms()
    fleet.orders(commands.TakeBackUnit(unit="a", reason="it is not"))
    assert fleet.told("a") == ("append", given.SAFE, "no_rollout")
    assert {"uncontrolled", "exposed"} & fleet.alarms()


def test_a_server_that_was_told_otherwise_is_not_adopted(fleet):
    fleet.serves("a")
    assert fleet.told("a") == ("append", given.SAFE, "no_rollout")
    assert fleet.seen(decisions.Adopted) == []
    assert {"exposed", "override_not_in_effect", "uncontrolled"} <= fleet.alarms()


def test_a_granted_unit_cannot_be_taken_back_without_ending_its_grant(fleet):
    fleet.rollout()
    fleet.restarts("a")
    assert fleet.refuses(commands.TakeBackUnit(unit="a", reason="no")) == "granted"


def test_a_completed_rollout_lets_late_units_in_with_a_key_it_ran(fleet):
    fleet.rollout(min_sample=1, select=only(fleet.id("a"), *late_ids(fleet, "c", "d")))
    fleet.restarts("a")
    fleet.bakes("a", 600)
    assert fleet.phase() == "completed"
    fleet.node("c")
    fleet.launch("c")
    assert fleet.told("c") == ("append", given.TARGET, "granted")
    assert fleet.seen(decisions.Granted)[-1].code == "standing"
    assert fleet.override("c").sentence.startswith("Granted after a completed rollout ")
    fleet.passes(*given.POOL, made=NEWER)
    fleet.node("d")
    fleet.launch("d", build=NEWER)
    assert fleet.told("d") == ("append", given.SAFE, "no_rollout")
    assert fleet.told("b") == ("append", given.SAFE, "no_rollout")


def late_ids(fleet, *nodes):
    """Ids of units that do not exist yet."""
    return tuple(
        given.keys.unit_id(
            node,
            facts.LaunchPlanned(launch_id="x", platform="cuda", argv_read=True),
            (f"GPU-{node}",),
        )
        for node in nodes
    )


@pytest.mark.parametrize(
    "stop",
    [
        lambda fleet: fleet.orders(commands.DeclareFreeze(id="f", reason="holidays")),
        lambda fleet: fleet.check("p1", outcome="failed"),
        lambda fleet: fleet.orders(
            commands.PublishPolicy(policy=policy.Policy(exposure_limit_units=1), reason="less")
        ),
    ],
    ids=["freeze", "suspect", "exposure"],
)
def test_what_stops_starts_stops_late_units_of_a_completed_rollout(fleet, stop):
    fleet.rollout()
    for node in ("a", "b"):
        fleet.restarts(node)
        fleet.bakes(node, 600)
    assert fleet.phase() == "completed"
    stop(fleet)
    fleet.node("c")
    fleet.launch("c")
    fleet.later(100)  # a suspect key asks it for a check, which never answers
    assert fleet.told("c")[:2] == ("append", given.SAFE)
    assert fleet.told("a") == GRANTED


def test_a_completed_rollout_of_a_part_lets_nobody_else_in(fleet):
    fleet.rollout(waves=[policy.Wave(count=1)])
    (member,) = fleet.state.rollouts["r1"].waves[0].units
    fleet.restarts(member.partition(":")[0])
    fleet.bakes(member.partition(":")[0], 600)
    assert fleet.phase() == "completed"
    others = {fleet.told(node)[2] for node in "ab" if fleet.id(node) != member}
    assert others == {"no_rollout"}
