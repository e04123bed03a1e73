"""The change guard: new rules are planned in shadow, and too much at once waits for a person."""

from dataclasses import replace

import pytest
from tests import given

from smgate.domain import changes, commands, decisions, policy, rules, rulings, shadow, walk

OLD = "0"
OTHER = "another"


def takes_over(fleet, version=rules.RULES_VERSION):
    """A new leader takes over, with these rules."""
    taken = decisions.LeadershipTaken(
        epoch=fleet.state.epoch + 1, holder="c1", away_us=0, rules_version=version
    )
    follows = shadow.on_new_rules(fleet.state, version=version, now_us=fleet.now_us)
    for event in (taken, *follows):
        fleet.record(event, "controller")
    if version == rules.RULES_VERSION:
        fleet.settle()
    return follows


def told_before(fleet, node, value, code, *, version=OLD):
    """A release with other rules led until now and told a unit this."""
    if fleet.state.guard.rules_version != version:
        takes_over(fleet, version)
    form = "untouched" if value is None else "append"
    standing = fleet.override(node)
    said = replace(
        standing, form=form, value=value, code=code, rules_version=version, launch_ids=()
    )
    fleet.record(said, "controller")


def held(fleet):
    """The changes that wait, as (code, unit names)."""
    return [
        (c.code, sorted(unit.partition(":")[0] for unit in c.units))
        for c in fleet.state.changes.values()
        if c.open
    ]


def change_id(fleet):
    return next(c.id for c in fleet.state.changes.values() if c.open)


def accept(fleet):
    return fleet.orders(commands.AcceptChange(change=change_id(fleet), reason="read it"), by="bob")


@pytest.fixture
def fleet():
    """A qualified key, a unit that was granted it, and one that SGLang's choice is left alone on."""
    made = given.Fleet().enforce().qualified()
    made.granted("a")
    made.node("b")
    made.launch("b", asked_runner="triton", asked_runner_in="argv")
    assert made.told("b") == ("untouched", None, "explicit_choice")
    return made


# New rules


def test_new_rules_end_what_the_ones_before_held_and_no_other_change(fleet):
    told_before(fleet, "a", given.SAFE, "no_rollout")
    takes_over(fleet)
    asked = commands.PinUnit(unit="b", direction="on", reason="r")
    fleet.alone(asked)
    takes_over(fleet, OTHER)
    ends = {c.kind: c.ended for c in fleet.state.changes.values() if c.ended or c.kind == "asked"}
    assert ends == {"held": "overtaken", "asked": None}


@pytest.mark.parametrize(
    ("code", "value", "would"),
    [
        ("no_rollout", given.SAFE, "At the next start 1 unit would get the target."),
        ("granted", given.TARGET, None),
    ],
)
def test_what_new_rules_would_do_is_said_as_effects(fleet, code, value, would):
    told_before(fleet, "a", value, code)
    takes_over(fleet)
    found = [c.would for c in fleet.state.changes.values() if c.kind == "held"]
    assert found == ([] if would is None else [would])


def test_a_leader_with_the_rules_of_the_one_before_says_nothing_about_them(fleet):
    assert takes_over(fleet) == ()
    assert takes_over(fleet) == ()
    assert held(fleet) == []


def test_new_rules_that_decide_the_same_are_recorded_and_hold_nothing(fleet):
    takes_over(fleet, OLD)
    assert takes_over(fleet) == (decisions.RulesChanged(before=OLD, after=rules.RULES_VERSION),)


def test_new_rules_that_would_widen_are_held_and_the_unit_keeps_what_it_was_told(fleet):
    told_before(fleet, "a", given.SAFE, "no_rollout")
    takes_over(fleet)
    assert held(fleet) == [("no_cause", ["a"])]
    assert fleet.told("a") == ("append", given.SAFE, "change_held")
    (difference,) = fleet.state.changes[change_id(fleet)].differences
    assert (difference.before, difference.before_code) == (given.SAFE, "no_rollout")
    assert (difference.after, difference.after_code) == (given.TARGET, "granted")


