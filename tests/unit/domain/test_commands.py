"""Commands of people: who may give them, what is refused with which code, what changes nothing."""

from dataclasses import replace

import pytest
from tests import given

from smgate.domain import commands, decider, errors, fleet_asks, policy, revocation, rulings

PLAN = policy.RolloutPlan(id="r1", gate=given.GATE, sm="10.7", waves=(policy.Wave(count=1),))
ISSUE = policy.KnownIssue(id="i", title="t", match={"flashinfer": ("0.7.2",)})
TRUSTING = policy.Policy(second_person="rollouts")
PACKAGES = {"sglang_version": "0.5.23", "flashinfer_version": "0.7.3", "torch_cuda": "13.0"}


@pytest.fixture
def fleet():
    """One server on SM107 in enforce mode."""
    made = given.Fleet().enforce()
    made.node("a")
    made.launch("a")
    return made


def every_command():
    """One of each, by its public name."""
    return {
        "gate_publish": commands.PublishGate(
            gate=replace(policy.KIMI_K3, candidate_sms=("10.7", "12.0")), reason="r"
        ),
        "gate_mode": commands.SetGateMode(gate=given.GATE, sm="10.3", mode="enforce", reason="r"),
        "gate_disable": commands.DisableGate(gate=given.GATE, reason="r"),
        "gate_enable": commands.EnableGate(gate=given.GATE, reason="r"),
        "gate_graduate": commands.GraduateGate(gate=given.GATE, sm="10.7", reason="r"),
        "policy_publish": commands.PublishPolicy(policy=policy.Policy(gather_s=1), reason="r"),
        "issue_publish": commands.PublishIssue(issue=ISSUE, reason="r"),
        "issue_withdraw": commands.WithdrawIssue(issue_id="i", reason="r"),
        "build_announce": commands.AnnounceBuild(name="img", packages=PACKAGES, reason="r"),
        "build_rule": commands.RuleBuild(
            kernel_key=given.KEY, ruling="cleared", node="a", reason="r"
        ),
        "build_accept": commands.AcceptBuild(kernel_key=given.KEY, like="x", reason="r"),
        "node_retire": commands.RetireNode(node="a", reason="r"),
        "fleet_expect": fleet_asks.ExpectFleet(
            nodes=(rulings.ExpectedNode(name="a", sm="10.7"),), reason="r"
        ),
        "db_restore_finish": fleet_asks.FinishRestore(reason="r"),
        "unit_exclude": commands.ExcludeUnit(unit="a", reason="r"),
        "unit_include": commands.IncludeUnit(unit="a", reason="r"),
        "unit_pin": commands.PinUnit(unit="a", direction="on", reason="r"),
        "unit_unpin": commands.UnpinUnit(unit="a", reason="r"),
        "unit_adopt_flag": commands.AdoptFlag(unit="a", reason="r"),
        "unit_clear_memory": commands.ClearMemory(unit="a", reason="r"),
        "unit_accept": commands.AcceptUnit(unit="a", reason="r"),
        "unit_take_back": commands.TakeBackUnit(unit="a", reason="r"),
        "unit_release": commands.ReleaseUnit(unit="a", reason="r"),
        "freeze_declare": commands.DeclareFreeze(id="f", reason="r"),
        "freeze_lift": commands.LiftFreeze(id="f", reason="r"),
        "breaker_reset": commands.ResetBreaker(reason="r"),
        "rollout_propose": commands.ProposeRollout(plan=PLAN, reason="r"),
        "rollout_approve": commands.ApproveRollout(rollout="r1", reason="r"),
        "rollout_start": commands.StartRollout(rollout="r1", reason="r"),
        "rollout_pause": commands.PauseRollout(rollout="r1", reason="r"),
        "rollout_resume": commands.ResumeRollout(rollout="r1", reason="r"),
        "rollout_halt": commands.HaltRollout(rollout="r1", reason="r"),
        "rollout_abort": commands.AbortRollout(rollout="r1", reason="r"),
        "rollout_revoke": revocation.RevokeGrants(rollout="r1", reason="r"),
        "change_accept": commands.AcceptChange(change="c1", reason="r"),
        "change_withdraw": commands.WithdrawChange(change="c1", reason="r"),
    }


WIDENS = {
    "db_restore_finish",
    "gate_publish",
    "gate_mode",
    "gate_enable",
    "gate_graduate",
    "policy_publish",
    "issue_withdraw",
    "build_rule",
    "build_accept",
    "unit_include",
    "unit_pin",
    "unit_unpin",
    "unit_adopt_flag",
    "unit_clear_memory",
    "unit_accept",
    "unit_release",
    "freeze_lift",
    "breaker_reset",
    "rollout_approve",
    "rollout_start",
    "rollout_resume",
    "change_accept",
}


def test_the_examples_are_all_commands_there_are():
    assert {name: type(one) for name, one in every_command().items()} == commands.NAMES


