"""What holds a rollout back between its waves, and what is taken in while it is held."""

import pytest
from tests import given

from smgate.domain import commands, decisions, errors, exposure, facts, policy, rulings

NODES = ("a", "b", "c", "d")
TWO_WAVES = (policy.Wave(count=1), policy.Wave(percent=100))


@pytest.fixture
def fleet():
    """Four servers on SM107 of a qualified build."""
    made = given.Fleet(breaker_bad_units=100).enforce().qualified()
    made.node(*NODES)
    for node in NODES:
        made.launch(node)
    return made


def start(fleet, nodes=NODES, **plan):
    fleet.rollout(select=policy.Selector(units=nodes), **plan)


def members(fleet):
    return [unit.partition(":")[0] for unit in fleet.state.rollouts["r1"].waves[-1].units]


def bake(fleet, *nodes):
    for node in nodes:
        fleet.restarts(node)
        fleet.bakes(node, 600)


def trip(fleet):
    fleet.record(decisions.BreakerTripped(units=("a",), window_s=60), "controller")
    fleet.settle()


@pytest.mark.parametrize(
    ("stop", "go_on"),
    [
        (
            lambda fleet: fleet.orders(commands.DeclareFreeze(id="f", reason="r")),
            commands.LiftFreeze(id="f", reason="r"),
        ),
        (trip, commands.ResetBreaker(reason="r")),
        (
            lambda fleet: fleet.orders(commands.PauseRollout(rollout="r1", reason="r")),
            commands.ResumeRollout(rollout="r1", reason="r"),
        ),
    ],
    ids=["freeze", "breaker", "pause"],
)
def test_no_wave_opens_while_something_holds_and_the_next_does_when_it_is_lifted(
    fleet, stop, go_on
):
    start(fleet, waves=TWO_WAVES)
    canary = members(fleet)
    stop(fleet)
    bake(fleet, *canary)
    assert len(fleet.seen(decisions.WaveOpened)) == 1
    fleet.orders(go_on)
    assert fleet.verdicts() == ["passed", None]


def test_a_freeze_does_not_keep_a_rollout_from_completing(fleet):
    start(fleet, ("a",))
    fleet.orders(commands.DeclareFreeze(id="f", reason="r"))
    bake(fleet, "a")
    assert fleet.phase() == "completed"


def test_a_paused_rollout_still_takes_failures_in_and_halts(fleet):
    start(fleet, waves=TWO_WAVES)
    (canary,) = members(fleet)
    fleet.restarts(canary)
    fleet.orders(commands.PauseRollout(rollout="r1", reason="look"))
    fleet.says(canary, facts.GpuFaultSeen(gpu_uuid=f"GPU-{canary}", xid=79))
    assert fleet.phase() == "halted"
    assert fleet.verdicts() == ["failed"]


def test_a_paused_rollout_passes_no_wave(fleet):
    start(fleet, ("a",))
    fleet.restarts("a")
    fleet.orders(commands.PauseRollout(rollout="r1", reason="look"))
    fleet.bakes("a", 600)
    assert fleet.verdicts() == [None]


def test_another_rollout_waits_for_a_paused_one(fleet):
    start(fleet, ("a",))
    fleet.orders(commands.PauseRollout(rollout="r1", reason="look"))
    with pytest.raises(errors.RejectedError, match="r1 is paused"):
        fleet.rollout("r2")


def test_units_that_start_at_one_moment_share_the_flights_there_are(fleet):
    for node in ("a", "b"):
        fleet.orders(commands.PinUnit(unit=node, direction="off", reason="hold"))
    start(fleet, max_in_flight=1)
    fleet.orders(commands.AbortRollout(rollout="r1", reason="again"))
    for node in ("a", "b"):
        fleet.orders(commands.UnpinUnit(unit=node, reason="go"))
    fleet.orders(commands.DeclareFreeze(id="f", reason="r"))
    fleet.rollout("r2", select=policy.Selector(units=("a", "b")), max_in_flight=1)
    assert fleet.state.rollouts["r2"].waves == []
    for node in ("a", "b"):
        fleet.launch(node, settled=False)
    fleet.record(rulings.FreezeLifted(id="f", reason="r"), "operator:alice")
    fleet.settle()
    values = sorted(str(fleet.decided(node).value) for node in ("a", "b"))
    assert values == [given.TARGET, given.SAFE]


