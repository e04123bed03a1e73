"""Another policy over the same log: what it would have decided, and nothing where nothing differs."""

from __future__ import annotations

import pytest
from tests import given

from smgate.domain import evolve, policy, revocation, whatif, why


def tried(fleet, position, **numbers):
    """The history from a position on, under a policy with other numbers."""
    history = fleet.history
    before = [one for one in history if one.position <= position]
    rest = [one for one in history if one.position > position]
    return whatif.compare(
        evolve.fold(before),
        evolve.fold(before),
        rest,
        other=policy.Policy(**numbers),
        until_us=fleet.now_us,
    )


def a_story():
    """A rollout whose canary goes bad; the position it began at."""
    fleet = given.Fleet().enforce().qualified()
    fleet.node("a", "b", "c", "d")
    for node in "abcd":
        fleet.restarts(node)
        fleet.later(60)
    begun = fleet.state.position
    fleet.rollout(waves=(policy.Wave(count=2), policy.Wave(percent=100)))
    fleet.later(60)
    canaries = [unit.partition(":")[0] for unit in fleet.state.rollouts["r1"].waves[0].units]
    for node in canaries:
        fleet.restarts(node)
    fleet.later(120)
    fleet.says(canaries[0], given.facts.GpuFaultSeen(gpu_uuid=f"GPU-{canaries[0]}", xid=79))
    fleet.later(3600)
    return fleet, begun


