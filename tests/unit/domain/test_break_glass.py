"""Widening alone: with a reason, for a time, and undone by the controller when it is over."""

from dataclasses import replace

import pytest
from tests import given
from tests.unit.domain import test_commands

from smgate.domain import commands, decisions, policy, rulings

HOUR = 3600
ISSUE = policy.KnownIssue(id="i", title="t", match={"flashinfer": ("0.7.2.post1",)})
ENFORCE = commands.SetGateMode(gate=given.GATE, sm="10.7", mode="enforce", reason="night")


@pytest.fixture
def fleet():
    made = given.Fleet()
    made.node("a")
    made.launch("a")
    return made


def alone(fleet, command, seconds=HOUR, **how):
    """One person breaks the glass; the id of the change."""
    assert fleet.alone(command, break_glass_s=seconds, **how)
    return next(c.id for c in reversed(fleet.state.changes.values()) if c.kind == "break_glass")


def ended(fleet, change):
    return fleet.state.changes[change].ended


def look(fleet):
    """What rulings of people come to, as far as they can be undone."""
    found = fleet.state
    unit = fleet.unit("a")
    pin = unit.pin and (unit.pin.direction, unit.pin.break_glass)
    rollouts = {name: one.phase for name, one in found.rollouts.items()}
    return (
        found.mode_of(given.GATE, "10.7"),
        set(found.disabled),
        found.policy,
        dict(found.issues),
        set(found.freezes),
        found.breaker_position is not None,
        (unit.excluded, unit.released, pin, unit.adoption),
        rollouts,
    )


def trip(fleet):
    fleet.record(decisions.BreakerTripped(units=("a",), window_s=HOUR), "controller")
    fleet.settle()


def first(command):
    return lambda fleet: fleet.alone(command, role="operator")


EXACT = {
    "gate_mode": (lambda fleet: None, ENFORCE),
    "gate_enable": (
        first(commands.DisableGate(gate=given.GATE, sms=("10.3", "10.7"), reason="r")),
        commands.EnableGate(gate=given.GATE, sms=("10.3", "10.7"), reason="night"),
    ),
    "policy_publish": (
        lambda fleet: None,
        commands.PublishPolicy(policy=policy.Policy(min_gpu_sets=1), reason="night"),
    ),
    "issue_withdraw": (
        first(commands.PublishIssue(issue=ISSUE, reason="r")),
        commands.WithdrawIssue(issue_id="i", reason="night"),
    ),
    "issue_publish": (
        first(commands.PublishIssue(issue=ISSUE, reason="r")),
        commands.PublishIssue(issue=replace(ISSUE, severity="info"), reason="night"),
    ),
    "unit_include": (
        first(commands.ExcludeUnit(unit="a", reason="r")),
        commands.IncludeUnit(unit="a", reason="night"),
    ),
    "unit_release": (lambda fleet: None, commands.ReleaseUnit(unit="a", reason="night")),
    "unit_pin": (lambda fleet: None, commands.PinUnit(unit="a", direction="on", reason="night")),
    "unit_pin over off": (
        first(commands.PinUnit(unit="a", direction="off", reason="r")),
        commands.PinUnit(unit="a", direction="on", break_glass=True, reason="night"),
    ),
    "unit_unpin": (
        first(commands.PinUnit(unit="a", direction="off", reason="r")),
        commands.UnpinUnit(unit="a", reason="night"),
    ),
    "freeze_lift": (
        first(commands.DeclareFreeze(id="f", reason="r")),
        commands.LiftFreeze(id="f", reason="night"),
    ),
    "breaker_reset": (trip, commands.ResetBreaker(reason="night")),
}


@pytest.mark.parametrize(("before", "command"), EXACT.values(), ids=EXACT)
def test_when_the_time_is_over_all_is_as_it_was(fleet, before, command):
    before(fleet)
    stood = look(fleet)
    change = alone(fleet, command)
    assert look(fleet) != stood
    fleet.later(HOUR - 1)
    assert look(fleet) != stood
    fleet.later(2)
    assert look(fleet) == stood
    assert ended(fleet, change) == "undone"
    assert fleet.history[-1].actor == "controller"


