"""Traps of time, loss, switches and growth, each as a pair."""

import pytest
from tests import given

from smgate.domain import commands, decisions, facts, policy
from smgate.log import memory

GRANTED = ("append", given.TARGET, "granted")
SUSPENDED = ("append", given.SAFE, "gate_disabled")
NODES = tuple("abcdefghij")


def fleet_of(*nodes, **numbers):
    """Servers on SM107 of a qualified build, each behind its launch gate."""
    made = given.Fleet(**numbers).enforce().qualified()
    made.node(*nodes)
    for node in nodes:
        made.launch(node, settled=False)
    made.settle()
    return made


def bake(fleet, *nodes):
    for node in nodes:
        fleet.restarts(node)
        fleet.bakes(node, 600)


# T14: events were lost under lag, and nobody knew


@pytest.mark.parametrize("lost", [True, False])
def test_trap_t14_facts_that_were_lost_stop_new_starts_of_that_node_until_a_full_report(lost):
    fleet = fleet_of("a", "b")
    if lost:
        fleet.says("a", facts.GapNoticed(lost_outbox_id="box"))
    fleet.rollout()
    assert fleet.told("b") == GRANTED
    assert (fleet.told("a") == GRANTED) is not lost
    assert ("log_gap" in fleet.override("a").also) is lost
    assert bool(fleet.state.nodes["a"].gaps) is lost  # what the gauge of lost facts counts
    if lost:
        fleet.says("a", facts.GapNoticed(lost_outbox_id="box", closed=True))
        assert fleet.told("a") == GRANTED


# T15: the time to live was the one of the acquisition, and never ended


@pytest.mark.parametrize(("waited_s", "taken"), [(9.9, False), (10.1, True)])
def test_trap_t15_a_lease_whose_holder_died_is_taken_when_it_ends(waited_s, taken):
    now = [given.START_US]
    store = memory.MemoryStore(clock_us=lambda: now[0])
    assert store.acquire_lease("leader", holder="one", ttl_s=3600) is not None
    assert store.renew_lease("leader", holder="one", ttl_s=10) is not None  # today's policy
    now[0] += round(waited_s * 1_000_000)
    found = store.acquire_lease("leader", holder="two", ttl_s=10)
    assert (found is not None) is taken


@pytest.mark.parametrize("shortened", [True, False])
def test_trap_t15_a_wait_ends_by_the_policy_of_today(shortened):
    fleet = given.Fleet().enforce()
    fleet.node("a")
    fleet.serves("a")
    assert fleet.unit("a").adoption == "adopted"
    if shortened:
        numbers = policy.Policy(adoption_timeout_s=60)
        fleet.orders(commands.PublishPolicy(policy=numbers, reason="sooner"))
    fleet.later(61)
    said = {event.code for event in fleet.seen(decisions.WaitTimedOut)}
    assert ("adopted" in said) is shortened


# T18: switching the controller off stranded what was under way


@pytest.mark.parametrize("switched_off", [True, False])
def test_trap_t18_the_kill_switch_has_an_answer_for_every_state_and_takes_nothing_for_good(
    switched_off,
):
    fleet = fleet_of("waiting", "granted", "baking", "baked")
    select = [fleet.id(node) for node in ("granted", "baking", "baked")]
    fleet.rollout(select=policy.Selector(units=tuple(select)))
    bake(fleet, "baked")
    fleet.restarts("baking")
    before = {node: fleet.told(node) for node in ("waiting", "granted", "baking", "baked")}
    assert [*before.values()][1:] == [GRANTED] * 3
    if switched_off:
        fleet.orders(commands.DisableGate(gate=given.GATE, sms=("10.7",), reason="night"))
    for node, told in before.items():
        assert fleet.told(node) == (SUSPENDED if switched_off else told)
    assert fleet.unit("baking").grant.launched  # it stays what it is; its server runs on
    assert fleet.seen(decisions.GrantEnded) == []
    if switched_off:
        fleet.launch("granted")
        assert fleet.decided("granted").value == given.SAFE
        fleet.orders(commands.EnableGate(gate=given.GATE, sms=("10.7",), reason="morning"))
    assert {node: fleet.told(node) for node in before} == before


# T24: nodes that joined were read as failures


@pytest.mark.parametrize("faults", [0, 3])
def test_trap_t24_a_third_more_nodes_trip_no_breaker_and_neither_shrink_nor_fail_a_wave(faults):
    fleet = fleet_of(*NODES, breaker_bad_units=3)
    fleet.rollout(failures_max=10, failure_percent=100)
    bake(fleet, *NODES[:4])
    more = ("x", "y", "z")
    fleet.node(*more)
    for node in more:
        fleet.launch(node)
        fleet.instance(node, "starting")
        fleet.restarts(node)
    for node in more[:faults]:
        fleet.says(node, facts.GpuFaultSeen(gpu_uuid=f"GPU-{node}", xid=79))
    (wave,) = fleet.state.rollouts["r1"].waves
    assert set(wave.units) >= {fleet.id(node) for node in NODES}
    assert (fleet.state.breaker_position is not None) is (faults >= 3)
    assert fleet.verdicts() == [None]
    bake(fleet, *NODES[4:])
    if not faults:
        assert fleet.verdicts() == ["passed"]
        assert fleet.phase() == "completed"
