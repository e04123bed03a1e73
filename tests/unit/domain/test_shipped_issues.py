"""The known issues that ship: each with a build that it matches and a near miss that it does not."""

import re

import pytest
from tests import given

from smgate.domain import context, genesis, issues, policy, rulings, shipped_issues

EACH = {issue.id: issue for issue in shipped_issues.ALL}

CASES = {
    # id: (a build it matches, a near miss); `sm` beside the fields of a build.
    "flashinfer-0.6.15-no-sm107": (
        {"sm": "10.7", "flashinfer_version": "0.6.15.post1"},
        {"sm": "10.3", "flashinfer_version": "0.6.15.post1"},
    ),
    "flashinfer-0.6.17-no-situ": (
        {"sm": "10.7", "flashinfer_version": "0.6.16.post4"},
        {"sm": "10.7", "flashinfer_version": "0.6.170"},
    ),
    "flashinfer-4569": (
        {"sm": "10.7", "flashinfer_version": "0.6.18+cu130"},
        {"sm": "10.7", "flashinfer_version": "0.6.18.post1"},
    ),
    "flashinfer-2569": (
        {"sm": "10.0", "driver_version": "570.195.03"},
        {"sm": "10.0", "driver_version": "580.126.09"},
    ),
    "sglang-35461": (
        {"sm": "12.0", "sglang_version": "0.5.23"},
        {"sm": "10.7", "sglang_version": "0.5.23"},
    ),
    "sglang-35554": (
        {"sm": "10.7", "sglang_version": "0.5.18"},
        {"sm": "10.7", "sglang_version": "0.5.24"},
    ),
    "sglang-33132": (
        {"sm": "10.3", "sglang_version": "0.5.17"},
        {"sm": "10.3", "sglang_version": "0.5.18"},
    ),
    "sglang-34340": ({"sm": "10.3"}, {"sm": "10.0"}),
    "sglang-34360": ({"sm": "10.3"}, {"sm": "10.7"}),
    "flashinfer-3197": ({"sm": "10.7"}, {"sm": "9.0"}),
    "flashinfer-4588": ({"sm": "10.3"}, {"sm": "10.0"}),
    "flashinfer-4486": (
        {"sm": "10.3", "flashinfer_version": "0.6.16.post4"},
        {"sm": "10.3", "flashinfer_version": "0.6.16.post3"},
    ),
    "flashinfer-5053": ({"sm": "10.0"}, {"sm": "12.0"}),
    "flashinfer-3466": ({"sm": "10.3"}, {"sm": "10.7"}),
    "flashinfer-2372": ({"sm": "10.7"}, {"sm": "12.1"}),
    "tokenspeed-284": (
        {"sm": "10.7", "disqualifying_env": ("FLASHINFER_DISABLE_VERSION_CHECK",)},
        {"sm": "10.7", "disqualifying_env": ("FLASHINFER_CUBIN_CHECKSUM_DISABLED",)},
    ),
}


def member(model=given.MODEL, *, sm="10.7", **build):
    """The one rank of a unit with this build."""
    fleet = given.Fleet()
    fleet.node("a", sm=sm)
    fleet.launch("a", sm=sm, build=given.build(**build), model=model)
    return context.of_unit(fleet.state, fleet.unit("a"), fleet.now_us).members[0]


def test_every_shipped_issue_has_its_case():
    assert set(CASES) == set(EACH)
    assert len(EACH) == len(shipped_issues.ALL)


@pytest.mark.parametrize("name", CASES)
def test_a_shipped_issue_matches_its_build_and_not_the_near_miss(name):
    matching, near = CASES[name]
    assert issues.matches(EACH[name], member(**matching)) == "yes"
    assert issues.matches(EACH[name], member(**near)) == "no"
    assert issues.matches(EACH[name], member(given.OTHER_MODEL, **matching)) == "no"


@pytest.mark.parametrize("issue", shipped_issues.ALL, ids=lambda one: one.id)
def test_a_shipped_issue_can_be_published_and_looked_up(issue):
    policy.validate_issue(issue)
    assert re.fullmatch(
        r"https://github\.com/[\w-]+/[\w-]+/(issues/\d+|pull/\d+|(blob|releases)/.+)", issue.url
    )
    number = re.fullmatch(r"[a-z]+-(\d+)", issue.id)
    if number:
        assert issue.url.endswith(f"/{number[1]}")
    assert issue.title.endswith(".")
    assert set(issue.match["architecture"]) == {given.K3}


@pytest.mark.parametrize("issue", shipped_issues.BLOCKING, ids=lambda one: one.id)
def test_what_blocks_names_an_exact_build(issue):
    """An SM, and versions beside it; a report without them informs."""
    assert issue.severity == "block"
    assert "sm" in issue.match
    assert {"flashinfer", "driver_branch", "sglang"} & set(issue.match)
    assert {one.severity for one in shipped_issues.INFORMING} == {"info"}


@pytest.mark.parametrize("version", ["0.7.1", "0.7.2", "0.7.2.post1", "0.7.4", "0.6.20", "0.6.19"])
@pytest.mark.parametrize("sm", ["10.0", "10.3", "10.7"])
def test_nothing_blocks_a_build_that_nobody_reported(version, sm):
    made = member(sm=sm, flashinfer_version=version)
    assert [o.id for o in shipped_issues.BLOCKING if issues.matches(o, made) != "no"] == []


def test_a_new_log_begins_with_the_gate_the_policy_and_every_shipped_issue():
    begun = genesis.events()
    assert [type(one) for one in begun[:2]] == [rulings.GatePublished, rulings.PolicyPublished]
    assert [one.issue for one in begun[2:]] == list(shipped_issues.ALL)
    assert given.Fleet().state.issues == EACH


def test_a_build_without_situ_gets_the_safe_value_though_everything_else_allows_it():
    """FlashInfer 0.6.17 on SM107: qualified by checks that were too weak, it is still stopped."""
    made = given.build(flashinfer_version="0.6.17")
    fleet = given.Fleet().enforce().qualified(made)
    fleet.node("a")
    fleet.launch("a", build=made)
    fleet.rollout()
    assert fleet.told("a") == (
        "append",
        given.SAFE,
        "known_issue:flashinfer-0.6.17-no-situ",
    )