@pytest.mark.parametrize(("before", "command"), EXACT.values(), ids=EXACT)
def test_what_another_person_accepts_in_time_stands(fleet, before, command):
    before(fleet)
    change = alone(fleet, command)
    accept = commands.AcceptChange(change=change, reason="r")
    assert fleet.refuses(accept, by="alice") == "same_person"
    [accepted] = fleet.alone(accept, by="bob")
    assert (accepted.author, accepted.accepted_by) == ("alice", "bob")
    stood = look(fleet)
    fleet.later(2 * HOUR)
    assert look(fleet) == stood


@pytest.mark.parametrize(("before", "command"), EXACT.values(), ids=EXACT)
def test_an_operator_may_end_it_sooner(fleet, before, command):
    before(fleet)
    stood = look(fleet)
    change = alone(fleet, command)
    fleet.alone(commands.WithdrawChange(change=change, reason="no"), by="eve", role="operator")
    assert look(fleet) == stood
    events = len(fleet.history)
    fleet.later(2 * HOUR)
    assert len(fleet.history) == events


def test_it_needs_an_approver_a_reason_and_a_time_within_bounds(fleet):
    assert fleet.refuses(ENFORCE, role="operator", break_glass_s=HOUR) == "forbidden"
    assert fleet.refuses(replace(ENFORCE, reason=""), break_glass_s=HOUR) == "reason_needed"
    for seconds in (0, -1, 86_401):
        assert fleet.refuses(ENFORCE, break_glass_s=seconds) == "bad_expiry"
    assert fleet.alone(ENFORCE, break_glass_s=86_400)


def test_what_is_recorded_says_who_why_how_long_and_what_then(fleet):
    used, done = fleet.alone(ENFORCE, break_glass_s=HOUR)
    assert used == rulings.BreakGlassUsed(
        command="gate_mode",
        body={"gate": given.GATE, "sm": "10.7", "mode": "enforce"},
        by="alice",
        reason="night",
        expires_s=HOUR,
        events=1,
        undo="SM 10.7 is set to observe again",
    )
    assert isinstance(done, rulings.GateModeSet)
    [wait] = [wait for wait in fleet.waits if wait.code == "break_glass"]
    assert (wait.owner, wait.remaining_us) == ("approver", HOUR * 1_000_000)
    assert used.undo in wait.sentence
    fleet.later(HOUR)
    undone = fleet.seen(rulings.GateModeSet)[-1]
    assert undone.reason == f"Break-glass {wait.subject} of alice has run out."


def test_what_cannot_be_undone_is_not_done_alone(fleet):
    fleet.qualified()
    wrong = replace(policy.KIMI_K3, id="second", architecture="Other")
    other = given.build(jit_cache_version="x")
    fleet.check("p1", outcome="skipped", made=other)
    for command in (
        commands.PublishGate(gate=wrong, reason="r"),
        commands.AdoptFlag(unit="a", reason="r"),
        commands.AcceptBuild(kernel_key=given.key_of(other), like=given.KEY, reason="r"),
    ):
        assert fleet.refuses(command, break_glass_s=HOUR) == "no_break_glass"
    fleet.check("a", outcome="failed")
    rule = commands.RuleBuild(kernel_key=given.KEY, ruling="cleared", node="a", reason="r")
    assert fleet.refuses(rule, break_glass_s=HOUR) == "no_break_glass"


def test_where_nobody_else_is_needed_no_glass_is_broken(fleet):
    narrow = commands.DisableGate(gate=given.GATE, reason="r")
    assert fleet.refuses(narrow, break_glass_s=HOUR) == "break_glass_not_needed"
    fleet.alone(ENFORCE)
    accept = commands.AcceptChange(change=list(fleet.state.changes)[-1], reason="r")
    assert fleet.refuses(accept, by="bob", break_glass_s=HOUR) == "break_glass_not_needed"


