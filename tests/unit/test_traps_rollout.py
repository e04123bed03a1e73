"""Traps of pausing, halting, judging and superseding a rollout, each as a pair."""

import pytest
from hypothesis import given as over, settings, strategies as st
from tests import given

from smgate.domain import commands, decisions, evolve, facts, planner, policy, rulings
from smgate.log import codec

GRANTED = ("append", given.TARGET, "granted")
NODES = tuple("abcdefghij")
CANARY_FIRST = (policy.Wave(count=1), policy.Wave(percent=100))


def fleet_of(*nodes, **numbers):
    """Servers on SM107 of a qualified build, each behind its launch gate."""
    made = given.Fleet(**{"breaker_bad_units": 100, **numbers}).enforce().qualified()
    made.node(*nodes)
    for node in nodes:
        made.launch(node, settled=False)
    made.settle()
    return made


def members(fleet, wave=0, rollout="r1"):
    return [unit.partition(":")[0] for unit in fleet.state.rollouts[rollout].waves[wave].units]


def bake(fleet, *nodes, **launch):
    for node in nodes:
        fleet.restarts(node, **launch)
        fleet.bakes(node, 600)


def faulted(node):
    return facts.GpuFaultSeen(gpu_uuid=f"GPU-{node}", xid=79)


# T4: a pause left conditions unevaluated, and work in flight went on


@pytest.mark.parametrize("fails", [True, False])
def test_trap_t04_a_pause_takes_failures_in_and_opens_nothing(fails):
    fleet = fleet_of(*NODES)
    fleet.rollout(waves=CANARY_FIRST)
    (canary,) = members(fleet)
    fleet.restarts(canary)
    fleet.orders(commands.PauseRollout(rollout="r1", reason="look"))
    if fails:
        fleet.says(canary, faulted(canary))
        assert fleet.phase() == "halted"
        assert fleet.refuses(commands.ResumeRollout(rollout="r1", reason="go")) == "rollout_halted"
    else:
        fleet.bakes(canary, 600)
        assert fleet.verdicts() == [None]
        fleet.orders(commands.ResumeRollout(rollout="r1", reason="go on"))
        assert fleet.verdicts() == ["passed", None]
    others = set(NODES) - {canary}
    assert {fleet.told(node) == GRANTED for node in others} == {not fails}


# T5: halt-on-error did not halt


@pytest.mark.parametrize("fails", [True, False])
def test_trap_t05_after_a_failing_canary_no_node_of_the_next_wave_is_offered_the_target(fails):
    fleet = fleet_of(*NODES)
    fleet.rollout(waves=CANARY_FIRST)
    (canary,) = members(fleet)
    bake(fleet, canary) if not fails else fleet.restarts(canary)
    if fails:
        fleet.says(canary, faulted(canary))
    fleet.later(86400)
    for node in set(NODES) - {canary}:
        fleet.restarts(node)
        assert (fleet.decided(node).value == given.TARGET) is not fails
    assert len(fleet.seen(decisions.WaveOpened)) == (1 if fails else 2)
    assert fleet.phase() == ("halted" if fails else "running")


# T6: no data passed


def nothing(fleet, node):
    """The canary is granted and nobody hears of a restart."""


def no_traffic(fleet, node):
    fleet.restarts(node)
    fleet.bakes(node, 600, requests=0)


def nothing_attested(fleet, node):
    fleet.launch(node)
    fleet.instance(node)
    fleet.bakes(node, 600)


def silence(fleet, node):
    fleet.restarts(node)
    fleet.later(301, silent=node)


@pytest.mark.parametrize(
    ("heard", "verdict"),
    [
        (bake, "passed"),
        (nothing, "inconclusive"),
        (no_traffic, "inconclusive"),
        (nothing_attested, "inconclusive"),
        (silence, "inconclusive"),
    ],
)
def test_trap_t06_a_canary_without_data_is_inconclusive_and_nothing_advances(heard, verdict):
    fleet = fleet_of(*NODES)
    fleet.rollout(waves=CANARY_FIRST)
    (canary,) = members(fleet)
    heard(fleet, canary)
    fleet.later(7 * 86400, silent=canary if heard is silence else ())
    assert fleet.verdicts()[0] == verdict
    assert len(fleet.seen(decisions.WaveOpened)) == (2 if verdict == "passed" else 1)
    if verdict != "passed":
        assert fleet.phase() == "paused"


# T7: an analysis that was ended early counted as a success


@pytest.mark.parametrize(
    "command", [None, commands.PauseRollout, commands.HaltRollout, commands.AbortRollout]
)
def test_trap_t07_a_bake_that_was_cut_short_is_no_success(command):
    fleet = fleet_of("a", "b")
    fleet.rollout()
    bake(fleet, "a")
    fleet.restarts("b")
    fleet.bakes("b", 599)
    if command is not None:
        fleet.orders(command(rollout="r1", reason="enough"))
    fleet.bakes("b", 1)
    fleet.later(86400)
    passed = command is None
    assert (fleet.phase() == "completed") is passed
    assert bool(fleet.seen(decisions.RolloutCompleted)) is passed
    fleet.node("c")
    fleet.launch("c")
    assert (fleet.told("c") == GRANTED) is passed


