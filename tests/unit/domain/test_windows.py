"""Freeze windows of a plan: what they hold back, what they leave alone, and when they are over."""

import copy
from dataclasses import replace

import pytest
from tests import given

from smgate.domain import (
    commands,
    decisions,
    errors,
    facts,
    plan_ahead,
    plan_check,
    plan_lint,
    policy,
    rules,
    why_rollout,
    windows,
)
from smgate.domain.windows import DAY_US, SECOND_US, FreezeWindow

HOUR_US = 3600 * SECOND_US
ALL = policy.Wave(percent=100)
# The fleet's time begins on Tuesday, 2023-11-14 22:13:20 UTC.
TUESDAY_US = given.START_US - (22 * 3600 + 13 * 60 + 20) * SECOND_US


def at(text):
    return windows._once(FreezeWindow(starts=text, ends="2100-01-01T00:00:00Z"))[0]


def once(starts, ends):
    return FreezeWindow(starts=starts, ends=ends)


def weekly(*days, starts="18:00", ends="08:00", **more):
    return FreezeWindow(days=days, starts=starts, ends=ends, **more)


# Which moments are in a window

NIGHT = weekly("fri")
ODD_OFFSET = weekly("mon", starts="01:00", ends="03:00", utc_offset="+05:30")
DAY = weekly("sat", "sun", starts="00:00", ends="00:00")


@pytest.mark.parametrize(
    ("window", "moment", "until"),
    [
        (once("2026-12-24T18:00:00+01:00", "2027-01-02T08:00:00Z"), "2026-12-24T16:59:59Z", None),
        (
            once("2026-12-24T18:00:00+01:00", "2027-01-02T08:00:00Z"),
            "2026-12-24T17:00:00Z",
            "2027-01-02T08:00:00Z",
        ),
        (
            once("2026-12-24T18:00:00+01:00", "2027-01-02T08:00:00Z"),
            "2027-01-02T07:59:59Z",
            "2027-01-02T08:00:00Z",
        ),
        (once("2026-12-24T18:00:00+01:00", "2027-01-02T08:00:00Z"), "2027-01-02T08:00:00Z", None),
        (NIGHT, "2026-05-01T17:59:59Z", None),
        (NIGHT, "2026-05-01T18:00:00Z", "2026-05-02T08:00:00Z"),
        (NIGHT, "2026-05-02T07:59:59Z", "2026-05-02T08:00:00Z"),
        (NIGHT, "2026-05-02T08:00:00Z", None),
        (NIGHT, "2026-05-02T18:00:00Z", None),
        (NIGHT, "1969-12-26T18:00:00Z", "1969-12-27T08:00:00Z"),
        (ODD_OFFSET, "2026-05-03T19:29:59Z", None),
        (ODD_OFFSET, "2026-05-03T19:30:00Z", "2026-05-03T21:30:00Z"),
        (ODD_OFFSET, "2026-05-04T01:30:00Z", None),
        (weekly("sun", utc_offset="-03:00"), "2026-05-03T21:00:00Z", "2026-05-04T11:00:00Z"),
        (DAY, "2026-05-01T23:59:59Z", None),
        (DAY, "2026-05-02T00:00:00Z", "2026-05-04T00:00:00Z"),
        (DAY, "2026-05-03T23:59:59Z", "2026-05-04T00:00:00Z"),
        (DAY, "2026-05-04T00:00:00Z", None),
    ],
    ids=str,
)
def test_a_window_has_its_beginning_and_not_its_end(window, moment, until):
    held = windows.frozen((window,), at(moment))
    assert (held and windows.iso(held.end_us)) == until
    if held is not None:
        assert held.window == window
        assert held.start_us <= at(moment)


def test_windows_that_touch_or_overlap_end_with_the_last_of_them():
    friday = weekly("fri", starts="12:00", ends="00:00")
    holiday = once("2026-05-03T20:00:00Z", "2026-05-06T07:00:00Z")
    held = windows.frozen((DAY, friday, holiday), at("2026-05-01T13:00:00Z"))
    assert windows.iso(held.end_us) == "2026-05-06T07:00:00Z"
    assert held.window == friday


