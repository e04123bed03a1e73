"""Taking back by restart: which servers are ordered onto the safe value, and when."""

import pytest
from tests import given
from tests.given_drains import HOUR_S, ended, fleet_on_target, hook_ends, orders, pin_off, waiting

from smgate.domain import commands, decisions, drain_budget, drains, facts

# What is ordered


def test_a_pinned_server_on_the_target_is_ordered_to_restart_for_the_launch_that_runs():
    fleet = fleet_on_target("a", "b", "c")
    pin_off(fleet, "a")
    (order,) = fleet.seen(decisions.DrainOrdered)
    assert (order.unit, order.code) == (fleet.id("a"), "pinned_off")
    assert order.launch_ids == fleet.unit("a").launch.launch_ids
    assert order.nodes == ("a",)
    assert order.instances == {"a": {"k3": 0}}
    assert order.deadline_us == fleet.now_us + HOUR_S * 1_000_000
    assert waiting(fleet, "drain") == {"a": "node"}


def test_it_ends_when_every_rank_serves_the_safe_value():
    fleet = fleet_on_target("a", "b", "c")
    pin_off(fleet, "a")
    hook_ends(fleet, "a")
    fleet.launch("a", restarter="hook")
    fleet.instance("a", "starting")
    fleet.effective("a", given.SAFE)
    assert ended(fleet) == []
    fleet.instance("a", "serving")
    assert ended(fleet) == [("a", "safe")]
    assert orders(fleet) == ["a"]
    assert waiting(fleet, "drain") == {}


@pytest.mark.parametrize(
    ("happens", "code"),
    [
        (lambda fleet: fleet.check("a", outcome="failed"), "self_test_failed"),
        (
            lambda fleet: fleet.says("a", facts.GpuFaultSeen(gpu_uuid="GPU-a", xid=79)),
            "fault_in_service",
        ),
    ],
)
def test_what_went_wrong_on_these_gpus_restarts_this_server_alone(happens, code):
    fleet = fleet_on_target("a", "b", "c")
    happens(fleet)
    assert [(e.unit, e.code) for e in fleet.seen(decisions.DrainOrdered)] == [(fleet.id("a"), code)]


@pytest.mark.parametrize(
    "command",
    [
        commands.DisableGate(gate=given.GATE, reason="stop"),
        commands.PublishIssue(
            issue=given.policy.KnownIssue(id="i", title="t", match={"sm": ("10.7",)}), reason="r"
        ),
        commands.SetGateMode(gate=given.GATE, sm="10.7", mode="observe", reason="r"),
    ],
)
def test_the_kill_switch_and_known_issues_restart_nothing(command):
    fleet = fleet_on_target("a", "b", "c")
    fleet.orders(command)
    assert orders(fleet) == []
    assert waiting(fleet) == {}


def test_the_kill_switch_does_not_hold_up_what_must_restart():
    fleet = fleet_on_target("a", "b", "c")
    fleet.orders(commands.DisableGate(gate=given.GATE, reason="stop"))
    pin_off(fleet, "a")
    assert fleet.told("a")[2] == "gate_disabled"
    assert orders(fleet) == ["a"]


def test_observe_mode_and_hands_off_restart_nothing():
    fleet = fleet_on_target("a", "b", "c")
    fleet.orders(commands.ExcludeUnit(unit="a", reason="mine"))
    fleet.orders(commands.SetGateMode(gate=given.GATE, sm="10.7", mode="observe", reason="r"))
    pin_off(fleet, "a", "b")
    assert orders(fleet) == []


def test_a_server_with_no_safe_value_is_never_restarted():
    fleet = fleet_on_target("a", "b", "c")
    fleet.restarts("a", restarter="hook", draft_asserts_auto=True)
    fleet.serves("a", given.TARGET)
    pin_off(fleet, "a")
    assert fleet.override("a").no_safe_value
    assert orders(fleet) == []


def test_a_server_that_is_not_on_the_target_is_not_restarted():
    fleet = fleet_on_target("a", "b", "c")
    fleet.node("d")
    fleet.launch("d", restarter="hook")
    fleet.serves("d", given.SAFE)
    pin_off(fleet, "d")
    assert orders(fleet) == []