def test_new_rules_that_would_leave_a_unit_to_sglang_are_held(fleet):
    told_before(fleet, "b", given.SAFE, "no_rollout")
    takes_over(fleet)
    assert held(fleet) == [("no_cause", ["b"])]
    fleet.launch("b", asked_runner="triton", asked_runner_in="argv")
    assert (fleet.decided("b").value, fleet.decided("b").code) == (given.SAFE, "change_held")


def test_what_moves_towards_the_safe_value_is_never_delayed(fleet):
    fleet.node("c")
    fleet.launch("c")
    told_before(fleet, "c", given.TARGET, "granted")
    takes_over(fleet)
    assert held(fleet) == []
    assert fleet.told("c")[:2] == ("append", given.SAFE)


def test_a_person_accepts_and_the_new_rules_are_followed(fleet):
    told_before(fleet, "a", given.SAFE, "no_rollout")
    takes_over(fleet)
    accept(fleet)
    assert fleet.told("a") == ("append", given.TARGET, "granted")
    assert held(fleet) == []


def test_a_launch_of_a_held_unit_is_told_what_it_was_told(fleet):
    told_before(fleet, "a", given.SAFE, "no_rollout")
    takes_over(fleet)
    fleet.restarts("a")
    assert fleet.decided("a").value == given.SAFE
    assert fleet.decided("a").code == "change_held"
    fleet.restarts("a")
    assert fleet.decided("a").value == given.SAFE


def test_a_launch_of_another_build_is_decided_anew_and_never_gets_the_target(fleet):
    fleet.node("c")
    fleet.launch("c")
    other = given.build(flashinfer_version="0.7.3")
    fleet.qualified(other)
    fleet.orders(commands.PinUnit(unit="c", direction="on", reason="measured"))
    told_before(fleet, "c", None, "layout_not_covered")
    takes_over(fleet)
    assert held(fleet) == [("no_cause", ["c"])]
    fleet.launch("c", build=other)
    assert fleet.decided("c").value == given.SAFE
    assert fleet.decided("c").code == "change_held"


@pytest.mark.parametrize(
    ("order", "code"),
    [
        (lambda unit: commands.PinUnit(unit=unit, direction="off", reason="r"), "pinned_off"),
        (lambda unit: commands.DisableGate(gate=given.GATE, reason="r"), "gate_disabled"),
    ],
)
def test_what_a_person_takes_back_of_a_held_unit_is_taken_back_at_once(fleet, order, code):
    told_before(fleet, "b", given.TARGET, "granted")
    takes_over(fleet)
    assert held(fleet) == [("no_cause", ["b"])]
    fleet.orders(commands.AdoptFlag(unit="b", reason="ours"))
    fleet.orders(order("b"))
    assert fleet.told("b") == ("append", given.SAFE, code)


def test_a_fact_that_moves_a_held_unit_elsewhere_is_followed(fleet):
    told_before(fleet, "b", given.SAFE, "no_rollout")
    takes_over(fleet)
    fleet.launch("b", platform="rocm")
    assert fleet.decided("b").value is None
    assert fleet.decided("b").code == "not_cuda"


def test_a_value_that_sglang_would_not_start_with_is_not_kept(fleet):
    fleet.node("c")
    fleet.launch("c", asked_a2a="deepep")
    told_before(fleet, "c", given.SAFE, "no_rollout")
    takes_over(fleet)
    assert held(fleet) == [("no_cause", ["c"])]
    assert fleet.told("c") == ("untouched", None, "layout_not_covered")


def test_going_back_to_the_rules_before_ends_what_they_do_not_say(fleet):
    told_before(fleet, "a", given.SAFE, "no_rollout")
    (_, plan) = takes_over(fleet, OTHER)
    assert plan.units == (fleet.id("a"),)
    fleet.record(replace(fleet.override("a"), value=given.TARGET, code="granted"), "controller")
    takes_over(fleet)
    assert held(fleet) == []
    ended = [c.ended for c in fleet.state.changes.values() if c.kind == "held"]
    assert ended == ["overtaken"]
    assert fleet.state.guard.held == {}


