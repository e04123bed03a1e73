"""A person takes back what a rollout granted: whose it is, what it leaves, and what it says of nobody."""

import pytest
from tests import given, given_drains

from smgate.domain import (
    commands,
    decisions,
    exposure,
    facts,
    history,
    policy,
    revocation,
    rulings,
    why_rollout,
)

GRANTED = ("append", given.TARGET, "granted")
TAKEN_BACK = ("append", given.SAFE, "rolled_back_here")
NEWER = given.build(flashinfer_version="0.7.3")
CLEAR = commands.ClearMemory(unit="a", reason="it was the network")


def revoke(rollout="r1", **whose):
    return revocation.RevokeGrants(rollout=rollout, reason="rack 7 answers oddly", **whose)


def members(fleet, wave, rollout="r1"):
    return [unit.partition(":")[0] for unit in fleet.state.rollouts[rollout].waves[wave].units]


@pytest.fixture
def fleet():
    """Four servers of a qualified build; two canaries run the target, the second wave is open."""
    made = given.Fleet(breaker_bad_units=1).enforce().qualified()
    made.node(*"abcd")
    for node in "abcd":
        made.restarts(node, restarter="hook")
    made.rollout(waves=(policy.Wave(count=2), policy.Wave(percent=100)))
    for node in members(made, 0):
        made.restarts(node, restarter="hook")
        made.bakes(node, 600)
    assert made.verdicts() == ["passed", None]
    return made


# Whose


def test_all_of_a_rollout_get_the_safe_value_and_nothing_is_said_of_the_kernel(fleet):
    [event] = fleet.orders(revoke(), role="operator")
    assert event.units == tuple(sorted(map(fleet.id, "abcd")))
    assert [fleet.told(node) for node in "abcd"] == [TAKEN_BACK] * 4
    assert fleet.standing() == "qualified"
    state = fleet.state
    assert (state.bad_signs, state.breaker_position) == ([], None)
    assert fleet.seen(decisions.GrantEnded) == []
    assert all(not wave.bad for wave in state.rollouts["r1"].waves)
    assert fleet.phase() != "halted"


def test_of_one_unit_or_one_wave_the_others_keep_theirs(fleet):
    first, second = members(fleet, 0), members(fleet, 1)
    [event] = fleet.orders(revoke(wave=1))
    assert (event.units, event.wave) == (tuple(sorted(map(fleet.id, second))), 1)
    assert fleet.orders(revoke(wave=1)) == ()
    [event] = fleet.orders(revoke(unit=first[0]))  # by its node's name, as everywhere
    assert (event.units, event.wave) == ((fleet.id(first[0]),), None)
    assert fleet.told(first[1]) == GRANTED
    assert fleet.orders(revoke(unit=first[1], wave=1)) == (), "it is in another wave"
    assert fleet.told(first[1]) == GRANTED


def test_what_is_not_there_is_refused_and_nothing_left_is_no_event(fleet):
    assert fleet.refuses(revoke("r9")) == "unknown_rollout"
    assert fleet.refuses(revoke(unit="nobody")) == "unknown_unit"
    assert fleet.refuses(revoke(wave=2)) == "unknown_wave"
    assert fleet.refuses(revoke(wave=-1)) == "unknown_wave"
    assert fleet.refuses(revoke(), role="viewer") == "forbidden"
    fleet.orders(revoke())
    assert fleet.orders(revoke()) == ()


def test_it_is_never_too_late_for_it(fleet):
    fleet.orders(commands.AbortRollout(rollout="r1", reason="enough"))
    assert fleet.orders(revoke())
    assert fleet.told("a") == TAKEN_BACK


def test_a_grant_of_another_rollout_stays(fleet):
    fleet.orders(commands.AbortRollout(rollout="r1", reason="another build"))
    fleet.passes(*given.POOL, made=NEWER)
    fleet.launch("a", build=NEWER)
    fleet.rollout("r2", select=policy.Selector(units=(fleet.id("a"),)))
    assert fleet.told("a") == GRANTED
    fleet.orders(revoke("r1"))
    assert fleet.told("a") == GRANTED
    fleet.launch("a")
    assert fleet.told("a") == TAKEN_BACK


