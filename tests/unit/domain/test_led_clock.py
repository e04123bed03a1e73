"""The clock that stands still while nobody leads, and what people read of it."""

from tests import given

from smgate.domain import commands, waits, why, why_rollout

HOUR = 3600


def since(fleet, code):
    (found,) = (w for w in waits.collect(fleet.state, fleet.now_us) if w.code == code)
    return why_rollout.show_wait(fleet.state, found, fleet.now_us)["since"]


def test_since_is_the_time_on_the_wall_however_long_nobody_led_afterwards():
    fleet = given.Fleet()
    fleet.later(HOUR)
    fleet.away(2 * HOUR)
    fleet.orders(commands.DeclareFreeze(id="first", reason="r"))
    declared = why.iso(fleet.now_us)
    fleet.later(HOUR)
    assert since(fleet, "freeze") == declared
    fleet.away(3 * HOUR)
    fleet.away(5 * HOUR)
    fleet.later(HOUR)
    assert since(fleet, "freeze") == declared


def test_each_time_that_nobody_led_counts_for_what_began_before_it():
    fleet = given.Fleet()
    told = []
    for hours in (1, 2, 4):
        fleet.later(HOUR)
        led_us, now_us = fleet.state.led_us(fleet.now_us), fleet.now_us
        told.append((led_us, now_us))
        fleet.later(60)
        fleet.away(hours * HOUR)
    fleet.later(60)
    assert [fleet.state.wall_us(led_us) for led_us, _ in told] == [at_us for _, at_us in told]
    now_us = fleet.now_us
    assert fleet.state.wall_us(fleet.state.led_us(now_us)) == now_us


def test_what_was_reported_while_nobody_led_began_when_somebody_led_again():
    fleet = given.Fleet()
    fleet.later(HOUR)
    stood_us = fleet.state.led_us(fleet.now_us)
    fleet.away(2 * HOUR)
    assert fleet.state.wall_us(stood_us) == fleet.now_us