def test_every_moment_of_a_week_is_told_as_its_hours_say():
    """Hour by hour, against a calendar that knows nothing of offsets in a week."""
    window = weekly("tue", "sun", starts="22:00", ends="03:00", utc_offset="+02:00")
    for hour in range(7 * 24):
        now_us = TUESDAY_US + hour * HOUR_US
        local = (hour + 2) % (7 * 24)  # from a Tuesday's midnight, two hours ahead
        day, of_day = divmod(local, 24)
        inside = (of_day >= 22 and day in (0, 5)) or (of_day < 3 and day in (1, 6))
        assert (windows.frozen((window,), now_us) is not None) is inside, hour


@pytest.mark.parametrize(
    ("now", "edge"),
    [
        ("2026-05-01T17:59:59Z", "2026-05-01T18:00:00Z"),
        ("2026-05-01T18:00:00Z", "2026-05-02T08:00:00Z"),
        ("2026-05-02T08:00:00Z", "2026-05-08T18:00:00Z"),
    ],
)
def test_the_next_edge_is_known(now, edge):
    assert windows.iso(windows.next_edge_us((NIGHT,), at(now))) == edge


def test_after_a_window_that_comes_once_there_is_no_edge():
    window = once("2026-05-01T00:00:00Z", "2026-05-02T00:00:00Z")
    assert windows.next_edge_us((window,), at("2026-05-02T00:00:00Z")) is None
    assert windows.next_edge_us((), 0) is None


# What it holds back


@pytest.fixture
def fleet():
    """Tuesday, 22:13. The window is Tuesday 22:00 to Wednesday 06:00."""
    made = given.Fleet().enforce().qualified()
    made.node("a", "b", "c")
    for node in "abc":
        made.launch(node)
    return made


TONIGHT = weekly("tue", starts="22:00", ends="06:00")
MORNING_US = TUESDAY_US + DAY_US + 6 * HOUR_US


def to_the_morning(fleet, seconds=0):
    fleet.later((MORNING_US - fleet.now_us) / SECOND_US + seconds)


def test_no_wave_opens_in_it_and_at_its_end_one_does(fleet):
    fleet.rollout(freeze_windows=(TONIGHT,))
    assert fleet.verdicts() == []
    to_the_morning(fleet, -1)
    assert fleet.verdicts() == []
    to_the_morning(fleet)
    assert fleet.verdicts() == [None]
    assert fleet.told("a")[2] == "granted"


def test_the_leader_wakes_at_the_end_by_itself(fleet):
    fleet.rollout(freeze_windows=(TONIGHT,))
    due = given.planner.plan(fleet.state, fleet.now_us).next_due_us
    assert due is not None
    assert due <= MORNING_US
    while fleet.now_us < MORNING_US:
        due = given.planner.plan(fleet.state, fleet.now_us).next_due_us
        fleet.later((due - fleet.now_us) / SECOND_US)
    assert fleet.now_us == MORNING_US
    assert fleet.verdicts() == [None]


def test_it_is_a_wait_with_its_end_and_a_reason_with_its_end(fleet):
    fleet.rollout(freeze_windows=(TONIGHT,))
    [wait] = [one for one in fleet.waits if one.code == "freeze_window"]
    assert why_rollout.show_wait(fleet.state, wait, fleet.now_us)["until"] == "2023-11-15T06:00:00Z"
    assert why_rollout.show_wait(fleet.state, wait, fleet.now_us)["since"] == "2023-11-14T22:00:00Z"
    shown = why_rollout.explain_rollout(fleet.state, "r1", fleet.now_us)["waits"]
    [row] = [one for one in shown if one["code"] == "freeze_window"]
    assert (row["owner"], row["until"]) == ("controller", "2023-11-15T06:00:00Z")
    assert "(tue 22:00 to 06:00 UTC+00:00)" in row["sentence"]
    found = rules.decide_unit(fleet.state, fleet.id("a"), fleet.now_us).refusals
    assert [code for code, _ in found] == ["wave_not_open", "freeze"]
    to_the_morning(fleet)
    assert [one for one in fleet.waits if one.code == "freeze_window"] == []
    assert fleet.seen(decisions.WaitTimedOut) == []


