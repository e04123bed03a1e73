"""What a known issue matches now: units and builds, and the units of which nobody can tell."""

import pytest
from tests import given

from smgate.domain import commands, issues, matching, policy

ZEROS = policy.KnownIssue(
    id="fi-9", title="zeros", match={"sm": ("10.7",), "flashinfer": ("0.7.1", "0.7.1.*")}
)


@pytest.fixture
def fleet():
    """Two units on the build in question, one on another, one that did not say, one elsewhere."""
    made = given.Fleet().enforce()
    for node in "abcd":
        made.node(node)
    made.node("e", sm="10.0")
    for node in "ab":
        made.launch(node, build=given.build(flashinfer_version="0.7.1"))
    made.launch("c")
    made.launch("d", build=given.build(flashinfer_version=None))
    made.launch("e", sm="10.0", build=given.build(flashinfer_version="0.7.1"))
    return made


def reach(fleet, issue=ZEROS):
    return issues.reach(fleet.state, issue, now_us=fleet.now_us)


def test_units_that_match_and_units_of_which_nobody_can_tell(fleet):
    found = reach(fleet)
    assert found.units == tuple(sorted(fleet.unit(node).id for node in "ab"))
    assert found.unknown_units == (fleet.unit("d").id,)


def test_builds_are_told_apart_and_the_most_frequent_comes_first(fleet):
    fleet.node("f")
    fleet.launch("f", build=given.build(flashinfer_version="0.7.1.post1", driver_version="590.1"))
    first, second = reach(fleet).builds.items()
    assert (first[0].flashinfer, first[0].sm, first[0].driver) == ("0.7.1", "10.7", "580.95.05")
    assert first[0].kernel_key == given.key_of(given.build(flashinfer_version="0.7.1"))
    assert (len(first[1]), len(second[1])) == (2, 1)
    assert (second[0].flashinfer, second[0].driver) == ("0.7.1.post1", "590.1")


def test_the_reach_is_that_of_the_rule_that_stops(fleet):
    """Every unit that the published issue stops was in its reach, and no other."""
    before = reach(fleet)
    fleet.orders(commands.PublishIssue(issue=ZEROS, reason="read it"))
    stopped = {
        name
        for name, unit in fleet.state.units.items()
        if unit.override is not None and unit.override.code == "known_issue:fi-9"
    }
    assert stopped == set(before.units)
    assert reach(fleet) == before


def test_a_unit_that_is_gone_is_in_no_reach(fleet):
    """Its GPUs were taken over by a larger launch, of another build."""
    gone = fleet.unit("a").id
    gpus = tuple(given.values.Gpu(uuid=uuid, sm="10.7") for uuid in ("GPU-a", "GPU-a2"))
    fleet.launch("a", gpus=gpus)
    assert not fleet.state.units[gone].live
    assert reach(fleet).units == (fleet.unit("b").id,)


def test_an_issue_that_nothing_matches_reaches_nothing(fleet):
    nobody = policy.KnownIssue(id="x", title="t", match={"sglang": ("0.0.1",)})
    assert reach(fleet, nobody) == issues.Reach(units=(), unknown_units=(), builds={})


def test_verdicts_are_kept_and_made_anew_when_the_issues_change(fleet):
    """A kept answer never outlives the set of issues it was given for."""
    unit = fleet.unit("a").id
    assert fleet.state.units[unit].override.code == "no_rollout"
    fleet.orders(commands.PublishIssue(issue=ZEROS, reason="read it"))
    assert fleet.state.units[unit].override.code == "known_issue:fi-9"
    narrower = policy.KnownIssue(id="fi-9", title="zeros", match={"flashinfer": ("0.7.0",)})
    fleet.orders(commands.PublishIssue(issue=narrower, reason="it was another"))
    assert fleet.state.units[unit].override.code == "no_rollout"
    fleet.orders(commands.PublishIssue(issue=ZEROS, reason="it was not"))
    fleet.orders(commands.WithdrawIssue(issue_id="fi-9", reason="fixed"))
    assert fleet.state.units[unit].override.code == "no_rollout"


def said(asked, reading):
    return asked.verdicts(reading, lambda: reading)


def test_what_is_kept_has_a_bound_and_changes_no_answer():
    asked = matching.Blocking((ZEROS,))
    readings = [
        tuple(
            {"sm": ("10.7",), "flashinfer": (f"0.7.{n}",)}.get(name) for name in policy.MATCH_FIELDS
        )
        for n in range(matching.KEPT_MAX + 10)
    ]
    for reading in readings:
        said(asked, reading)
    assert len(asked._kept) <= matching.KEPT_MAX
    assert said(asked, readings[1]).matching == ("fi-9",)
    assert said(asked, readings[2]).matching == ()
    assert asked == matching.Blocking((ZEROS,))
    unread = (None,) * len(policy.MATCH_FIELDS)
    assert said(asked, unread) == matching.Verdicts(matching=(), unknown=("fi-9",))


def test_an_issue_that_informs_stops_nothing(fleet):
    informs = policy.KnownIssue(id="i", title="t", severity="info", match={"sm": ("10.7",)})
    fleet.orders(commands.PublishIssue(issue=informs, reason="read it"))
    assert fleet.unit("a").override.code == "no_rollout"
    assert matching.blocking([informs, ZEROS]).issues == (ZEROS,)