def outcome(fleet, command, role):
    """The code of a refusal, or nothing."""
    try:
        roles = frozenset({role})
        decider.decide(fleet.state, command, by="o", roles=roles, now_us=fleet.now_us)
    except errors.RejectedError as refusal:
        return refusal.code
    return None


@pytest.mark.parametrize("name", sorted(commands.NAMES))
def test_an_operator_narrows_and_asks_and_an_approver_agrees(fleet, name):
    command = every_command()[name]
    assert fleet.refuses(command, role="viewer") == "forbidden"
    if name in ("rollout_approve", "change_accept"):
        assert fleet.refuses(command, role="operator") == "forbidden"
    else:
        assert outcome(fleet, command, role="operator") != "forbidden"
    assert outcome(fleet, command, role="approver") != "forbidden"


@pytest.mark.parametrize("name", sorted(commands.NAMES))
def test_where_rollouts_alone_need_two_people_widening_needs_an_approver(fleet, name):
    fleet.orders(commands.PublishPolicy(policy=TRUSTING, reason="r"))
    command = every_command()[name]
    assert fleet.refuses(command, role="viewer") == "forbidden"
    if name in WIDENS:
        assert fleet.refuses(command, role="operator") == "forbidden"
    else:
        assert outcome(fleet, command, role="operator") != "forbidden"


@pytest.mark.parametrize("name", sorted(commands.NAMES))
def test_every_command_needs_a_reason_of_a_decent_length(fleet, name):
    command = every_command()[name]
    assert fleet.refuses(replace(command, reason="  ")) == "reason_needed"
    assert fleet.refuses(replace(command, reason="x" * 2001)) == "too_long"


@pytest.mark.parametrize(
    ("command", "role"),
    [
        (commands.SetGateMode(gate=given.GATE, sm="10.7", mode="observe", reason="r"), "operator"),
        (commands.PinUnit(unit="a", direction="off", reason="r"), "operator"),
    ],
)
def test_some_commands_narrow_by_what_they_ask(fleet, command, role):
    assert fleet.orders(command, role=role)


def test_taking_a_pin_to_the_target_away_narrows(fleet):
    fleet.orders(commands.PinUnit(unit="a", direction="on", reason="r"))
    fleet.orders(commands.UnpinUnit(unit=fleet.id("a"), reason="r"), role="operator")
    fleet.orders(commands.PinUnit(unit="a", direction="on", reason="r"))
    fleet.orders(commands.UnpinUnit(unit="a", reason="r"), role="operator")  # by its node's name
    fleet.orders(commands.PinUnit(unit="a", direction="off", reason="r"), role="operator")
    for name in ("a", fleet.id("a")):
        unpin = commands.UnpinUnit(unit=name, reason="r")
        asked = fleet.alone(unpin, role="operator")
        assert [type(one) for one in asked] == ([rulings.ChangeAsked] if name == "a" else [])


def test_publishing_an_issue_narrows_and_loosening_one_widens(fleet):
    fleet.orders(commands.PublishIssue(issue=ISSUE, reason="r"), role="operator")
    weaker = commands.PublishIssue(issue=replace(ISSUE, severity="info"), reason="r")
    assert isinstance(fleet.alone(weaker, role="operator")[0], rulings.ChangeAsked)
    change = list(fleet.state.changes)[-1]
    fleet.orders(commands.AcceptChange(change=change, reason="r"), by="bob")
    fleet.orders(commands.PublishIssue(issue=ISSUE, reason="r"), role="operator")
    assert fleet.orders(commands.PublishIssue(issue=ISSUE, reason="r"), role="operator") == ()


REFUSED = [
    ("unknown_gate", commands.DisableGate(gate="x", reason="r")),
    ("unknown_gate", commands.SetGateMode(gate="x", sm="10.7", mode="enforce", reason="r")),
    ("unknown_gate", commands.ProposeRollout(plan=replace(PLAN, gate="x"), reason="r")),
    ("bad_sm", commands.SetGateMode(gate=given.GATE, sm="blackwell", mode="enforce", reason="r")),
    ("bad_sm", commands.DisableGate(gate=given.GATE, sms=("9.0",), reason="r")),
    ("unknown_issue", commands.WithdrawIssue(issue_id="x", reason="r")),
    ("unknown_package", commands.AnnounceBuild(name="i", packages={"x": "1"}, reason="r")),
    ("unknown_package", commands.AnnounceBuild(name="i", packages={}, reason="r")),
    ("unknown_freeze", commands.LiftFreeze(id="x", reason="r")),
    ("unknown_unit", commands.ExcludeUnit(unit="nobody", reason="r")),
    ("unknown_unit", commands.ExcludeUnit(unit="", reason="r")),
    ("bad_pin", commands.PinUnit(unit="a", direction="off", break_glass=True, reason="r")),
    ("not_adopted", commands.AcceptUnit(unit="a", reason="r")),
    ("not_adopted", commands.TakeBackUnit(unit="a", reason="r")),
    ("unknown_rollout", commands.StartRollout(rollout="x", reason="r")),
    ("bad_policy", commands.PublishPolicy(policy=policy.Policy(min_gpu_sets=0), reason="r")),
    ("bad_policy", commands.ProposeRollout(plan=replace(PLAN, sm="10.3"), reason="r")),
    (
        "bad_policy",
        commands.PublishGate(gate=replace(policy.KIMI_K3, id="second"), reason="r"),
    ),
]