def test_a_member_of_an_open_wave_is_not_granted_in_it(fleet):
    night = weekly("tue", starts="22:20", ends="06:00")
    fleet.orders(
        commands.PublishPolicy(policy=policy.Policy(exposure_limit_units=1), reason="slowly")
    )
    fleet.rollout(freeze_windows=(night,))
    told = sorted(fleet.told(node)[2] for node in "abc")
    assert told == ["exposure_limit", "exposure_limit", "granted"]
    fleet.later(7 * 60)
    assert sorted(fleet.told(node)[2] for node in "abc") == ["freeze", "freeze", "granted"]
    fleet.orders(commands.PublishPolicy(policy=policy.Policy(), reason="faster"))
    assert len(fleet.seen(decisions.Granted)) == 1
    to_the_morning(fleet)
    assert [fleet.told(node)[2] for node in "abc"] == ["granted"] * 3


def test_it_ends_nothing_and_bad_signs_are_taken_in(fleet):
    night = weekly("tue", starts="22:20", ends="06:00")
    fleet.rollout(freeze_windows=(night,))
    fleet.later(10 * 60)
    assert windows.frozen((night,), fleet.now_us)
    fleet.restarts("a")
    assert fleet.told("a") == ("append", given.TARGET, "granted")
    fleet.bakes("a", 600)
    fleet.restarts("b")
    fleet.says("b", facts.GpuFaultSeen(gpu_uuid="GPU-b", xid=79))
    assert fleet.phase() == "halted"


def test_a_wave_passes_in_it_and_the_next_waits_for_its_end(fleet):
    night = weekly("tue", starts="22:20", ends="06:00")
    fleet.rollout(freeze_windows=(night,), waves=[policy.Wave(count=1), ALL])
    [first] = [n for n in "abc" if fleet.told(n)[2] == "granted"]
    fleet.later(10 * 60)
    fleet.restarts(first)
    fleet.bakes(first, 600)
    assert fleet.verdicts() == ["passed"]
    to_the_morning(fleet)
    assert fleet.verdicts() == ["passed", None]


def test_nobody_joins_the_open_wave_in_it(fleet):
    night = weekly("tue", starts="22:20", ends="06:00")
    fleet.rollout(freeze_windows=(night,))
    fleet.later(10 * 60)
    fleet.node("late")
    fleet.launch("late")
    assert fleet.seen(decisions.WaveJoined) == []
    to_the_morning(fleet)
    assert fleet.told("late")[2] == "granted"


def test_after_completion_nothing_stands_anew_in_it(fleet):
    night = weekly("tue", starts="22:30", ends="06:00")
    fleet.rollout(freeze_windows=(night,))
    for node in "abc":
        fleet.restarts(node)
        fleet.bakes(node, 600)
    assert fleet.phase() == "completed"
    fleet.later(20 * 60)
    fleet.node("late")
    fleet.launch("late")
    assert fleet.told("late") == ("append", given.SAFE, "freeze")
    to_the_morning(fleet)
    assert fleet.told("late")[1] == given.TARGET


def test_another_rollout_is_not_held(fleet):
    fleet.rollout("r1", select=policy.Selector(units=("a",)), freeze_windows=(TONIGHT,))
    fleet.orders(commands.AbortRollout(rollout="r1", reason="not tonight"))
    assert [one for one in fleet.waits if one.code == "freeze_window"] == []
    fleet.rollout("r2", select=policy.Selector(units=("b",)))
    assert fleet.told("b")[2] == "granted"


def test_a_controller_that_was_away_finds_the_window_over(fleet):
    fleet.rollout(freeze_windows=(TONIGHT,))
    fleet.away((MORNING_US - fleet.now_us) / SECOND_US + 60)
    assert fleet.verdicts() == [None]


# Before it is proposed

PLAN = policy.RolloutPlan(
    id="r1",
    gate=given.GATE,
    sm="10.7",
    waves=(policy.Wave(count=1), ALL),
    bake_s=3600,
    freeze_windows=(TONIGHT,),
)


def foreseen(fleet, **changes):
    plan = replace(PLAN, **changes)
    return plan_ahead.foresee(copy.deepcopy(fleet.state), plan, fleet.now_us)