def test_one_that_runs_the_target_though_it_was_told_the_safe_value_is_not_restarted_in_vain():
    fleet = fleet_on_target("a", "b", "c")
    fleet.node("d")
    fleet.launch("d", restarter="hook", build=given.build(flashinfer_version="0.7.3"))
    fleet.serves("d", given.TARGET)
    pin_off(fleet, "d")
    assert "override_not_in_effect" in fleet.alarms()
    assert orders(fleet) == []


def test_one_taken_back_by_a_person_comes_back_at_its_next_start():
    fleet = given.Fleet()
    fleet.node("a", "b", "c")
    for node in ("a", "b", "c"):
        fleet.launch(node, restarter="hook")
        fleet.serves(node, given.TARGET)
    fleet.enforce()
    fleet.orders(commands.TakeBackUnit(unit="a", reason="not agreed"))
    assert fleet.told("a")[:2] == ("append", given.SAFE)
    assert orders(fleet) == []
    pin_off(fleet, "b")
    assert orders(fleet) == ["b"]  # an adopted one that is pinned is restarted like any other


def test_an_owner_who_restarts_his_server_himself_is_waited_for_and_nothing_is_ordered():
    fleet = given.Fleet().enforce().qualified().granted("a", "b", "c")
    pin_off(fleet, "a")
    assert orders(fleet) == []
    assert waiting(fleet) == {"a": "unit owner"}
    fleet.restarts("a")
    assert waiting(fleet) == {}


def test_a_node_that_cannot_be_told_is_not_ordered():
    fleet = fleet_on_target("a", "b", "c")
    fleet.later(301, silent={"a"})
    pin_off(fleet, "a")
    assert orders(fleet) == []
    assert waiting(fleet) == {"a": "operator"}
    fleet.later(1)
    assert orders(fleet) == ["a"]


def test_a_server_over_two_nodes_is_ordered_whole_and_for_every_rank():
    fleet = fleet_on_target("a", "b", "c")
    whole = {"nnodes": 2, "unit_name": "two"}
    fleet.node("m", "n")
    for _ in range(2):
        fleet.launch("m", node_rank=0, restarter="hook", settled=False, **whole)
        fleet.launch("n", node_rank=1, **whole)
    for rank, node in enumerate("mn"):
        fleet.serves(node, given.TARGET, node_rank=rank, **whole)
    assert fleet.told("two")[1] == given.TARGET
    pin_off(fleet, "two")
    (order,) = fleet.seen(decisions.DrainOrdered)
    assert order.nodes == ("m", "n")
    assert set(order.launch_ids) == {"m-2", "n-2"}
    fleet.launch("m", node_rank=0, restarter="hook", settled=False, **whole)
    fleet.launch("n", node_rank=1, **whole)
    fleet.serves("m", given.SAFE, node_rank=0, **whole)
    assert ended(fleet) == []  # its second rank has attested nothing
    fleet.serves("n", given.SAFE, node_rank=1, **whole)
    assert ended(fleet) == [("two", "safe")]


def test_a_launch_that_is_not_decided_yet_is_let_come_up():
    fleet = fleet_on_target("a", "b", "c")
    whole = {"nnodes": 2, "unit_name": "two"}
    fleet.node("m", "n")
    fleet.launch("m", node_rank=0, settled=False, **whole)
    fleet.launch("n", node_rank=1, **whole)
    pin_off(fleet, "two")
    fleet.launch("m", node_rank=0, **whole)
    fleet.serves("m", given.TARGET, node_rank=0, **whole)
    assert fleet.unit("two").launch.decided is None
    assert drains.need(fleet.state, fleet.unit("two"), fleet.now_us) is None


# The budget


def test_one_after_the_other_the_longest_waiting_first():
    fleet = fleet_on_target("a", "b", "c")
    pin_off(fleet, "c", "a", "b")
    assert orders(fleet) == ["c"]
    assert waiting(fleet) == {"a": "operator", "b": "operator"}
    fleet.restarts("c", restarter="hook")
    assert orders(fleet) == ["c", "a"]
    fleet.restarts("a", restarter="hook")
    fleet.restarts("b", restarter="hook")
    assert orders(fleet) == ["c", "a", "b"]
    assert ended(fleet) == [("c", "safe"), ("a", "safe"), ("b", "safe")]


