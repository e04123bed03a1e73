"""Why a unit waits whose change is held: not for what it was told before, which leads nowhere."""

import pytest
from tests import given
from tests.unit.domain import test_guard

from smgate.domain import why


@pytest.mark.parametrize(("value", "code"), [(None, "released"), (given.SAFE, "no_rollout")])
def test_what_new_rules_hold_says_that_it_is_held_and_what_to_do_about_that(value, code):
    fleet = given.Fleet().enforce().qualified()
    fleet.granted("a")
    test_guard.told_before(fleet, "a", value, code)
    test_guard.takes_over(fleet)
    shown = why.explain(fleet.state, fleet.id("a"), fleet.now_us)
    assert (shown["override"]["value"], shown["override"]["code"]) == (value, "change_held")
    assert fleet.told("a")[1:] == (value, "change_held")
    [row] = [one for one in shown["rules"] if one["state"] == "applies"]
    assert test_guard.change_id(fleet) in row["sentence"]
    assert row["next_step"].startswith("smgate change ls")


def test_a_unit_that_keeps_the_target_keeps_its_reason():
    fleet = given.Fleet().enforce().qualified()
    fleet.granted("a")
    fleet.node("b")
    fleet.launch("b", asked_runner="triton", asked_runner_in="argv")
    test_guard.told_before(fleet, "b", given.TARGET, "granted")
    test_guard.takes_over(fleet)
    assert test_guard.held(fleet) == [("no_cause", ["b"])]
    assert fleet.told("b") == ("append", given.TARGET, "granted")
