"""A freeze that is over by itself: when, who says so, and what a person may still do."""

import pytest
from tests import given

from smgate.domain import break_glass, commands, decisions, planner, rulings, why_rollout
from smgate.domain.waits import SECOND_US

# The fleet's time begins on Tuesday, 2023-11-14 22:13:20 UTC.
UNTIL = "2023-11-15T08:00:00+01:00"
HOURS = 7 * 3600 - (22 * 3600 + 13 * 60 + 20) + 24 * 3600
"""Seconds from the beginning to its end."""


def declare(until=UNTIL, name="night"):
    return commands.DeclareFreeze(id=name, until=until, reason="nobody is awake")


@pytest.fixture
def fleet():
    made = given.Fleet().enforce().qualified()
    made.node("a")
    made.launch("a")
    return made


def test_nothing_starts_until_its_end_and_then_it_is_lifted_by_itself(fleet):
    fleet.orders(declare())
    fleet.rollout()
    fleet.later(HOURS - 1)
    assert fleet.verdicts() == []
    fleet.later(1)
    [lifted] = [one for one in fleet.history if isinstance(one.event, rulings.FreezeLifted)]
    assert (lifted.actor, lifted.event.id) == ("controller", "night")
    assert fleet.verdicts() == [None]
    assert fleet.told("a")[2] == "granted"
    assert fleet.seen(decisions.WaitTimedOut) == []


def test_its_end_is_compared_with_the_time_of_the_command_and_not_of_the_last_event(fleet):
    fleet.later(HOURS - 1)
    quiet_since_us = fleet.state.now_us
    fleet.now_us += 2 * SECOND_US  # nothing happens meanwhile
    assert fleet.state.now_us == quiet_since_us
    assert fleet.refuses(declare()) == "bad_time"
    assert fleet.state.freezes == {}


def test_the_leader_wakes_for_it(fleet):
    fleet.orders(declare())
    for _ in range(20):
        due_us = planner.plan(fleet.state, fleet.now_us).next_due_us
        if due_us is None or not fleet.state.freezes:
            break
        fleet.later((due_us - fleet.now_us) / SECOND_US)
    assert fleet.state.freezes == {}
    assert fleet.now_us == given.START_US + HOURS * SECOND_US


def test_it_is_a_wait_with_its_end(fleet):
    fleet.orders(declare())
    fleet.orders(declare(None, "incident"))
    shown = {one.subject: one for one in fleet.waits if one.code == "freeze"}
    ends = {
        name: why_rollout.show_wait(fleet.state, one, fleet.now_us)["until"]
        for name, one in shown.items()
    }
    assert ends == {"night": "2023-11-15T07:00:00Z", "incident": None}


def test_a_person_may_lift_it_before(fleet):
    fleet.orders(declare())
    fleet.orders(commands.LiftFreeze(id="night", reason="somebody is"))
    fleet.later(HOURS)
    assert len(fleet.seen(rulings.FreezeLifted)) == 1


def test_one_that_ended_while_nobody_led_is_lifted_at_the_return(fleet):
    fleet.orders(declare())
    fleet.rollout()
    fleet.away(HOURS + 60)
    assert fleet.state.freezes == {}
    assert fleet.verdicts() == [None]


@pytest.mark.parametrize(
    "until", ["", "tomorrow", "2023-11-15", "2023-11-15T08:00:00", "2023-11-14T22:13:20Z"]
)
def test_an_end_that_is_none_or_has_passed_is_refused(fleet, until):
    assert fleet.refuses(declare(until)) == "bad_time"


def test_the_same_again_is_so_already_and_another_end_is_refused(fleet):
    fleet.orders(declare())
    assert fleet.orders(declare("2023-11-15T07:00:00Z")) == ()
    assert fleet.refuses(declare(None)) == "freeze_exists"
    assert fleet.refuses(declare("2023-11-15T09:00:00Z")) == "freeze_exists"


def test_one_lifted_by_break_glass_comes_back_with_its_end(fleet):
    fleet.orders(declare())
    event = rulings.FreezeLifted(id="night", reason="alone")
    [back] = break_glass.undo_of(fleet.state, event).values()
    assert (back.id, back.until) == ("night", "2023-11-15T07:00:00Z")