@pytest.mark.parametrize("state", ["starting", "unhealthy", "exited"])
def test_a_server_that_somebody_else_took_down_uses_up_the_budget(state):
    fleet = fleet_on_target("a", "b", "c")
    fleet.instance("b", state, exit_code=0 if state == "exited" else None)
    pin_off(fleet, "a")
    assert orders(fleet) == []
    assert "b:" in next(w.sentence for w in fleet.waits if w.code == "drain_waits")
    fleet.instance("b", "serving")
    assert orders(fleet) == ["a"]


def test_a_larger_budget_takes_more_at_once_and_the_serving_share_bounds_it():
    fleet = fleet_on_target("a", "b", "c", "d", max_units_down=3, min_serving_share=0.5)
    pin_off(fleet, "a", "b", "c", "d")
    assert orders(fleet) == ["a", "b"]
    assert waiting(fleet) == {"c": "approver", "d": "approver"}


def test_the_only_server_is_not_restarted_and_the_wait_says_who_can_change_that():
    fleet = fleet_on_target("a")
    pin_off(fleet, "a")
    assert orders(fleet) == []
    (wait,) = [w for w in fleet.waits if w.code == "drain_waits"]
    assert wait.owner == "approver"
    assert "1 of 1 live units of SM 10.7 serve" in wait.sentence
    assert "min_serving_share" in wait.next_step
    fleet.orders(
        commands.PublishPolicy(policy=given.policy.Policy(min_serving_share=0), reason="a window")
    )
    assert orders(fleet) == ["a"]


def test_servers_that_hang_do_not_wait_for_each_other():
    fleet = fleet_on_target("a", "b", "c", hang_after_s=60)
    for node in ("a", "b", "c"):
        fleet.instance(node, "unhealthy")
    fleet.later(60)
    assert fleet.told("a")[2] == "fault_in_service"
    assert orders(fleet) == ["a"]
    fleet.restarts("a", restarter="hook")
    assert orders(fleet) == ["a", "b"]


def test_a_node_that_is_not_heard_may_be_down_and_one_that_is_retired_is_gone():
    fleet = fleet_on_target("a", "b", "c")
    fleet.later(301, silent={"b"})
    assert drain_budget.budget(fleet.state, "10.7").down == {fleet.id("b")}
    pin_off(fleet, "a")
    assert orders(fleet) == []
    fleet.orders(commands.RetireNode(node="b", reason="gone"))
    assert drain_budget.budget(fleet.state, "10.7").live == 2
    assert orders(fleet) == ["a"]


def test_a_server_whose_first_rank_is_not_known_to_serve_is_down():
    fleet = fleet_on_target("a", "b", "c")
    whole = {"nnodes": 2, "unit_name": "two"}
    fleet.node("m", "n")
    fleet.launch("m", node_rank=0, settled=False, **whole)
    fleet.launch("n", node_rank=1, **whole)
    fleet.serves("n", given.SAFE, node_rank=1, **whole)
    assert drain_budget.budget(fleet.state, "10.7").down == {"two"}
    fleet.serves("m", given.SAFE, node_rank=0, **whole)
    assert drain_budget.budget(fleet.state, "10.7").down == set()


def test_units_that_are_nobodys_or_not_ours_are_not_counted():
    fleet = fleet_on_target("a", "b", "c")
    fleet.instance("b", "exited", exit_code=0)
    fleet.orders(commands.ExcludeUnit(unit="b", reason="gone for a month"))
    fleet.node("l")
    fleet.launch("l", model=given.OTHER_MODEL, model_digest=given.OTHER_MODEL.digest)
    found = drain_budget.budget(fleet.state, "10.7")
    assert (found.live, found.down) == (2, set())
    pin_off(fleet, "a")
    assert orders(fleet) == ["a"]