def test_a_third_version_of_the_rules_holds_anew(fleet):
    told_before(fleet, "a", given.SAFE, "no_rollout")
    takes_over(fleet, OTHER)
    takes_over(fleet)
    assert held(fleet) == [("no_cause", ["a"])]
    assert fleet.told("a") == ("append", given.SAFE, "change_held")


def test_what_the_rules_would_do_again_at_once_cannot_be_withdrawn(fleet):
    told_before(fleet, "a", given.SAFE, "no_rollout")
    takes_over(fleet)
    withdraw = commands.WithdrawChange(change=change_id(fleet), reason="no")
    assert fleet.refuses(withdraw) == "still_planned"
    fleet.orders(commands.PinUnit(unit="a", direction="off", reason="not yet"))
    fleet.orders(withdraw)
    assert held(fleet) == []
    assert fleet.told("a") == ("append", given.SAFE, "pinned_off")


def test_a_change_shows_what_each_unit_was_told_and_would_be(fleet):
    told_before(fleet, "a", given.SAFE, "no_rollout")
    takes_over(fleet)
    shown = changes.show(fleet.state, fleet.state.changes[change_id(fleet)], fleet.now_us)
    assert shown["differences"] == [
        {
            "unit": fleet.id("a"),
            "before": given.SAFE,
            "before_code": "no_rollout",
            "after": given.TARGET,
            "after_code": "granted",
        }
    ]
    assert "rules" in shown["sentence"].lower()


# Too much at once


def crowd(size, **numbers):
    """Servers that wait for a rollout on a qualified key, the policy allowing three changes."""
    fleet = given.Fleet(change_limit_units=3, **numbers).enforce().qualified()
    names = [f"n{number}" for number in range(size)]
    fleet.node(*names)
    for name in names:
        fleet.launch(name)
    return fleet, names


def values_of(fleet, names):
    return {fleet.told(name)[1] for name in names}


def test_a_plan_within_the_limit_is_not_held():
    fleet, names = crowd(3)
    fleet.rollout()
    assert held(fleet) == []
    assert values_of(fleet, names) == {given.TARGET}


def test_a_plan_beyond_the_limit_is_held_whole():
    fleet, names = crowd(4)
    fleet.rollout()
    assert held(fleet) == [("change_limit", names)]
    assert {fleet.told(name) for name in names} == {("append", given.SAFE, "change_held")}
    assert fleet.seen(decisions.Granted) == []
    decided = rules.decide_unit(fleet.state, fleet.id("n0"), fleet.now_us)
    assert decided.refusals[0][0] == "change_held"


def test_an_accepted_plan_is_carried_out_whole():
    fleet, names = crowd(4)
    fleet.rollout()
    accept(fleet)
    assert values_of(fleet, names) == {given.TARGET}
    assert fleet.state.guard.let_through == set()


def test_the_limit_is_of_a_window():
    fleet, names = crowd(4)
    fleet.rollout(waves=(policy.Wave(count=2), policy.Wave(percent=100)), bake_s=100)
    first = [name for name in names if fleet.told(name)[1] == given.TARGET]
    for name in first:
        fleet.restarts(name)
        fleet.bakes(name, 100)
    assert len(first) == 2
    assert held(fleet) == [("change_limit", sorted(set(names) - set(first)))]


def test_changes_of_an_earlier_window_do_not_count():
    fleet, names = crowd(4)
    fleet.rollout(waves=(policy.Wave(count=2), policy.Wave(percent=100)), bake_s=100)
    fleet.later(600)
    for name in [name for name in names if fleet.told(name)[1] == given.TARGET]:
        fleet.restarts(name)
        fleet.bakes(name, 100)
    assert held(fleet) == []
    assert values_of(fleet, names) == {given.TARGET}


