"""The alarm of a rollout that a bad sign ended: until people have gone on."""

import pytest
from tests import given

from smgate.domain import commands, facts


@pytest.fixture
def fleet():
    """A rollout that an Xid halted; the server that had it is back on the safe value."""
    made = given.Fleet().enforce().qualified().granted("a", "b")
    made.says("a", facts.GpuFaultSeen(gpu_uuid="GPU-a", xid=31))
    made.restarts("a")
    assert made.phase() == "halted"
    assert "rollout_halted" in made.alarms()
    return made


def test_it_stays_while_nobody_has_gone_on(fleet):
    plan = fleet.state.rollouts["r1"].plan
    fleet.later(3600)
    fleet.orders(commands.ProposeRollout(plan=given.replace(plan, id="r2"), reason="a thought"))
    assert "rollout_halted" in fleet.alarms()


def test_it_is_over_once_another_rollout_runs_there(fleet):
    fleet.rollout("r2")
    assert "rollout_halted" not in fleet.alarms()


def test_it_is_over_where_nothing_is_changed_any_more(fleet):
    fleet.orders(
        commands.SetGateMode(gate=given.GATE, sm="10.7", mode="observe", reason="not this month")
    )
    assert "rollout_halted" not in fleet.alarms()


def test_one_that_is_halted_later_takes_its_place(fleet):
    fleet.node("c")
    fleet.launch("c")
    fleet.rollout("r2")
    fleet.restarts("c")
    fleet.says("c", facts.GpuFaultSeen(gpu_uuid="GPU-c", xid=31))
    (episode,) = [e for e in fleet.state.episodes.values() if e.cause == "rollout_halted"]
    assert (fleet.phase("r2"), episode.units) == ("halted", ("r2",))
