"""Who is in a wave: by GPUs, over failure domains, and who comes late."""

import pytest
from tests import given

from smgate.domain import cohort, policy, values


def server(fleet, node, *, gpus=1, rack="r1", chassis=None):
    """A server of some GPUs on a node that stands somewhere."""
    held = tuple(values.Gpu(uuid=f"GPU-{node}-{n}", sm="10.7") for n in range(gpus))
    fleet.node(node, gpus=held, rack=rack, chassis=chassis)
    fleet.launch(node, gpus=held)


@pytest.fixture
def fleet():
    return given.Fleet().enforce().qualified()


def members(fleet, wave=0, rollout="r1"):
    return [unit.partition(":")[0] for unit in fleet.state.rollouts[rollout].waves[wave].units]


def in_order(fleet, nodes, rollout="r1"):
    return [u.partition(":")[0] for u in cohort.in_cohort_order(rollout, map(fleet.id, nodes))]


# By GPUs


@pytest.mark.parametrize("large", ["a", "b", "c", "d"])
def test_a_share_is_of_gpus(fleet, large):
    for node in "abcd":
        server(fleet, node, gpus=8 if node == large else 1)
    order = in_order(fleet, "abcd")
    fleet.rollout(waves=[policy.Wave(percent=50)])
    assert members(fleet) == order[: order.index(large) + 1]


def test_a_count_is_of_units(fleet):
    for number, node in enumerate("abcd"):
        server(fleet, node, gpus=8**number)
    fleet.rollout(waves=[policy.Wave(count=2)])
    assert members(fleet) == in_order(fleet, "abcd")[:2]


# Over failure domains


@pytest.mark.parametrize(("spread_by", "racks"), [("rack", 3), ("chassis", None), ("none", None)])
def test_a_wave_takes_units_of_as_many_domains_as_it_can(fleet, spread_by, racks):
    nodes = "abcdefghi"
    for node in nodes:
        server(fleet, node)
    order = in_order(fleet, nodes)
    place = dict.fromkeys(order[:7], "r1") | {order[7]: "r2", order[8]: "r3"}
    chassis = dict.fromkeys(order[:8], "c1") | {order[8]: "c2"}
    for node in nodes:
        fleet.node(
            node,
            gpus=(values.Gpu(uuid=f"GPU-{node}-0", sm="10.7"),),
            rack=place[node],
            chassis=chassis[node],
        )
    fleet.rollout(waves=[policy.Wave(count=3)], spread_by=spread_by)
    found = members(fleet)
    if spread_by == "rack":
        assert found == [order[0], order[7], order[8]]
        assert len({place[node] for node in found}) == racks
    elif spread_by == "chassis":
        assert found == [order[0], order[8], order[1]]
    else:
        assert found == order[:3]


def test_a_chassis_of_no_known_rack_is_a_domain_of_its_own(fleet):
    for node in "abc":
        server(fleet, node)
    order = in_order(fleet, "abc")
    server(fleet, order[2], rack=None)
    fleet.rollout(waves=[policy.Wave(count=2)], spread_by="rack")
    assert members(fleet) == [order[0], order[2]]
