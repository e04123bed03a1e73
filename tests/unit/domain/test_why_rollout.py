"""`rollout why`: for each open thing whose move it is, since when, until when; unit by unit."""

from __future__ import annotations

from typing import Any

import pytest
from tests import given

from smgate.cli import rollout_lines
from smgate.domain import commands, policy, why, why_rollout, windows

NAMES = ("a", "b", "c", "d")


def told(fleet: given.Fleet) -> dict[str, Any]:
    return why_rollout.explain_rollout(fleet.state, "r1", fleet.now_us)


def waits(fleet: given.Fleet) -> dict[str, dict[str, Any]]:
    return {one["code"]: one for one in told(fleet)["waits"]}


def member(fleet: given.Fleet, node: str) -> dict[str, Any]:
    """What a member waits for; nothing once its outcome is good."""
    found = {one["unit"]: one for one in told(fleet)["members"]}
    return found.get(fleet.id(node), {})


@pytest.fixture
def fleet() -> given.Fleet:
    """A wave of four units is open; none was restarted."""
    made = given.Fleet().enforce().qualified()
    made.node(*NAMES)
    for name in NAMES:
        made.launch(name)
    made.rollout(bake_s=600, wave_timeout_s=86_400, max_in_flight=3)
    return made


def test_a_proposed_and_an_approved_one_wait_for_people(fleet: given.Fleet) -> None:
    plan = policy.RolloutPlan(
        id="r1", gate=given.GATE, sm="10.7", waves=(policy.Wave(percent=100),)
    )
    fresh = given.Fleet().enforce()
    fresh.orders(commands.ProposeRollout(plan=plan, reason="r"))
    proposed = waits(fresh)["rollout"]
    assert (proposed["owner"], proposed["since"]) == ("approver", why.iso(fresh.now_us))
    assert "another person than alice" in proposed["next_step"]
    fresh.orders(commands.ApproveRollout(rollout="r1", reason="r"), by="bob")
    assert waits(fresh)["rollout"]["next_step"] == "smgate rollout start r1"


def test_a_member_is_followed_from_its_grant_to_its_bake(fleet: given.Fleet) -> None:
    granted = why.iso(fleet.now_us)
    first = member(fleet, "a")
    assert (first["state"], first["owner"]) == ("waits_for_restart", "unit owner")
    assert (first["since"], first["wave"], first["late"]) == (granted, 0, False)
    assert first["until"] == why.iso(fleet.now_us + 86_400 * given.SECOND_US), "the wave's end"
    fleet.later(3600)
    fleet.launch("a")
    restarted = why.iso(fleet.now_us)
    assert member(fleet, "a")["state"] == "starts"
    assert member(fleet, "a")["since"] == restarted
    assert "0 of 1 ranks attest" in member(fleet, "a")["sentence"]
    fleet.applies("a")
    fleet.serves("a")
    fleet.bakes("a", 500)
    assert member(fleet, "a")["state"] == "bakes"
    assert "500 of 600 s" in member(fleet, "a")["sentence"]
    fleet.bakes("a", 100)
    assert member(fleet, "a") == {}


def test_a_grant_that_ends_before_the_wave_is_the_nearer_end(fleet: given.Fleet) -> None:
    fleet.orders(commands.PublishPolicy(policy=policy.Policy(grant_timeout_s=600), reason="soon"))
    assert member(fleet, "a")["until"] == why.iso(fleet.now_us + 600 * given.SECOND_US)


def test_a_member_without_a_grant_says_what_refuses_it(fleet: given.Fleet) -> None:
    for name in ("a", "b", "c"):
        fleet.restarts(name)
    fresh = given.Fleet().enforce().qualified()
    fresh.node(*NAMES)
    for name in NAMES:
        fresh.launch(name)
    fresh.rollout(max_in_flight=1)
    for name in NAMES:
        fresh.launch(name)
    refused = [one for one in told(fresh)["members"] if one["state"] == "not_granted"]
    assert {one["code"] for one in refused} <= {"max_in_flight"}
    assert all(one["owner"] == "controller" for one in refused)


