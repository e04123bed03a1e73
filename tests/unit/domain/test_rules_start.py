"""Rules 16 and 17 of the decision table: may it start?"""

from dataclasses import replace

import pytest
from tests import given

from smgate.domain import commands, decisions, facts, policy, rules_start

GRANTED = ("append", given.TARGET, "granted")
NEWER = given.build(flashinfer_version="0.7.3")


@pytest.fixture
def fleet():
    """Two servers on SM107 of a qualified build; no rollout yet."""
    made = given.Fleet().enforce().qualified()
    made.node("a", "b")
    made.launch("a")
    made.launch("b")
    return made


def propose(fleet, name="r1", **changes):
    plan = policy.RolloutPlan(
        id=name, gate=given.GATE, sm="10.7", waves=(policy.Wave(percent=100),), max_in_flight=100
    )
    fleet.orders(commands.ProposeRollout(plan=replace(plan, **changes), reason="better"))


def only(*units):
    return policy.Selector(units=units)


# 16 what stops a start: one history per code


def no_rollout(fleet):
    pass


def not_approved(fleet):
    propose(fleet)


def not_started(fleet):
    propose(fleet)
    fleet.orders(commands.ApproveRollout(rollout="r1", reason="yes"), by="bob")


def paused(fleet):
    fleet.rollout(select=only(fleet.id("b")))
    fleet.orders(commands.PauseRollout(rollout="r1", reason="look"))


def halted(fleet):
    fleet.rollout(select=only(fleet.id("b")))
    fleet.orders(commands.HaltRollout(rollout="r1", reason="no"))


def frozen(fleet):
    fleet.orders(commands.DeclareFreeze(id="f", reason="holidays"))
    fleet.rollout(select=only(fleet.id("b")))


def wave_not_open(fleet):
    fleet.orders(commands.DeclareFreeze(id="f", reason="holidays"))
    fleet.rollout()


@pytest.mark.parametrize(
    ("happens", "code"),
    [
        (no_rollout, "no_rollout"),
        (not_approved, "not_approved"),
        (not_started, "wave_not_open"),
        (paused, "no_rollout"),
        (halted, "no_rollout"),
        (frozen, "no_rollout"),
        (wave_not_open, "wave_not_open"),
    ],
)
def test_a_start_needs_an_open_wave_that_has_the_unit(fleet, happens, code):
    happens(fleet)
    assert fleet.told("a") == ("append", given.SAFE, code)


def in_open_wave(fleet, **numbers):
    """`c` is a member of an open wave and not granted yet: something stood against it."""
    fleet.node("c")
    fleet.launch("c")
    fleet.rollout(
        waves=[policy.Wave(percent=100)],
        select=only(fleet.id("c"), fleet.id("a"), fleet.id("b")),
        **numbers,
    )


def wait_for_restart(fleet, node):
    """A unit that is granted loses its grant to a pin that is taken away again."""
    fleet.orders(commands.PinUnit(unit=node, direction="off", reason="hold it"))


@pytest.mark.parametrize(
    ("stop", "code"),
    [
        (
            lambda fleet: fleet.orders(commands.PauseRollout(rollout="r1", reason="look")),
            "rollout_paused",
        ),
        (
            lambda fleet: fleet.orders(commands.HaltRollout(rollout="r1", reason="no")),
            "rollout_halted",
        ),
        (
            lambda fleet: fleet.orders(commands.AbortRollout(rollout="r1", reason="no")),
            "no_rollout",
        ),
        (lambda fleet: fleet.orders(commands.DeclareFreeze(id="f", reason="x")), "freeze"),
        (lambda fleet: fleet.check("p1", outcome="failed"), "build_suspect"),
        (lambda fleet: fleet.later(91 * 86400), "evidence_old"),
        (lambda fleet: fleet.says("c", facts.GapNoticed(lost_outbox_id="box")), "log_gap"),
        (lambda fleet: fleet.later(301, silent="c"), "silent"),
        (
            lambda fleet: fleet.orders(
                commands.PublishIssue(
                    issue=policy.KnownIssue(id="i", title="t", match={"cute_dsl": ("4.*",)}),
                    reason="read it",
                )
            ),
            "known_issue_unevaluable",
        ),
        (
            lambda fleet: fleet.orders(
                commands.PublishPolicy(policy=policy.Policy(exposure_limit_units=2), reason="less")
            ),
            "exposure_limit",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_member_of_an_open_wave_waits_while_something_stands_against_it(fleet, stop, code):
    in_open_wave(fleet, wave_timeout_s=365 * 86400)
    wait_for_restart(fleet, "c")
    assert fleet.told("c")[2] == "pinned_off"
    stop(fleet)
    fleet.orders(commands.UnpinUnit(unit="c", reason="go on"))
    assert fleet.told("c") == ("append", given.SAFE, code)
    assert fleet.told("a") == GRANTED


def test_a_member_of_an_open_wave_starts_when_nothing_stands_against_it(fleet):
    in_open_wave(fleet)
    wait_for_restart(fleet, "c")
    fleet.orders(commands.UnpinUnit(unit="c", reason="go on"))
    assert fleet.told("c") == GRANTED


def test_the_breaker_stops_starts_until_a_person_resets_it(fleet):
    fleet.orders(commands.PublishPolicy(policy=policy.Policy(breaker_bad_units=1), reason="x"))
    in_open_wave(fleet, failures_max=100, failure_percent=100)
    fleet.restarts("a")
    wait_for_restart(fleet, "c")
    fleet.says("a", facts.GpuFaultSeen(gpu_uuid="GPU-a", xid=79))
    fleet.orders(commands.UnpinUnit(unit="c", reason="go on"))
    assert fleet.told("c") == ("append", given.SAFE, "breaker_open")
    assert fleet.told("b") == GRANTED
    fleet.orders(commands.ResetBreaker(reason="looked"))
    assert fleet.told("c") == GRANTED


def test_max_in_flight_counts_what_restarts_or_bakes(fleet):
    in_open_wave(fleet, max_in_flight=1)
    wait_for_restart(fleet, "c")
    fleet.restarts("a")
    fleet.orders(commands.UnpinUnit(unit="c", reason="go on"))
    assert fleet.told("c") == ("append", given.SAFE, "max_in_flight")
    fleet.bakes("a", 600)
    assert fleet.told("c") == GRANTED


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"build": NEWER}, "build_not_qualified"),
        ({"build": given.build(flashinfer_version=None)}, "build_not_qualified"),
        ({"build": given.build(torch_cuda=None)}, "build_not_qualified"),
        ({"layout": replace(given.LAYOUT, tp=4)}, "build_not_qualified"),
    ],
)
def test_only_a_qualified_kernel_key_starts(fleet, changes, code):
    fleet.orders(commands.DeclareFreeze(id="f", reason="wait"))
    fleet.launch("a", **changes)
    override = fleet.override("a")
    assert code in (override.code, *override.also)