# What it leaves


def test_servers_run_on_until_they_start_again_and_are_not_drained(fleet):
    canary = members(fleet, 0)[0]
    fleet.orders(revoke())
    assert exposure.exposed(fleet.state, fleet.unit(canary))
    fleet.later(86400)
    assert fleet.seen(decisions.DrainOrdered) == []
    fleet.restarts(canary)
    assert not exposure.runs_target(fleet.state, fleet.unit(canary))


def test_a_pin_restarts_what_was_taken_back(fleet):
    canary = members(fleet, 0)[0]
    fleet.orders(revoke())
    given_drains.pin_off(fleet, canary)
    assert given_drains.orders(fleet) == [canary]


def test_no_rollout_offers_the_key_there_again_but_another_key_may_come(fleet):
    fleet.orders(revoke())
    fleet.orders(commands.AbortRollout(rollout="r1", reason="again"))
    fleet.rollout("r2")
    assert fleet.told("a") == TAKEN_BACK
    assert fleet.state.rollouts["r2"].waves == []
    fleet.passes(*given.POOL, made=NEWER)
    fleet.restarts("a", build=NEWER)
    assert fleet.told("a") == GRANTED


def test_two_people_clear_what_is_remembered_and_it_is_offered_again(fleet):
    fleet.orders(revoke())
    fleet.orders(commands.AbortRollout(rollout="r1", reason="again"))
    [asked] = fleet.alone(CLEAR, role="operator")
    assert isinstance(asked, rulings.ChangeAsked)
    fleet.alone(commands.AcceptChange(change=fleet.newest_change(), reason="so it was"), by="zoe")
    fleet.rollout("r2")
    assert fleet.told("a") == GRANTED
    assert fleet.told("b") == TAKEN_BACK


GOES_WRONG = {
    "xid": lambda fleet, node: fleet.says(node, facts.GpuFaultSeen(gpu_uuid=f"GPU-{node}", xid=79)),
    "self_test_failed": lambda fleet, node: fleet.check(node, outcome="failed"),
    "hang": lambda fleet, node: (fleet.instance(node, "unhealthy"), fleet.later(901)),
}


@pytest.mark.parametrize("what", GOES_WRONG)
def test_a_server_that_runs_on_and_then_goes_wrong_is_drained_as_ever(fleet, what):
    canary = members(fleet, 0)[0]
    fleet.orders(revoke())
    GOES_WRONG[what](fleet, canary)
    found = what if what == "self_test_failed" else "fault_in_service"
    assert fleet.told(canary) == ("append", given.SAFE, found)
    assert given_drains.orders(fleet) == [canary]


def superseded():
    """A server over m and n was granted and made way for one on m alone, which is granted too."""
    fleet = given.Fleet(breaker_bad_units=1).enforce().qualified()
    fleet.node("m", "n")
    launch_both(fleet)
    fleet.rollout()
    assert fleet.told("two") == GRANTED
    fleet.launch("m")
    fleet.orders(commands.AbortRollout(rollout="r1", reason="its only server is another now"))
    fleet.rollout("r2")
    assert fleet.told("m:") == GRANTED
    return fleet


def launch_both(fleet):
    for rank, node in enumerate("mn"):
        fleet.launch(node, nnodes=2, node_rank=rank, unit_name="two", settled=False)
    fleet.settle()


def test_who_comes_back_to_such_a_gpu_loses_the_grant_for_that_key_and_it_is_no_bad_sign():
    fleet = superseded()
    fleet.orders(revoke("r2"))
    assert fleet.seen(decisions.GrantEnded) == []
    launch_both(fleet)
    [ended] = fleet.seen(decisions.GrantEnded)
    assert (ended.unit, ended.code, ended.gpu_uuids) == ("two", "rolled_back_here", ("GPU-m",))
    assert ("GPU-n", given.KEY) not in fleet.state.gpu_memory
    assert (fleet.state.bad_signs, fleet.state.breaker_position) == ([], None)
    assert not fleet.state.rollouts["r1"].waves[0].bad