def test_the_duration_counts_the_window(fleet):
    shown = foreseen(fleet)
    to_morning_s = (MORNING_US - fleet.now_us) // SECOND_US
    assert [one["opens_at"] for one in shown["waves"]] == [
        "2023-11-15T06:00:00Z",
        "2023-11-15T07:00:00Z",
    ]
    assert [one["least_duration_s"] for one in shown["waves"]] == [3600, 7200]
    assert shown["least_duration_s"] == to_morning_s + 3 * 3600
    assert shown["frozen_until"] == "2023-11-15T06:00:00Z"


def test_a_bake_goes_through_a_window_and_the_next_grant_waits(fleet):
    noon = weekly("wed", starts="07:30", ends="12:00")
    shown = foreseen(fleet, freeze_windows=(TONIGHT, noon))
    assert [one["opens_at"][11:16] for one in shown["waves"]] == ["06:00", "07:00"]
    # the second wave bakes from 07:00 to 08:00, and its second unit from 12:00 to 13:00
    assert [one["least_duration_s"] for one in shown["waves"]] == [3600, 6 * 3600]


def test_outside_of_a_window_the_duration_is_as_without(fleet):
    later = foreseen(fleet, freeze_windows=(weekly("thu"),))
    assert later["least_duration_s"] == 3 * 3600
    assert later["frozen_until"] is None


@pytest.mark.parametrize(
    "bad",
    [
        once("2026-12-24", "2027-01-02"),
        once("2026-12-24T18:00:00", "2027-01-02T08:00:00Z"),
        once("2026-12-24T18:00:00Z", "2026-12-24T18:00:00Z"),
        once("2026-12-25T18:00:00Z", "2026-12-24T18:00:00Z"),
        once("18:00", "20:00"),
        once("", ""),
        replace(once("2026-12-24T18:00:00Z", "2026-12-25T18:00:00Z"), utc_offset="+01:00"),
        weekly("fri", starts="24:00"),
        weekly("fri", starts="8:00"),
        weekly("fri", starts="18:00:00"),
        weekly("fri", ends="2026-12-24T18:00:00Z"),
        weekly("fri", utc_offset="Europe/Berlin"),
        weekly("fri", utc_offset="+15:00"),
        weekly("fri", utc_offset="02:00"),
        weekly("fri", starts="\u0661\u0668:00"),
    ],
    ids=str,
)
def test_a_window_that_cannot_be_read_is_refused(bad):
    with pytest.raises(errors.RejectedError, match="freeze window") as refusal:
        plan_check.validate(replace(PLAN, freeze_windows=(bad,)), {given.GATE: policy.KIMI_K3})
    assert refusal.value.next_step


DAYS = windows.DAYS


@pytest.mark.parametrize(
    ("found", "taken"),
    [
        ((weekly(*DAYS, starts="00:00", ends="00:00"),), False),
        ((weekly(*DAYS, starts="07:00", ends="07:00"),), False),
        ((weekly(*DAYS), weekly(*DAYS, starts="08:00", ends="18:00")), False),
        ((weekly(*DAYS), weekly(*DAYS, starts="08:00", ends="17:59")), True),
        ((weekly(*DAYS[:6], starts="00:00", ends="00:00"),), True),
        ((weekly("sun", starts="23:00", ends="22:00"),), True),
        # The last of these ends on Monday, within a window that began on Sunday.
        (
            (
                weekly(*DAYS[:6], starts="12:00", ends="12:00"),
                weekly("sun", starts="12:00", ends="12:00"),
                weekly("sun", starts="20:00", ends="06:00"),
            ),
            False,
        ),
    ],
    ids=str,
)
def test_windows_that_leave_nothing_are_refused(found, taken):
    wrong = windows.problem(found)
    assert (wrong is None) is taken


def test_a_window_longer_than_a_wave_may_be_open_is_odd():
    plan = replace(PLAN, wave_timeout_s=8 * 3600)
    assert [one.code for one in plan_lint.remarks(plan)] == ["window_outlasts_wave"]
    assert plan_lint.remarks(replace(PLAN, wave_timeout_s=8 * 3600 + 1)) == []
    long = once("2026-12-24T18:00:00Z", "2027-01-02T08:00:00Z")
    plan = replace(PLAN, freeze_windows=(long,))
    assert [one.code for one in plan_lint.remarks(plan)] == ["window_outlasts_wave"]