# T16: two failures in one tick rolled the halt back


@pytest.mark.parametrize(("failing", "halted"), [(2, True), (1, False)])
def test_trap_t16_failures_of_one_tick_halt_once(failing, halted):
    fleet = fleet_of(*NODES)
    fleet.rollout(failures_max=2, failure_percent=100)
    for node in NODES[:3]:
        fleet.restarts(node)
    for node in NODES[:failing]:  # in one batch: the leader sees them together
        fleet.record(faulted(node), f"node:{node}")
    fleet.settle()
    assert (fleet.phase() == "halted") is halted
    assert len(fleet.seen(rulings.RolloutHalted)) == (1 if halted else 0)
    found = fleet.orders(commands.HaltRollout(rollout="r1", reason="me too"))
    assert len(found) == (0 if halted else 1)
    assert fleet.orders(commands.HaltRollout(rollout="r1", reason="and me"), by="bob") == ()
    assert len(fleet.seen(rulings.RolloutHalted)) == 1


# T19: a limit that was no multiple of the step gave a false success


@settings(max_examples=25, deadline=None)
@over(
    nodes=st.integers(1, 7),
    steps=st.lists(st.floats(0.5, 99.5), max_size=3),
    in_flight=st.integers(1, 4),
    excluded=st.sets(st.integers(0, 6), max_size=2),
    missing=st.booleans(),
)
def test_trap_t19_a_rollout_completes_only_when_every_unit_is_on_the_target_or_excluded(
    nodes, steps, in_flight, excluded, missing
):
    names = NODES[:nodes]
    fleet = fleet_of(*names)
    out = {names[number] for number in excluded if number < nodes - 1}
    for node in out:
        fleet.orders(commands.ExcludeUnit(unit=node, reason="mine"))
    waves = [*(policy.Wave(percent=step) for step in sorted(steps)), policy.Wave(percent=100)]
    fleet.rollout(waves=waves, max_in_flight=in_flight)
    inside = [node for node in names if node not in out]
    left_out = inside[-1] if missing else None
    for _ in range(3 * len(inside)):
        for node in inside:
            unit = fleet.unit(node)
            if node != left_out and unit.grant is not None and not unit.grant.bake_s:
                bake(fleet, node)
    done = {node for node in inside if fleet.unit(node).grant and fleet.unit(node).grant.bake_s}
    assert (fleet.phase() == "completed") is (done == set(inside)) is not missing


# T20: a new target reset the schedule, and later groups starved


@pytest.mark.parametrize("unchanged", [True, False])
def test_trap_t20_a_successor_goes_on_where_the_key_is_unchanged_and_begins_anew_where_not(
    unchanged,
):
    newer = given.build(flashinfer_version="0.7.3")
    fleet = fleet_of(*NODES)
    fleet.passes(*given.POOL, made=newer)
    waves = (policy.Wave(count=1), policy.Wave(percent=50), policy.Wave(percent=100))
    fleet.rollout(waves=waves)
    bake(fleet, *members(fleet))
    bake(fleet, *members(fleet, 1))
    half = {*members(fleet), *members(fleet, 1)}
    later = set(NODES) - half
    fleet.orders(commands.PauseRollout(rollout="r1", reason="another plan"))
    if not unchanged:
        for node in later:
            fleet.launch(node, build=newer)
    fleet.rollout("r2", waves=waves, supersedes="r1")
    assert fleet.verdicts("r2") == (["passed", "passed", None] if unchanged else [None])
    offered = {node for node in later if fleet.told(node) == GRANTED}
    assert len(offered) == (len(later) if unchanged else 1)


# T23: the same inputs gave another verdict


@pytest.mark.parametrize("same", [True, False])
def test_trap_t23_the_same_outcomes_give_the_same_verdict_byte_for_byte(same):
    fleet = fleet_of(*NODES)
    fleet.rollout(waves=[policy.Wave(count=4), policy.Wave(percent=100)], failures_max=9)
    canaries = members(fleet)
    bake(fleet, *canaries[:3])
    fleet.restarts(canaries[3])
    before = fleet.state.position
    fleet.bakes(canaries[3], 600)
    judged = [event for event in fleet.seen(decisions.WaveJudged) if event.wave == 0]
    again = evolve.fold(fleet.history[:before])
    last = fleet.history[before]
    if not same:
        last = last._replace(event=faulted(canaries[3]))
    evolve.evolve(again, last)
    found = [e for e in until_judged(again, fleet.now_us) if isinstance(e, decisions.WaveJudged)]
    assert ([codec.encode(e) for e in found] == [codec.encode(e) for e in judged]) is same


def until_judged(state, now_us):
    """What the planner says from here on, up to a verdict."""
    said = []
    while not any(isinstance(event, decisions.WaveJudged) for event in said):
        found = planner.plan(state, now_us).events
        if not found:
            break
        for event in found:
            said.append(event)
            evolve.evolve(state, given.events.Recorded(**recorded(state, now_us, event)))
    return said


def recorded(state, now_us, event):
    position = state.position + 1
    return {
        "position": position,
        "at_us": now_us,
        "occurred_at_us": now_us,
        "stream": "controller",
        "version": position,
        "actor": "controller",
        "event": event,
    }