def test_a_fault_on_such_a_gpu_ends_the_grant_of_who_comes_back_when_it_does():
    fleet = superseded()
    fleet.serves("m")
    fleet.says("m", facts.GpuFaultSeen(gpu_uuid="GPU-m", xid=79))
    assert [ended.unit for ended in fleet.seen(decisions.GrantEnded)] == [fleet.id("m:")]
    launch_both(fleet)
    assert [ended.unit for ended in fleet.seen(decisions.GrantEnded)][1:] == ["two"]


# Waves


def test_a_wave_neither_waits_for_them_nor_passes_by_them(fleet):
    first, second = members(fleet, 1)
    fleet.restarts(first)
    fleet.bakes(first, 600)
    assert fleet.verdicts() == ["passed", None]
    fleet.orders(revoke(unit=second))
    assert fleet.verdicts() == ["passed", "passed"]
    [judged] = [one for one in fleet.seen(decisions.WaveJudged) if one.wave == 1]
    assert judged.good == (fleet.id(first),)
    assert fleet.phase() == "completed"


def test_one_that_was_good_is_a_success_no_more(fleet):
    fleet.orders(commands.PauseRollout(rollout="r1", reason="look"))
    for node in members(fleet, 1):
        fleet.restarts(node)
        fleet.bakes(node, 600)
    fleet.orders(revoke(wave=1))
    fleet.orders(commands.ResumeRollout(rollout="r1", reason="looked"))
    assert fleet.verdicts() == ["passed", "inconclusive"]
    assert fleet.phase() == "paused"
    [judged] = [one for one in fleet.seen(decisions.WaveJudged) if one.wave == 1]
    assert judged.good == ()


def test_a_wave_of_which_nobody_is_left_ends_and_pauses(fleet):
    fleet.orders(revoke(wave=1))
    assert fleet.verdicts() == ["passed", "inconclusive"]
    assert fleet.phase() == "paused"
    shown = why_rollout.explain_rollout(fleet.state, "r1", fleet.now_us)["waves"][1]
    assert shown["revoked"] == shown["units"]
    assert shown["pending"] == shown["good"] == shown["bad"] == []


def test_of_a_wave_that_was_judged_it_is_said_what_it_was_judged_by(fleet):
    before = why_rollout.explain_rollout(fleet.state, "r1", fleet.now_us)["waves"][0]
    assert (before["verdict"], before["sentence"]) == ("passed", "2 of 2 baked.")
    fleet.orders(revoke(wave=0))
    shown = why_rollout.explain_rollout(fleet.state, "r1", fleet.now_us)["waves"][0]
    assert shown["verdict"] == "passed"
    assert shown["sentence"] == "2 of its 2 units were good when it was judged."


def test_a_bad_member_stays_bad(fleet):
    canary = members(fleet, 0)[0]
    fleet.says(canary, facts.GpuFaultSeen(gpu_uuid=f"GPU-{canary}", xid=79))
    assert fleet.phase() == "halted"
    fleet.orders(revoke())
    shown = why_rollout.explain_rollout(fleet.state, "r1", fleet.now_us)["waves"][0]
    assert shown["bad"] == [fleet.id(canary)]
    assert fleet.id(canary) not in shown["revoked"]


@pytest.mark.parametrize("by", ["clearing", "another key"])
def test_a_wave_that_ended_so_goes_on_with_who_may_have_it_again(fleet, by):
    fleet.orders(revoke(wave=1))
    second = members(fleet, 1)[0]
    if by == "clearing":
        fleet.orders(commands.ClearMemory(unit=second, reason="a slip of the hand"))
    else:
        fleet.passes(*given.POOL, made=NEWER)
        fleet.launch(second, build=NEWER)
    fleet.orders(commands.ResumeRollout(rollout="r1", reason="and so it goes on"))
    assert fleet.told(second) == GRANTED
    assert fleet.verdicts() == ["passed", None]
    shown = why_rollout.explain_rollout(fleet.state, "r1", fleet.now_us)["waves"][1]
    assert shown["pending"] == [fleet.id(second)]
    assert len(shown["revoked"]) == 1