def test_lifting_what_suspends_many_grants_is_held_and_suspending_them_is_not():
    fleet, names = crowd(6)
    fleet.rollout()
    accept(fleet)
    fleet.later(600)
    fleet.orders(commands.DisableGate(gate=given.GATE, reason="a rumour"))
    assert values_of(fleet, names) == {given.SAFE}
    fleet.orders(commands.EnableGate(gate=given.GATE, reason="no truth in it"))
    assert held(fleet) == [("change_limit", names)]
    assert {fleet.told(name) for name in names} == {("append", given.SAFE, "change_held")}
    assert "disabled" not in fleet.override("n0").sentence, "it is enabled"
    accept(fleet)
    assert values_of(fleet, names) == {given.TARGET}


def test_a_server_that_starts_while_its_plan_is_held_gets_the_safe_value():
    fleet, names = crowd(4)
    fleet.rollout()
    fleet.launch(names[0])
    assert fleet.decided(names[0]).value == given.SAFE
    accept(fleet)
    fleet.launch(names[0])
    assert fleet.decided(names[0]).value == given.TARGET


def test_a_plan_whose_rollout_ended_waits_no_more():
    fleet, names = crowd(4)
    fleet.rollout()
    fleet.orders(commands.AbortRollout(rollout="r1", reason="too much"))
    assert held(fleet) == []
    assert {fleet.told(name)[2] for name in names} == {"no_rollout"}


def test_hands_off_by_a_person_is_never_too_much_at_once():
    fleet, names = crowd(6)
    fleet.orders(commands.SetGateMode(gate=given.GATE, sm="10.7", mode="observe", reason="look"))
    assert held(fleet) == []
    assert {fleet.told(name)[0] for name in names} == {"keep"}


def test_a_held_plan_is_said_once_and_waits_with_an_owner_and_a_timer():
    fleet, _ = crowd(4, change_timeout_s=60)
    fleet.rollout()
    (waiting,) = [wait for wait in fleet.waits if wait.code == "change_held"]
    assert waiting.owner == "approver"
    fleet.later(61)
    (timed_out,) = [e for e in fleet.seen(decisions.WaitTimedOut) if e.code == "change_held"]
    assert timed_out.subject == change_id(fleet)
    assert len(fleet.seen(decisions.ChangeHeld)) == 1


def test_a_launch_while_the_controller_was_away_has_itself_for_a_cause(fleet):
    told_before(fleet, "b", given.SAFE, "no_rollout")
    fleet.launch("b", asked_runner="triton", asked_runner_in="argv", settled=False)
    assert takes_over(fleet)[1:] == ()
    assert fleet.decided("b").code == "explicit_choice"


def test_the_walk_through_the_table_ends_with_what_holds_it(fleet):
    told_before(fleet, "a", given.SAFE, "no_rollout")
    takes_over(fleet)
    rows = walk.rows(rules.decide_unit(fleet.state, fleet.id("a"), fleet.now_us))
    (applies,) = [row for row in rows if row.state == "applies"]
    assert applies == rows[-1]
    assert "keeps what it was told" in applies.sentence
    following = [row.codes for row in rows if row.state == "would_be_next"]
    assert following == [("granted",), ("change_held",)]


def test_a_plan_that_is_too_much_and_that_nobody_wants_any_more_waits_no_more():
    fleet, _ = crowd(6)
    fleet.rollout()
    fleet.orders(commands.DisableGate(gate=given.GATE, reason="a rumour"))
    assert held(fleet) == []
    (gone,) = fleet.seen(rulings.ChangeWithdrawn)
    assert gone.code == "no_longer_needed"


def test_a_plan_of_which_something_is_still_wanted_waits():
    fleet, names = crowd(6)
    fleet.rollout()
    for name in names[1:]:
        fleet.orders(commands.ExcludeUnit(unit=name, reason="a benchmark"))
    assert held(fleet) == [("change_limit", names)]
    fleet.orders(commands.ExcludeUnit(unit=names[0], reason="a benchmark"))
    assert held(fleet) == []


def test_what_new_rules_would_change_waits_though_it_is_not_planned_for_a_time(fleet):
    told_before(fleet, "a", given.SAFE, "build_suspect")
    takes_over(fleet)
    fleet.orders(commands.DisableGate(gate=given.GATE, reason="a rumour"))
    assert held(fleet) == [("no_cause", ["a"])]
