"""Cohorts: the published vectors, and that no unit is everybody's canary."""

import json
import math
import pathlib
from fractions import Fraction
from itertools import combinations

import pytest
from hypothesis import given, strategies as st

from smgate.domain import cohort, policy

PUBLISHED = json.loads(
    (pathlib.Path(__file__).parents[2] / "golden" / "cohort.json").read_text(encoding="utf-8")
)
UNITS = [f"node-{number:04}:{number:08x}" for number in range(1000)]


@pytest.mark.parametrize("vector", PUBLISHED["hashes"], ids=lambda v: f"{v['salt']}/{v['unit']}")
def test_a_units_place_is_what_is_published(vector):
    assert cohort.cohort_hash(vector["salt"], vector["unit"]) == int(vector["hash"], 16)


@pytest.mark.parametrize("vector", PUBLISHED["orders"], ids=lambda v: v["salt"])
def test_the_order_is_what_is_published(vector):
    given_in_any_order = sorted(vector["order"], reverse=True)
    assert cohort.in_cohort_order(vector["salt"], given_in_any_order) == vector["order"]


@pytest.mark.parametrize("vector", PUBLISHED["sizes"], ids=str)
def test_the_size_of_a_wave_is_what_is_published(vector):
    assert size_of(policy.Wave(**vector["wave"]), vector["eligible"]) == vector["size"]


def size_of(wave, eligible):
    """The size of a wave over units that weigh the same, whatever that is."""
    names = [f"u{number}" for number in range(eligible)]
    sizes = {
        len(cohort.next_members(wave, names, taken=(), weights=dict.fromkeys(names, weight)))
        for weight in (1, 8)
    }
    (size,) = sizes
    return size


@pytest.mark.parametrize("vector", PUBLISHED["weighted"], ids=lambda v: str(v["wave"]))
def test_the_members_by_weight_are_what_is_published(vector):
    found = cohort.next_members(
        policy.Wave(**vector["wave"]),
        vector["fresh"],
        taken=vector["taken"],
        weights=vector["weights"],
    )
    assert list(found) == vector["members"]


@pytest.mark.parametrize("vector", PUBLISHED["spread"], ids=lambda v: v["about"])
def test_the_order_over_domains_is_what_is_published(vector):
    assert cohort.spread(vector["order"], vector["domains"]) == vector["spread"]


@given(st.lists(st.sampled_from("vwxyz"), max_size=30))
def test_any_beginning_is_of_as_many_domains_as_can_be(racks):
    order = [str(number) for number in range(len(racks))]
    found = cohort.spread(order, {u: {rack} for u, rack in zip(order, racks, strict=True)})
    assert sorted(found) == sorted(order)
    for size in range(len(found) + 1):
        assert len({racks[int(u)] for u in found[:size]}) == min(size, len(set(racks)))


def places(salt):
    order = {unit: place for place, unit in enumerate(cohort.in_cohort_order(salt, UNITS))}
    return [order[unit] for unit in UNITS]


def rank_correlation(first, second):
    """Spearman's, of two orders without ties."""
    n = len(first)
    squares = sum((a - b) ** 2 for a, b in zip(first, second, strict=True))
    return 1 - 6 * squares / (n * (n * n - 1))


def test_the_orders_of_any_two_rollouts_are_unrelated():
    salts = ["r1", "r2", "r10", "r11", "k3-sm107", "k3-sm107-2"]
    for first, second in combinations(map(places, salts), 2):
        # About three standard deviations of 1 / sqrt(n - 1), and some air for fifteen pairs.
        assert abs(rank_correlation(first, second)) < 4 / math.sqrt(len(UNITS))


def test_over_many_rollouts_every_unit_is_a_canary_about_equally_often():
    units = UNITS[:20]
    first = [cohort.in_cohort_order(f"rollout-{n}", units)[0] for n in range(2000)]
    assert {unit for unit in units if 60 <= first.count(unit) <= 140} == set(units)


def test_the_order_of_units_does_not_depend_on_who_else_is_there():
    few = cohort.in_cohort_order("r1", UNITS[:100])
    many = cohort.in_cohort_order("r1", UNITS)
    assert [unit for unit in many if unit in set(few)] == few


@given(
    tenths=st.integers(1, 1000),
    eligible=st.integers(0, 5000),
)
def test_a_share_is_rounded_up_from_its_exact_value(tenths, eligible):
    size = size_of(policy.Wave(percent=tenths / 10), eligible)
    assert size == math.ceil(Fraction(tenths, 1000) * eligible)
    assert (size == 0) is (eligible == 0)
    assert size <= eligible