def test_it_frees_their_places_in_flight():
    fleet = given.Fleet().enforce().qualified()
    fleet.node("a", "b")
    for node in "ab":
        fleet.launch(node)
    fleet.rollout(max_in_flight=1)
    fleet.launch("a")
    fleet.launch("b")
    assert fleet.told("b")[2] == "max_in_flight"
    fleet.orders(revoke(unit="a"))
    assert fleet.told("b") == GRANTED


# After completion, and over a successor


def completed():
    fleet = given.Fleet().enforce().qualified()
    fleet.granted("a")
    fleet.bakes("a", 600)
    assert fleet.phase() == "completed"
    return fleet


def test_what_stands_by_a_completed_rollout_is_taken_back_with_it():
    fleet = given.Fleet().enforce().qualified()
    fleet.node("a", "late")
    fleet.launch("a")
    fleet.rollout()
    fleet.restarts("a")
    fleet.bakes("a", 600)
    fleet.launch("late")
    assert fleet.told("late") == GRANTED
    [event] = fleet.orders(revoke())
    assert set(event.units) == {fleet.id("a"), fleet.id("late")}
    assert fleet.told("late") == TAKEN_BACK
    assert fleet.orders(revoke()) == ()


def test_what_stands_by_another_completed_rollout_stays():
    fleet = completed()
    fleet.node("b", "late")
    fleet.launch("b")
    fleet.rollout("r2", select=policy.Selector(units=("b", "late")))
    fleet.restarts("b")
    fleet.bakes("b", 600)
    assert fleet.phase("r2") == "completed"
    fleet.launch("late")
    assert fleet.told("late") == GRANTED
    [event] = fleet.orders(revoke("r1"))
    assert event.units == (fleet.id("a"),)
    assert fleet.told("late") == GRANTED


def test_a_rollout_completes_with_no_key_that_was_taken_back_everywhere():
    fleet = given.Fleet().enforce().qualified()
    fleet.node("a", "b")
    for node in "ab":
        fleet.launch(node)
    fleet.rollout(waves=(policy.Wave(count=1), policy.Wave(percent=100)), min_sample=1)
    [canary] = members(fleet, 0)
    fleet.restarts(canary)
    fleet.bakes(canary, 600)
    [other] = members(fleet, 1)
    fleet.orders(revoke(wave=0))
    fleet.restarts(other)
    fleet.bakes(other, 600)
    assert fleet.phase() == "completed"
    assert fleet.state.rollouts["r1"].completed_keys == (given.KEY,)
    fleet.orders(revoke())
    fleet.node("late")
    fleet.launch("late")
    assert fleet.told("late") == GRANTED, "it ends what was granted, and forbids nothing"


def test_what_a_successor_took_over_is_its_own(fleet):
    fleet.rollout("r2", waves=(policy.Wave(percent=100),), supersedes="r1")
    assert fleet.orders(revoke("r1")) == ()
    [event] = fleet.orders(revoke("r2"))
    assert event.units == tuple(sorted(map(fleet.id, "abcd")))
    assert fleet.phase("r2") == "paused"


# What people read


def test_the_history_of_a_unit_says_who_took_it_back_and_why(fleet):
    fleet.orders(revoke(unit="a"))
    scope = history.scope(fleet.state, fleet.id("a"))
    rows = [history.row(one) for one in fleet.history if scope.concerns(one)]
    [row] = [one for one in rows if one["type"] == "GrantRevoked"]
    assert row["says"] == "what rollout r1 granted was taken back: rack 7 answers oddly"
    other = history.scope(fleet.state, fleet.id("b"))
    assert not [
        one
        for one in fleet.history
        if other.concerns(one) and isinstance(one.event, revocation.GrantRevoked)
    ]