def test_the_policy_that_was_in_force_would_have_decided_the_same():
    fleet, begun = a_story()
    assert fleet.phase() == "halted"
    for position in (begun, begun // 2, 0, fleet.state.position):
        shown = tried(fleet, position)
        assert shown["differing"] == []
        assert shown["then"] == shown["would"]
        assert all(one["then"] == one["would"] for one in shown["exposed_units"])
        assert shown["rulings_passed_over"] in (0, 1)  # the first policy, where it is in the log


def test_another_policy_shows_whom_it_would_have_told_otherwise_and_the_exposure():
    fleet, begun = a_story()
    shown = tried(fleet, begun, exposure_limit_units=1)
    assert shown["differing_units"] == 1
    [row] = shown["differing"]
    assert {step["value"] for step in row["then"]} == {given.TARGET, given.SAFE}
    assert {step["value"] for step in row["would"]} == {given.SAFE}
    assert max(one["then"] for one in shown["exposed_units"]) == 2
    assert max(one["would"] for one in shown["exposed_units"]) == 1
    assert shown["then"]["hold_after_s"] == 0
    assert shown["then"]["first_hold_by"] == "RolloutHalted"


def test_words_about_a_rollout_that_would_have_ended_are_passed_over_and_counted():
    fleet = given.Fleet(crash_loop_exits=3).enforce().qualified()
    fleet.granted("a", waves=(policy.Wave(count=1),))
    begun = fleet.state.position
    fleet.instance("a", "exited", exit_code=1)
    fleet.later(60)
    fleet.orders(given.commands.PauseRollout(rollout="r1", reason="looks odd"))
    shown = tried(fleet, begun, crash_loop_exits=1)
    assert shown["would"]["first_hold_by"] == "RolloutHalted"
    assert shown["then"]["holds"] == 0
    assert shown["rulings_passed_over"] == 1


@pytest.mark.parametrize("away_s", [0, 86_400])
def test_timers_stand_still_while_nobody_led(away_s):
    fleet = given.Fleet().enforce().qualified()
    fleet.granted("a", waves=(policy.Wave(count=1),), wave_timeout_s=3_600)
    begun = fleet.state.position
    fleet.later(600)
    fleet.away(away_s)
    fleet.later(600)
    shown = tried(fleet, begun)
    assert shown["differing"] == []
    assert shown["then"] == shown["would"]


def test_exposure_is_the_hours_that_each_unit_was_let_run_the_target():
    fleet = given.Fleet().enforce().qualified()
    fleet.node("a", "b")
    for node in "ab":
        fleet.launch(node)
    begun = fleet.state.position
    fleet.later(1800)
    fleet.rollout(waves=(policy.Wave(percent=100),))
    fleet.later(3600)
    fleet.orders(given.commands.PinUnit(unit="a", direction="off", reason="mine"))
    fleet.later(1800)
    fleet.node("z")  # something at the end, to which the two are compared
    shown = tried(fleet, begun, exposure_limit_units=1)
    assert shown["then"]["exposed_unit_hours"] == 1 + 1.5
    assert shown["would"]["exposed_unit_hours"] == 1.5, "one at a time, all the while"


def test_each_step_says_when_and_a_hold_is_counted_from_the_bad_sign_on():
    fleet = given.Fleet().enforce().qualified()
    fleet.granted("a", waves=(policy.Wave(count=1),))
    begun, start_us = fleet.state.position, fleet.now_us
    fleet.orders(given.commands.HaltRollout(rollout="r1", reason="by hand, before any bad sign"))
    fleet.later(60)
    fleet.node("p9", pool=True)
    fleet.check("p9", outcome="failed")
    shown = tried(fleet, begun, exposure_limit_units=0)
    assert shown["then"]["first_hold"] == why.iso(start_us)
    assert shown["then"]["hold_after_s"] == 0, "the halt before it was no answer to it"
    times = [step["at"] for row in shown["differing"] for step in (*row["then"], *row["would"])]
    assert all(one >= why.iso(start_us) for one in times)


def test_an_answer_to_a_change_finds_it_though_it_has_another_place_on_the_other_course():
    fleet = given.Fleet().enforce().qualified()
    fleet.node("a")
    fleet.restarts("a")
    begun = fleet.state.position
    alone = given.commands.PinUnit(unit="a", direction="on", reason="night")
    fleet.alone(alone, break_glass_s=3_600)
    change = list(fleet.state.changes)[-1]
    fleet.restarts("a")
    fleet.later(600)
    fleet.alone(given.commands.AcceptChange(change=change, reason="r"), by="bob")
    fleet.later(7_200)
    fleet.restarts("a")
    shown = tried(fleet, begun, gather_s=30)
    assert shown["differing"] == []  # on both courses another person accepted it in time


def test_a_policy_that_one_person_published_alone_is_passed_over_and_undoes_nothing_else():
    fleet = given.Fleet().enforce().qualified()
    fleet.node("a")
    fleet.restarts("a")
    begun = fleet.state.position
    publish = given.commands.PublishPolicy(policy=policy.Policy(gather_s=1), reason="night")
    fleet.alone(publish, break_glass_s=600)
    fleet.alone(given.commands.PinUnit(unit="a", direction="off", reason="its owner asks"))
    fleet.later(3_600)
    fleet.restarts("a")
    shown = tried(fleet, begun, gather_s=30)
    assert shown["differing"] == []
    assert shown["rulings_passed_over"] == 3  # broken glass, the policy, and the one before again


def test_what_a_person_took_back_is_taken_back_on_the_other_course_too():
    fleet = given.Fleet().enforce().qualified()
    fleet.node("a", "b")
    for node in "ab":
        fleet.launch(node)
    begun = fleet.state.position
    fleet.rollout(waves=(policy.Wave(percent=100),))
    fleet.later(3600)
    fleet.orders(revocation.RevokeGrants(rollout="r1", unit="a", reason="mine"))
    fleet.later(3600)
    fleet.node("z")  # something at the end, to which the two are compared
    shown = tried(fleet, begun)
    assert (shown["differing"], shown["then"]) == ([], shown["would"])
    assert shown["then"]["exposed_unit_hours"] == 1 + 2
    shown = tried(fleet, begun, exposure_limit_units=1)
    assert shown["would"]["exposed_unit_hours"] == 2, "one of them, all the while"