def test_every_reason_is_listed_in_the_order_of_the_table(fleet):
    fleet.orders(commands.DeclareFreeze(id="f", reason="wait"))
    fleet.says("a", facts.GapNoticed(lost_outbox_id="box"))
    fleet.launch("a", build=NEWER)
    override = fleet.override("a")
    assert (override.code, *override.also) == (
        "no_rollout",
        "freeze",
        "build_not_qualified",
        "log_gap",
    )


def test_every_code_of_the_table_has_its_place_in_the_order():
    table = [
        "no_rollout",
        "not_approved",
        "rollout_paused",
        "rollout_halted",
        "wave_not_open",
        "freeze",
        "breaker_open",
        "build_not_qualified",
        "build_suspect",
        "evidence_old",
        "known_issue_unevaluable",
        "log_gap",
        "silent",
        "exposure_limit",
        "max_in_flight",
    ]
    assert [code for code in rules_start.ORDER if code in table] == table


def test_a_closed_gap_and_a_returned_node_start_again(fleet):
    in_open_wave(fleet)
    wait_for_restart(fleet, "c")
    fleet.says("c", facts.GapNoticed(lost_outbox_id="box"))
    fleet.later(301, silent="c")
    fleet.orders(commands.UnpinUnit(unit="c", reason="go on"))
    assert fleet.told("c")[2] == "log_gap"
    fleet.says("c", facts.GapNoticed(lost_outbox_id="box", closed=True))
    fleet.later(1)
    assert fleet.told("c") == GRANTED


@pytest.mark.parametrize("role", ["pinned", "adopted", "granted"])
def test_the_exposure_limit_counts_whatever_may_run_the_target(role):
    fleet = given.Fleet(exposure_limit_units=1)
    fleet.node("x", "c")
    fleet.launch("x")
    if role == "adopted":
        fleet.serves("x")
    fleet.enforce().qualified()
    if role == "pinned":
        fleet.orders(commands.PinUnit(unit="x", direction="on", reason="now"))
    if role == "granted":
        fleet.rollout("r0", select=only(fleet.id("x")))
    fleet.launch("c")
    if role == "granted":
        fleet.orders(commands.AbortRollout(rollout="r0", reason="enough"))
    fleet.rollout("r1", select=only(fleet.id("c")))
    assert fleet.told("c") == ("append", given.SAFE, "exposure_limit")
    fleet.orders(commands.PublishPolicy(policy=policy.Policy(exposure_limit_units=2), reason="up"))
    assert fleet.told("c") == GRANTED


def test_the_exposure_limit_holds_for_several_starts_at_once(fleet):
    fleet.orders(commands.PublishPolicy(policy=policy.Policy(exposure_limit_units=1), reason="1"))
    fleet.rollout()
    assert len(fleet.seen(decisions.Granted)) == 1


# Selectors


@pytest.mark.parametrize(
    ("select", "code"),
    [
        (policy.Selector(), "granted"),
        (policy.Selector(racks=("r1",)), "granted"),
        (policy.Selector(racks=("r2",)), "no_rollout"),
        (policy.Selector(units=("other",)), "no_rollout"),
        (policy.Selector(kernel_keys=(given.KEY,)), "granted"),
        (policy.Selector(kernel_keys=("00" * 8,)), "no_rollout"),
    ],
)
def test_a_rollout_covers_what_its_selector_takes_in(fleet, select, code):
    fleet.rollout(select=select)
    assert fleet.told("a")[2] == code


def test_a_rollout_covers_its_own_sm_alone(fleet):
    gate = replace(policy.KIMI_K3, baseline_sms=("10.0",), candidate_sms=("10.3", "10.7"))
    fleet.orders(commands.PublishGate(gate=gate, reason="more care"))
    fleet.rollout(sm="10.3")
    assert fleet.told("a")[2] == "no_rollout"
