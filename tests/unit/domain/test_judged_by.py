"""A rollout is judged by the policy at its start: stricter applies at once, looser from the next."""

import pytest
from tests import given

from smgate.domain import commands, decisions, policy


def publish(fleet, **numbers):
    fleet.orders(commands.PublishPolicy(policy=policy.Policy(**numbers), reason="other numbers"))


def crashes(fleet, node, times):
    for _ in range(times):
        fleet.restarts(node)
        fleet.instance(node, "exited", exit_code=1)


def faults(fleet):
    return [e.code for e in fleet.seen(decisions.GrantEnded)]


@pytest.fixture
def fleet():
    made = given.Fleet(crash_loop_exits=3, hang_after_s=600).enforce().qualified()
    return made.granted("a", "b", failures_max=9, failure_percent=100, success_percent=1)


@pytest.mark.parametrize(("exits", "ended"), [(2, ["fault_in_service"]), (5, [])])
def test_a_stricter_count_of_exits_holds_at_once_and_a_looser_does_not(fleet, exits, ended):
    publish(fleet, crash_loop_exits=exits, hang_after_s=600)
    crashes(fleet, "a", 2)
    assert faults(fleet) == ended
    crashes(fleet, "a", 1)
    assert faults(fleet) == ["fault_in_service"]


@pytest.mark.parametrize(("hang_after_s", "ends_at_s"), [(300, 300), (900, 600)])
def test_a_stricter_time_of_hanging_holds_at_once_and_a_looser_does_not(
    fleet, hang_after_s, ends_at_s
):
    publish(fleet, crash_loop_exits=3, hang_after_s=hang_after_s)
    fleet.instance("a", "unhealthy")
    assert [w.remaining_us for w in fleet.waits if w.code == "unhealthy"] == [ends_at_s * 1_000_000]
    fleet.later(ends_at_s - 1)
    assert faults(fleet) == []
    fleet.later(1)
    assert faults(fleet) == ["fault_in_service"]


def test_after_it_has_ended_the_policy_of_the_day_counts(fleet):
    publish(fleet, crash_loop_exits=5, hang_after_s=600)
    fleet.orders(commands.AbortRollout(rollout="r1", reason="no longer wanted"))
    crashes(fleet, "a", 4)
    assert faults(fleet) == []
    crashes(fleet, "a", 1)
    assert faults(fleet) == ["fault_in_service"]
