"""Rules 13 and 14 of the decision table: pinned to the target, and baseline SMs."""

import pytest
from tests import given

from smgate.domain import commands, decisions, policy

ISSUE = policy.KnownIssue(
    id="fi-4122", title="SiTU kernels are wrong", match={"flashinfer": ("0.7.2.*",)}
)


@pytest.fixture
def fleet():
    """Two servers on the target by a rollout's grant, of a qualified build, on SM107."""
    return given.Fleet().enforce().qualified().granted("a", "b")


def pin(fleet, unit, direction, *, break_glass=False):
    fleet.orders(
        commands.PinUnit(unit=unit, direction=direction, break_glass=break_glass, reason="why")
    )


def faults(fleet, node):
    fleet.says(node, given.facts.GpuFaultSeen(gpu_uuid=f"GPU-{node}", xid=79))


def fail(fleet, node, **changes):
    fleet.check(node, outcome="failed", **changes)


# 13 pinned on


@pytest.fixture
def bare():
    """One server on the safe value; nothing is qualified and no rollout was proposed."""
    made = given.Fleet().enforce()
    made.node("a")
    made.launch("a")
    return made


def test_pinned_on_gives_the_target_without_a_rollout_or_evidence(bare):
    pin(bare, "a", "on")
    assert bare.told("a") == ("append", given.TARGET, "pinned_on")
    bare.orders(commands.DeclareFreeze(id="f", reason="holidays"))
    assert bare.told("a")[2] == "pinned_on"
    bare.orders(commands.UnpinUnit(unit="a", reason="done"))
    assert bare.told("a")[1] == given.SAFE
    assert bare.seen(decisions.Granted) == []


def bad_things():
    def issue(fleet):
        fleet.orders(commands.PublishIssue(issue=ISSUE, reason="read it"))

    def failed_here(fleet):
        fail(fleet, "a")

    def failed_build(fleet):
        fleet.node("y", "z")
        fail(fleet, "y")
        fail(fleet, "z")

    def fault(fleet):
        fleet.serves("a")
        faults(fleet, "a")

    return [issue, failed_here, failed_build, fault]


@pytest.mark.parametrize("bad", bad_things())
def test_pinned_on_passes_rules_9_to_12_with_break_glass_alone(bare, bad):
    pin(bare, "a", "on")
    bad(bare)
    assert bare.told("a")[:2] == ("append", given.SAFE)
    pin(bare, "a", "on", break_glass=True)
    assert bare.told("a") == ("append", given.TARGET, "pinned_on")


def test_break_glass_holds_a_grant_until_it_is_taken_away(fleet):
    pin(fleet, "a", "on", break_glass=True)
    fail(fleet, "a")
    assert fleet.told("a") == ("append", given.TARGET, "pinned_on")
    fleet.orders(commands.UnpinUnit(unit="a", reason="done"))
    assert fleet.told("a") == ("append", given.SAFE, "self_test_failed")


@pytest.mark.parametrize(
    "changes",
    [
        {"asked_a2a": "deepep"},
        {"asked_runner": "triton", "asked_runner_in": "argv"},
        {"argv_read": False},
        {"model": given.OTHER_MODEL},
        {"platform": "rocm"},
    ],
)
def test_no_pin_passes_rules_a(bare, changes):
    pin(bare, "a", "on", break_glass=True)
    bare.launch("a", **changes)
    assert bare.told("a")[1] is None


@pytest.mark.parametrize(
    "changes", [{"torch_cuda": "12.6"}, {"torch_cuda": None}, {"sglang_version": "0.5.24"}]
)
def test_no_pin_gives_a_target_that_would_not_start_or_was_never_run(bare, changes):
    pin(bare, "a", "on", break_glass=True)
    bare.launch("a", build=given.build(**changes))
    assert bare.told("a")[1] != given.TARGET
    assert bare.told("a")[2] == "target_raises"


# 14 baseline


def baseline(sm="10.3", **changes):
    fleet = given.Fleet().enforce(sm)
    fleet.node("x", sm=sm)
    fleet.launch("x", sm=sm, **changes)
    return fleet


@pytest.mark.parametrize("sm", ["10.0", "10.3"])
def test_a_baseline_is_left_to_sglang(sm):
    fleet = baseline(sm)
    assert fleet.told("x") == ("untouched", None, "baseline_sm")
    fleet.serves("x")
    assert fleet.alarms() == set()


def test_a_baseline_whose_format_sglang_does_not_see_gets_the_target():
    fleet = baseline(model=given.ONLY_TOP_LEVEL, model_digest=given.ONLY_TOP_LEVEL.digest)
    assert fleet.told("x") == ("append", given.TARGET, "baseline_sm")
    assert fleet.seen(decisions.Granted) == []


def test_a_baseline_with_a_torch_that_does_not_know_it_gets_no_value_that_kills_it():
    fleet = baseline(build=given.build(torch_cuda="12.6"))
    assert fleet.told("x") == ("untouched", None, "baseline_sm")
    assert fleet.override("x").no_safe_value
    assert fleet.alarms() == {"no_safe_value"}


def test_rules_7_to_13_come_before_the_baseline():
    fleet = baseline()
    pin(fleet, "x", "on")
    assert fleet.told("x")[2] == "pinned_on"
    fleet.orders(
        commands.PublishIssue(
            issue=policy.KnownIssue(id="i", title="t", match={"sm": ("10.3",)}), reason="read it"
        )
    )
    assert fleet.told("x") == ("append", given.SAFE, "known_issue:i")
    pin(fleet, "x", "off")
    assert fleet.told("x") == ("append", given.SAFE, "pinned_off")
