"""`build why` of a key that can never be qualified as things stand: what the pool lacks, what differs."""

from dataclasses import replace

import pytest
from tests import given

from smgate.domain import commands, why_build

DRIVER = "580.95.05"


@pytest.fixture
def fleet():
    """A pool of three with one driver branch, and a server whose key nobody tested."""
    made = given.Fleet().enforce()
    made.node(*given.POOL, pool=True, driver_version=DRIVER)
    made.launch("p1")
    made.node("a")
    return made


def told(fleet, key=given.KEY):
    return why_build.explain_key(fleet.state, key, fleet.now_us)


def lacks(fleet, key=given.KEY):
    found = told(fleet, key)
    assert found["can_never_qualify_as_things_stand"] is bool(found["pool_lacks"])
    assert all(one["sentence"] in found["sentence"] for one in found["pool_lacks"])
    assert all(one["next_step"] for one in found["pool_lacks"])
    return {one["field"]: (one["needed"], one["pool_has"]) for one in found["pool_lacks"]}


def test_a_key_that_the_pool_can_make_lacks_nothing(fleet):
    assert lacks(fleet) == {}
    assert told(fleet)["sentence"] == f"Kernel key {given.KEY} is unknown."


def test_a_driver_branch_that_no_pool_node_has_is_named(fleet):
    newer = given.build(driver_version="590.12")
    fleet.launch("a", build=newer)
    assert lacks(fleet, given.key_of(newer)) == {"driver_branch": ("590", ["580"])}
    fleet.node("p1", pool=True, driver_version="590.48")
    assert lacks(fleet, given.key_of(newer)) == {}


def test_a_driver_that_was_not_reported_may_be_the_right_one(fleet):
    newer = given.build(driver_version="590.12")
    fleet.launch("a", build=newer)
    fleet.node("p1", pool=True)
    assert lacks(fleet, given.key_of(newer)) == {}


def test_an_sm_that_no_pool_node_has_is_named(fleet):
    fleet.launch("a", gpus=(given.values.Gpu(uuid="GPU-x", sm="12.0"),))
    key = given.key_of(sm="12.0")
    assert lacks(fleet, key) == {"sm": ("12.0", ["10.7"])}
    fleet.node("p2", pool=True, sm="12.0", driver_version=DRIVER)
    assert "sm" not in lacks(fleet, key)


def test_without_a_pool_nothing_can_be_qualified():
    fleet = given.Fleet()
    fleet.node("a")
    fleet.launch("a")
    assert lacks(fleet) == {"sm": ("10.7", [])}
    fleet.node("p1", pool=True)
    assert "sm" not in lacks(fleet)


def test_a_retired_pool_node_is_none(fleet):
    for name in given.POOL:
        fleet.state.nodes[name].retired = True
    assert lacks(fleet) == {"sm": ("10.7", [])}


def test_a_layout_that_the_pool_never_ran_is_named(fleet):
    wide = replace(given.LAYOUT, tp=32, ep=32)
    fleet.launch("a", layout=wide)
    key = given.key_of(layout=wide)
    assert list(lacks(fleet, key)) == ["layout"]
    needed, has = lacks(fleet, key)["layout"]
    assert "experts_per_rank 28" in needed
    assert ["experts_per_rank 896" in one for one in has] == [True]
    fleet.launch("p2", layout=wide, build=given.build(sglang_version="0.5.22"))
    assert lacks(fleet, key) == {}


def test_what_the_pool_tested_it_can_test(fleet):
    newer = given.build(driver_version="590.12")
    fleet.launch("a", build=newer)
    fleet.passes("p1", made=newer)
    assert lacks(fleet, given.key_of(newer)) == {}


def test_a_key_that_is_qualified_lacks_nothing_and_has_no_nearest(fleet):
    fleet.passes(*given.POOL)
    fleet.node(*given.POOL, pool=False)
    found = told(fleet)
    assert (found["pool_lacks"], found["nearest_qualified"]) == ([], None)


def test_the_nearest_qualified_key_and_what_differs_are_shown(fleet):
    fleet.passes(*given.POOL)
    fleet.passes(*given.POOL, made=given.build(flashinfer_version="0.7.3", cuda_toolkit="13.1"))
    newer = given.build(driver_version="590.12")
    fleet.launch("a", build=newer)
    assert told(fleet, given.key_of(newer))["nearest_qualified"] == {
        "kernel_key": given.KEY,
        "differs": {"driver_branch": {"this": "590", "that": "580"}},
        "may_be_accepted": False,
    }


def test_a_nearest_key_that_may_be_accepted_is_said_to_be_one_and_is(fleet):
    fleet.passes(*given.POOL)
    ahead = given.build(jit_cache_version="0.7.2")
    fleet.launch("a", build=ahead)
    nearest = told(fleet, given.key_of(ahead))["nearest_qualified"]
    assert nearest["may_be_accepted"]
    assert fleet.orders(
        commands.AcceptBuild(
            kernel_key=given.key_of(ahead), like=nearest["kernel_key"], reason="the same"
        )
    )


def test_where_nothing_is_qualified_there_is_no_nearest_key(fleet):
    assert told(fleet)["nearest_qualified"] is None


def test_a_key_of_the_same_sm_is_nearer_than_any_of_another(fleet):
    fleet.passes(*given.POOL, sm="10.3")
    far = given.build(flashinfer_version="0.7.3", cuda_toolkit="13.1", cute_dsl_version="4.3")
    fleet.passes(*given.POOL, made=far)
    assert told(fleet)["nearest_qualified"]["kernel_key"] == given.key_of(far)