def test_a_suspect_key_keeps_the_next_wave_closed_and_the_rollout_open(fleet):
    start(fleet, waves=TWO_WAVES)
    (canary,) = members(fleet)
    fleet.restarts(canary)
    fleet.check("p1", outcome="failed")
    fleet.bakes(canary, 600)
    assert fleet.verdicts() == ["passed"]
    assert fleet.phase() == "running"
    fleet.node("q1", "q2", "q3")
    fleet.passes("q1", "q2", "q3")
    assert fleet.standing() == "unknown"
    fleet.node("p4", pool=True)
    fleet.passes("p4")
    assert fleet.standing() == "qualified"
    assert fleet.verdicts() == ["passed", None]


@pytest.mark.parametrize(
    ("interval", "seconds"),
    [
        ({"requests": 100, "failures": 0}, 60),
        ({"requests": 100, "failures": 99}, 60),
        ({"requests": 100, "failures": 100}, 0),
        ({"requests": 0, "failures": 0}, 0),
    ],
)
def test_only_an_interval_that_answered_something_bakes(fleet, interval, seconds):
    start(fleet, ("a",))
    fleet.restarts("a")
    fleet.says("a", facts.BakeInterval(instance_id="k3", interval_s=60, **interval))
    assert fleet.unit("a").grant.bake_s == seconds


def test_a_unit_bakes_from_its_grant_until_it_has_served_what_the_plan_wants(fleet):
    baking = lambda name: exposure.bakes(fleet.state, fleet.unit(name))  # noqa: E731
    assert not baking("a")
    start(fleet, ("a",))
    assert baking("a")
    fleet.restarts("a")
    fleet.bakes("a", 599)
    assert (baking("a"), baking("b")) == (True, False)
    fleet.bakes("a", 1)
    assert not baking("a")
    fleet.orders(commands.PinUnit(unit="a", direction="off", reason="stop"))
    assert not baking("a")


def test_an_xid_in_a_bake_interval_is_a_fault(fleet):
    start(fleet, ("a",))
    fleet.restarts("a")
    fleet.says(
        "a",
        facts.BakeInterval(instance_id="k3", interval_s=60, requests=9, failures=0, xids=1),
    )
    assert fleet.told("a") == ("append", given.SAFE, "fault_in_service")
    assert fleet.phase() == "halted"


@pytest.mark.parametrize(("restarts", "code"), [(2, "granted"), (3, "fault_in_service")])
def test_restarts_whose_exits_nobody_reported_are_failures_too(fleet, restarts, code):
    start(fleet, ("a",))
    fleet.restarts("a")
    fleet.instance("a", "starting", restarts=restarts)
    assert fleet.told("a")[2] == code


def test_a_server_that_was_granted_once_is_never_first_seen(fleet):
    start(fleet, ("a",))
    fleet.restarts("a")
    fleet.orders(commands.ExcludeUnit(unit="a", reason="mine"))
    fleet.orders(commands.PinUnit(unit="a", direction="off", reason="stop"))
    fleet.launch("a")
    assert fleet.decided("a").form == "keep"
    fleet.serves("a")
    assert fleet.seen(decisions.Adopted) == []
    assert {"exposed", "uncontrolled"} <= fleet.alarms()


def test_time_before_a_takeover_moves_no_deadline(fleet):
    fleet.now_us += 3600 * given.SECOND_US
    fleet.launch("m", nnodes=2, unit_name="two", settled=False)
    fleet.away(3600)
    assert fleet.unit("two").override is None
    fleet.later(60)
    assert fleet.unit("two").override is not None
