"""`build why`: which evidence, from which GPU sets, what is missing, and whose move it is."""

from __future__ import annotations

from typing import Any

import pytest
from tests import given

from smgate.cli import build_lines
from smgate.domain import why, why_build

NEWER = given.build(cute_dsl_version="4.2")


def told(fleet: given.Fleet, made: Any = given.BUILD) -> dict[str, Any]:
    return why_build.explain_key(fleet.state, given.key_of(made), fleet.now_us)


def moves(fleet: given.Fleet, made: Any = given.BUILD) -> dict[str, dict[str, Any]]:
    return {one["code"]: one for one in told(fleet, made)["moves"]}


@pytest.fixture
def fleet() -> given.Fleet:
    """A pool of four nodes, and a build that nobody has measured."""
    made = given.Fleet().enforce()
    made.node("p1", "p2", "p3", "p4", pool=True)
    made.launch("p1")
    return made


def test_an_unknown_key_says_how_many_gpu_sets_are_missing_and_who_starts_them(
    fleet: given.Fleet,
) -> None:
    fleet.passes("p1")
    fleet.launch("p2")
    missing = moves(fleet)["evidence_missing"]
    assert missing["owner"] == "operator"
    assert missing["sentence"].startswith("1 of 3 GPU sets of the pool passed")
    assert missing["sentence"].endswith("1 are being asked.")
    assert "on 2 more pool nodes" in missing["next_step"]
    asked = moves(fleet)["wanted_check"]
    assert asked["owner"] == "node"
    assert asked["until"] == why.iso(
        fleet.now_us + fleet.state.policy.check_timeout_s * given.SECOND_US
    )


def test_what_was_asked_is_told_with_what_came_of_it(fleet: given.Fleet) -> None:
    fleet.passes("p1")
    fleet.launch("p2")
    fleet.later(fleet.state.policy.check_timeout_s)
    fleet.launch("p3")
    since = why.iso(fleet.now_us)
    rows = [(one["node"], one["state"], one["purpose"]) for one in told(fleet)["asked"]]
    assert rows == [
        ("p3", "open", "qualify"),
        ("p1", "done", "qualify"),
        ("p2", "abandoned", "qualify"),
    ]
    assert told(fleet)["asked"][0]["since"] == since
    assert told(fleet)["asked"][1]["until"] is None


def test_each_gpu_set_says_whether_it_counts(fleet: given.Fleet) -> None:
    fleet.passes("p1")
    fleet.node("x")
    fleet.passes("x")
    counting = {one["node"]: (one["pool"], one["counts"]) for one in told(fleet)["results"]}
    assert counting == {"p1": (True, True), "x": (False, False)}


def test_a_qualified_key_says_until_when_and_an_old_one_whose_move_it_is(
    fleet: given.Fleet,
) -> None:
    fleet.passes("p1", "p2", "p3")
    since_us, age_s = fleet.now_us, fleet.state.policy.evidence_max_age_s
    answer = told(fleet)
    assert (answer["standing"], answer["since"]) == ("qualified", why.iso(since_us))
    assert answer["until"] == why.iso(since_us + age_s * given.SECOND_US)
    assert answer["moves"] == []
    fleet.later(age_s)
    assert moves(fleet) == {}
    fleet.later(1)
    assert moves(fleet)["evidence_old"]["owner"] == "operator"


def test_a_suspect_key_says_what_confirms_it_and_what_clears_it(fleet: given.Fleet) -> None:
    fleet.check("p1", outcome="failed")
    fleet.passes("p2")
    found = moves(fleet)
    assert found["suspect"]["until"] == why.iso(
        fleet.now_us + fleet.state.policy.confirm_timeout_s * given.SECOND_US
    )
    assert found["confirmation"]["sentence"].startswith("1 of 3 GPU sets of other chassis passed")
    assert "--node p1" in found["confirmation"]["next_step"]


def test_a_flaky_result_is_cleared_by_no_number_of_passes(fleet: given.Fleet) -> None:
    fleet.check("p1", outcome="failed")
    fleet.check("p1")
    assert moves(fleet).keys() == {"suspect", "flaky", "wanted_check"}
    assert moves(fleet)["flaky"]["owner"] == "approver"


def test_a_failed_key_waits_for_nobody_and_says_how_it_is_undone(fleet: given.Fleet) -> None:
    fleet.check("p1", outcome="failed")
    fleet.check("p2", outcome="failed")
    assert told(fleet)["standing"] == "failed"
    fleet.later(fleet.state.policy.check_timeout_s)
    assert moves(fleet).keys() == {"build_failed"}
    assert "build rule" in moves(fleet)["build_failed"]["next_step"]


def test_a_person_reads_the_moves_before_the_evidence(fleet: given.Fleet) -> None:
    fleet.passes("p1", "p2", "p3")
    fleet.launch("p4", build=NEWER)
    lines = build_lines.why_lines(told(fleet, NEWER))
    assert lines[0].startswith(f"kernel key {given.key_of(NEWER)} | unknown | SM 10.7, a2a none")
    titles = [
        "Whose move it is",
        "Asked to measure it",
        f"Nearest qualified key: {given.KEY}, which differs in",
        "Evidence: 0 of 3 GPU sets of the pool passed api_boundary, moe_mxfp4, in 0 of 1 domains",
        "Made of",
    ]
    places = [lines.index(one) for one in titles]
    assert places == sorted(places)
    assert "    operator's move, until somebody acts" in lines
    assert "  cute_dsl_version  4.2   unknown" in lines
    assert f"  -> smgate build accept {given.key_of(NEWER)} --like {given.KEY}" in lines


def test_a_person_reads_what_counts_and_what_is_wrong_with_the_rest(fleet: given.Fleet) -> None:
    fleet.passes("p2", gpu_uuids=("GPU-p2", "GPU-p2-1"))
    fleet.check("p1", outcome="failed")
    fleet.check("p1")
    lines = build_lines.why_lines(told(fleet))
    one, two = (line for line in lines if line.startswith(("  p1 ", "  p2 ")) and "yes" in line)
    assert "moe_mxfp4 failed (a_reason)" in one
    assert "flaky: moe_mxfp4" in one
    assert one.endswith("GPU-p1")
    assert two.endswith("GPU-p2 +1")
    fleet.check("p3", outcome="failed", negative_control="missed")
    assert "Counts for nothing" in build_lines.why_lines(told(fleet))