def test_who_could_accept_what_another_asked_for_needs_no_glass(fleet):
    fleet.alone(ENFORCE, role="operator")
    assert fleet.refuses(ENFORCE, by="bob", break_glass_s=HOUR) == "break_glass_not_needed"
    assert fleet.alone(ENFORCE, by="alice", break_glass_s=HOUR)  # nobody is there to accept hers


@pytest.mark.parametrize("field", [{"second_person": "rollouts"}, {"break_glass_max_s": 1}])
def test_nobody_decides_alone_who_must_agree(fleet, field):
    publish = commands.PublishPolicy(policy=policy.Policy(**field), reason="r")
    assert fleet.refuses(publish, break_glass_s=HOUR) == "no_break_glass"


def test_what_people_ruled_meanwhile_is_left_as_they_said(fleet):
    change = alone(fleet, commands.PinUnit(unit="a", direction="on", reason="night"))
    fleet.alone(commands.PinUnit(unit="a", direction="off", reason="mine"), by="eve")
    assert ended(fleet, change) == "overtaken"
    accept = commands.AcceptChange(change=change, reason="r")
    assert fleet.refuses(accept, by="bob") == "change_overtaken"
    fleet.later(2 * HOUR)
    assert fleet.unit("a").pin.direction == "off"


def test_of_several_things_those_that_were_ruled_on_are_left_and_the_others_undone(fleet):
    fleet.alone(commands.DisableGate(gate=given.GATE, sms=("10.3", "10.7"), reason="r"))
    enable = commands.EnableGate(gate=given.GATE, sms=("10.3", "10.7"), reason="night")
    change = alone(fleet, enable)
    fleet.alone(commands.DisableGate(gate=given.GATE, sms=("10.3",), reason="again"))
    fleet.orders(commands.EnableGate(gate=given.GATE, sms=("10.3",), reason="with zoe"))
    assert ended(fleet, change) is None
    fleet.later(2 * HOUR)
    assert set(fleet.state.disabled) == {(given.GATE, "10.7")}


def test_a_second_glass_on_the_first_ends_where_the_first_began(fleet):
    stood = look(fleet)
    old = alone(fleet, commands.PublishPolicy(policy=policy.Policy(gather_s=1), reason="n"))
    new = alone(fleet, commands.PublishPolicy(policy=policy.Policy(gather_s=2), reason="n"))
    assert ended(fleet, old) == "overtaken"
    fleet.later(HOUR + 1)
    assert ended(fleet, new) == "undone"
    assert look(fleet) == stood


def test_an_issue_that_one_person_loosened_counts_as_it_was(fleet):
    fleet.alone(commands.PublishIssue(issue=ISSUE, reason="r"))
    alone(fleet, commands.PublishIssue(issue=replace(ISSUE, severity="info"), reason="n"))
    other = replace(ISSUE, match={"flashinfer": ("9.9",)})
    narrower = commands.PublishIssue(issue=other, reason="r")
    assert isinstance(fleet.alone(narrower)[0], rulings.ChangeAsked)


def test_what_was_asked_before_the_glass_was_broken_waits_no_more(fleet):
    fleet.alone(ENFORCE)
    asked = list(fleet.state.changes)[-1]
    change = alone(fleet, ENFORCE)
    assert ended(fleet, asked) == "withdrawn"
    assert fleet.alone(ENFORCE, by="bob") == ()  # it is so, alone and for a time
    fleet.later(HOUR)
    assert ended(fleet, change) == "undone"
    assert fleet.state.mode_of(given.GATE, "10.7") == "observe"


def test_while_nobody_leads_its_time_stands_still(fleet):
    change = alone(fleet, ENFORCE)
    fleet.away(10 * HOUR)
    assert ended(fleet, change) is None
    fleet.later(HOUR + 1)
    assert ended(fleet, change) == "undone"


