"""The SM of a GPU may be read after the launch that holds it, and may be read anew."""

from tests import given


def test_an_sm_that_a_node_reports_after_the_launch_counts_from_then_on():
    fleet = given.Fleet().enforce().qualified()
    fleet.node("a", sm=None)
    fleet.launch("a", sm=None)
    assert fleet.told("a") == ("keep", None, "sm_unknown")
    fleet.node("a", sm="10.7")
    assert fleet.told("a") == ("append", given.SAFE, "no_rollout")
    fleet.node("a", sm="8.0")
    assert fleet.told("a") == ("keep", None, "observe")
    fleet.node("a", sm=None)  # a driver that does not answer takes nothing back
    assert fleet.told("a") == ("keep", None, "observe")