@pytest.mark.parametrize(("code", "command"), REFUSED, ids=lambda value: str(value)[:40])
def test_what_cannot_be_is_refused_with_a_code(fleet, code, command):
    assert fleet.refuses(command) == code


def test_a_short_name_that_fits_two_units_is_refused(fleet):
    fleet.node("ab")
    fleet.launch("ab")
    assert fleet.id("a") != fleet.id("ab")
    fleet.launch("a", gpus=(given.values.Gpu(uuid="GPU-a9", sm="10.7"),))
    assert fleet.refuses(commands.ExcludeUnit(unit="a", reason="r")) == "ambiguous_unit"


def test_saying_it_again_changes_nothing(fleet):
    for command in (
        commands.SetGateMode(gate=given.GATE, sm="10.7", mode="enforce", reason="r"),
        commands.DisableGate(gate=given.GATE, reason="r"),
        commands.DeclareFreeze(id="f", reason="r"),
        commands.PublishIssue(issue=ISSUE, reason="r"),
        commands.AnnounceBuild(name="img", packages=PACKAGES, reason="r"),
        commands.ExcludeUnit(unit="a", reason="r"),
        commands.PinUnit(unit="a", direction="off", reason="r"),
        commands.AdoptFlag(unit="a", reason="r"),
        commands.ReleaseUnit(unit="a", reason="r"),
        commands.ProposeRollout(plan=PLAN, reason="r"),
    ):
        fleet.orders(command)
        assert fleet.orders(command) == ()
    for command in (
        commands.ResetBreaker(reason="r"),
        commands.EnableGate(gate=given.GATE, sms=("10.3",), reason="r"),
    ):
        assert fleet.orders(command) == ()


def test_the_life_of_a_rollout(fleet):
    approve = commands.ApproveRollout(rollout="r1", reason="r")
    start = commands.StartRollout(rollout="r1", reason="r")
    pause = commands.PauseRollout(rollout="r1", reason="r")
    resume = commands.ResumeRollout(rollout="r1", reason="r")
    fleet.orders(commands.ProposeRollout(plan=PLAN, reason="r"))
    assert fleet.refuses(start) == "rollout_proposed"
    assert fleet.refuses(approve) == "same_person"
    fleet.orders(approve, by="bob")
    assert fleet.orders(approve, by="bob") == ()
    assert fleet.refuses(approve, by="carol") == "rollout_approved"
    assert fleet.refuses(pause) == "rollout_approved"
    fleet.orders(start)
    assert fleet.orders(start) == ()
    assert fleet.orders(resume) == ()
    fleet.orders(pause)
    assert fleet.orders(pause) == ()
    assert fleet.refuses(start) == "rollout_paused"
    fleet.orders(resume)
    abort = commands.AbortRollout(rollout="r1", reason="r")
    fleet.orders(abort)
    assert fleet.orders(abort) == ()
    for command in (approve, start, pause, resume, commands.HaltRollout(rollout="r1", reason="r")):
        assert fleet.refuses(command, by="bob") == "rollout_aborted"
    again = commands.ProposeRollout(plan=PLAN, reason="r")
    assert fleet.refuses(again) == "rollout_exists"


def test_one_rollout_at_a_time_per_gate_and_sm(fleet):
    fleet.rollout("r1")
    fleet.orders(commands.ProposeRollout(plan=replace(PLAN, id="r2"), reason="r"))
    fleet.orders(commands.ApproveRollout(rollout="r2", reason="r"), by="bob")
    assert fleet.refuses(commands.StartRollout(rollout="r2", reason="r")) == "rollout_busy"
    fleet.orders(commands.HaltRollout(rollout="r1", reason="r"))
    assert fleet.orders(commands.StartRollout(rollout="r2", reason="r"))


def test_an_adopted_unit_whose_key_is_unknown_or_bad_cannot_be_accepted():
    fleet = given.Fleet()
    fleet.node("a", "b")
    fleet.serves("a")
    accept = commands.AcceptUnit(unit="a", reason="r")
    assert fleet.refuses(accept) == "no_kernel_key"
    fleet.launch("b")
    fleet.serves("b")
    fleet.check("b", outcome="failed", gpu_uuids=("GPU-other",))
    assert fleet.refuses(commands.AcceptUnit(unit="b", reason="r")) == "build_suspect"


def test_a_gate_keeps_its_target_while_grants_for_it_stand():
    fleet = given.Fleet().enforce().qualified().granted("a")
    other = commands.PublishGate(gate=replace(policy.KIMI_K3, target="triton"), reason="r")
    assert fleet.refuses(other) == "target_in_use"
    fleet.orders(commands.PinUnit(unit="a", direction="off", reason="r"))
    assert isinstance(fleet.orders(other)[0], rulings.GatePublished)