def started_alone():
    made = given.Fleet().enforce().qualified()
    made.node("a", "b")
    made.launch("a")
    made.launch("b")
    waves = (policy.Wave(count=1), policy.Wave(percent=100))
    plan = replace(test_commands.PLAN, waves=waves, bake_s=0)
    made.alone(commands.ProposeRollout(plan=plan, reason="r"))
    start = commands.StartRollout(rollout="r1", reason="night")
    assert made.refuses(start) == "rollout_proposed"
    assert made.refuses(start, role="operator", break_glass_s=HOUR) == "forbidden"
    return made, alone(made, start)


def test_a_rollout_begun_alone_pauses_and_goes_on_with_a_second_person():
    fleet, _ = started_alone()
    assert fleet.phase() == "running"
    granted = [u.id for u in fleet.state.units.values() if u.grant is not None]
    fleet.later(HOUR + 1)
    assert fleet.phase() == "paused"
    assert [u.id for u in fleet.state.units.values() if u.grant is not None] == granted != []
    fleet.orders(commands.PublishPolicy(policy=policy.Policy(second_person="rollouts"), reason="r"))
    [asked] = fleet.alone(commands.ResumeRollout(rollout="r1", reason="r"))  # still no approver
    assert isinstance(asked, rulings.ChangeAsked)


def test_a_rollout_that_needs_two_approvers_goes_on_after_one_with_another_person():
    fleet = given.Fleet(second_person="rollouts")
    plan = replace(test_commands.PLAN, approvals=2)
    fleet.alone(commands.ProposeRollout(plan=plan, reason="r"))
    fleet.alone(commands.ApproveRollout(rollout="r1", reason="r"), by="bob")
    alone(fleet, commands.StartRollout(rollout="r1", reason="night"))
    fleet.later(HOUR + 1)
    [asked] = fleet.alone(commands.ResumeRollout(rollout="r1", reason="r"))
    assert isinstance(asked, rulings.ChangeAsked)


def test_a_rollout_begun_alone_that_another_accepts_has_its_two_people():
    fleet, change = started_alone()
    fleet.alone(commands.AcceptChange(change=change, reason="r"), by="bob")
    assert fleet.state.rollouts["r1"].approver == "bob"
    fleet.later(HOUR + 1)
    assert fleet.phase() == "running"


def test_a_rollout_that_completed_meanwhile_grants_nobody_any_more():
    fleet, _ = started_alone()
    for name in [*fleet.state.nodes, *fleet.state.nodes]:
        unit = next((u for u in fleet.state.units.values() if u.id.startswith(f"{name}:")), None)
        if unit is not None and unit.grant is not None:
            fleet.restarts(name)
            fleet.bakes(name, 1)
    assert fleet.phase() == "completed"
    fleet.later(HOUR + 1)
    assert fleet.phase() == "halted"
    assert fleet.state.rollouts["r1"].halted_code == "break_glass_over"


def test_an_accepted_unit_is_taken_back():
    fleet = given.Fleet()
    fleet.node("a")
    fleet.launch("a")
    fleet.serves("a")
    assert fleet.unit("a").adoption == "adopted"
    alone(fleet, commands.AcceptUnit(unit="a", reason="night"))
    assert fleet.unit("a").grant is not None
    fleet.later(HOUR + 1)
    assert (fleet.unit("a").adoption, fleet.unit("a").grant) == ("taken_back", None)


def test_a_unit_included_alone_and_given_back_since_is_left_alone_again(fleet):
    fleet.alone(commands.ExcludeUnit(unit="a", reason="r"))
    alone(fleet, commands.IncludeUnit(unit="a", reason="n"))
    alone(fleet, commands.ReleaseUnit(unit="a", reason="n"))
    fleet.later(HOUR + 1)
    assert (fleet.unit("a").excluded, fleet.unit("a").released) == (True, False)


def test_an_excluded_unit_is_not_given_back_alone(fleet):
    fleet.alone(commands.ExcludeUnit(unit="a", reason="r"))
    release = commands.ReleaseUnit(unit="a", reason="n")
    assert fleet.refuses(release, break_glass_s=HOUR) == "no_break_glass"