# How orders end badly, or are not needed any more


@pytest.mark.parametrize("outcome", ["failed", "timeout", "interrupted", "no_hook"])
def test_a_hook_that_fails_stops_the_rest_until_a_person_restarts_the_server(outcome):
    fleet = fleet_on_target("a", "b", "c")
    pin_off(fleet, "a", "b")
    hook_ends(fleet, "a", outcome, 3)
    assert ended(fleet) == [("a", f"hook_{outcome}")]
    assert "drain_failed" in fleet.alarms()
    assert waiting(fleet, "drain_failed") == {"a": "unit owner"}
    fleet.later(10 * HOUR_S)
    assert orders(fleet) == ["a"]
    fleet.restarts("a", restarter="hook")
    assert ended(fleet)[1:] == [("a", "safe")]
    assert orders(fleet) == ["a", "b"]
    assert "drain_failed" not in fleet.alarms()


def test_a_hook_of_an_order_that_has_ended_says_nothing_about_the_next():
    fleet = fleet_on_target("a", "b", "c")
    pin_off(fleet, "a")
    stale = facts.DrainHookEnded(order=1, unit=fleet.id("a"), outcome="failed", exit_code=1)
    fleet.says("a", stale)
    fleet.says(
        "b",
        facts.DrainHookEnded(
            order=fleet.state.drains[fleet.id("a")].order, unit=fleet.id("a"), outcome="failed"
        ),
    )
    assert ended(fleet) == []


def test_one_that_comes_back_on_the_target_is_not_restarted_again():
    fleet = fleet_on_target("a", "b", "c")
    pin_off(fleet, "a", "b")
    hook_ends(fleet, "a")
    fleet.launch("a", restarter="hook")
    fleet.serves("a", given.TARGET)
    assert ended(fleet) == [("a", "still_on_target")]
    fleet.later(10 * HOUR_S)
    assert orders(fleet) == ["a"]


@pytest.mark.parametrize(
    ("hook", "starts", "says"),
    [
        (None, False, "No agent ran the drain hook"),
        ("succeeded", False, "nothing was restarted"),
        ("succeeded", True, "does not serve"),
    ],
)
def test_the_time_of_an_order_runs_out_and_says_where_it_stands(hook, starts, says):
    fleet = fleet_on_target("a", "b", "c")
    pin_off(fleet, "a")
    if hook:
        hook_ends(fleet, "a", hook)
    if starts:
        fleet.launch("a", restarter="hook")
        fleet.instance("a", "starting")
    fleet.later(HOUR_S - 1)
    assert ended(fleet) == []
    fleet.later(1)
    assert ended(fleet) == [("a", "timed_out")]
    assert says in fleet.seen(decisions.DrainFailed)[0].sentence


def test_the_time_stands_still_while_nobody_leads():
    fleet = fleet_on_target("a", "b", "c")
    pin_off(fleet, "a")
    fleet.away(10 * HOUR_S)
    fleet.later(HOUR_S - 1)
    assert ended(fleet) == []
    fleet.later(1)
    assert ended(fleet) == [("a", "timed_out")]


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (commands.UnpinUnit(unit="a", reason="it was the prompt"), "reason_lifted"),
        (commands.ExcludeUnit(unit="a", reason="mine"), "reason_lifted"),
        (commands.RetireNode(node="a", reason="gone"), "gone"),
    ],
)
def test_an_order_is_withdrawn_when_it_is_not_needed_any_more(command, code):
    fleet = fleet_on_target("a", "b", "c")
    pin_off(fleet, "a", "b")
    fleet.orders(command)
    assert ended(fleet) == [("a", code)]
    assert orders(fleet) == ["a", "b"]


def test_a_hook_that_fails_after_the_server_was_restarted_is_no_failure():
    fleet = fleet_on_target("a", "b", "c")
    pin_off(fleet, "a")
    fleet.launch("a", restarter="hook")
    fleet.instance("a", "starting")
    hook_ends(fleet, "a", "failed", 1)
    assert ended(fleet) == []
    fleet.serves("a", given.SAFE)
    assert ended(fleet) == [("a", "safe")]