@pytest.mark.parametrize(
    ("happens", "state", "owner"),
    [
        (lambda fleet: fleet.later(400, silent="a"), "silent", "operator"),
        (lambda fleet: fleet.effective("a", "marlin"), "other_runner", "unit owner"),
        (lambda fleet: fleet.instance("a", "unhealthy"), "does_not_serve", "unit owner"),
    ],
)
def test_a_member_in_trouble_says_which(
    fleet: given.Fleet, happens: Any, state: str, owner: str
) -> None:
    fleet.restarts("a")
    happens(fleet)
    assert (member(fleet, "a")["state"], member(fleet, "a")["owner"]) == (state, owner)
    assert member(fleet, "a")["next_step"]


def test_what_stands_against_the_next_wave_is_told_with_its_owner(fleet: given.Fleet) -> None:
    assert waits(fleet).keys() == {"rollout", "wave"}
    fleet.later(60)
    fleet.orders(commands.DeclareFreeze(id="x", reason="holidays"))
    freeze = waits(fleet)["freeze"]
    assert (freeze["owner"], freeze["since"], freeze["until"]) == (
        "approver",
        why.iso(fleet.now_us),
        None,
    )
    fleet.node("p9", pool=True)
    fleet.check("p9", outcome="failed")
    assert waits(fleet)["suspect"]["owner"] == "operator"


def test_evidence_that_grew_old_keeps_the_next_wave_and_says_so() -> None:
    fleet = given.Fleet(evidence_max_age_s=3600).enforce().qualified()
    fleet.node("a", "b")
    for name in ("a", "b"):
        fleet.launch(name)
    fleet.rollout(waves=(policy.Wave(count=1), policy.Wave(percent=100)), bake_s=0)
    [unit] = fleet.state.rollouts["r1"].waves[0].units
    ended = fleet.now_us + 3600 * given.SECOND_US
    fleet.later(4000)
    fleet.restarts(unit.partition(":")[0])
    old = waits(fleet)["evidence_old"]
    assert (old["owner"], old["since"], old["subject"]) == ("operator", why.iso(ended), given.KEY)
    assert told(fleet)["not_eligible"] == {"evidence_old": 1}


def test_a_person_reads_the_members_as_a_table_with_what_to_do(fleet: given.Fleet) -> None:
    fleet.restarts("a")
    lines = rollout_lines.why_lines(told(fleet))
    assert "    controller's move, since 2023-11-14 22:13:20Z, until 2023-12-14 22:13:20Z" in lines
    assert "    -> Nothing by itself: see its members, and what is next." in lines
    at = lines.index("Members of the open wave without a good outcome")
    assert lines[at + 1].split() == ["UNIT", "STATE", "MOVE", "OF", "SINCE", "UNTIL", "SAYS"]
    steps = [line for line in lines if line.startswith("  -> ")]
    assert "  -> bakes: Keep traffic on it: only reported intervals with requests count." in steps
    assert len(steps) == len({one["state"] for one in told(fleet)["members"]})
    many = told(fleet) | {"members": told(fleet)["members"] * 5}
    assert "  and 8 more (-o json)" in rollout_lines.why_lines(many)
    fleet.orders(commands.HaltRollout(rollout="r1", reason="enough"))
    assert told(fleet)["members"] == []


def test_a_window_of_its_plan_is_told_with_its_end() -> None:
    fleet = given.Fleet().enforce().qualified()
    fleet.node("a")
    fleet.launch("a")
    start, end = (why.iso(fleet.now_us + n * 3600 * given.SECOND_US) for n in (-1, 2))
    window = windows.FreezeWindow(starts=start, ends=end)
    fleet.rollout(freeze_windows=(window,))
    held = waits(fleet)["freeze_window"]
    assert (held["owner"], held["since"], held["until"]) == ("controller", start, end)
    fleet.later(2 * 3600)
    assert "freeze_window" not in waits(fleet)
