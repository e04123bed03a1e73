"""Every invariant can fail: a history made by hand that breaks it, beside one that does not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests import given

from smgate.domain import commands, decisions, facts, policy, rulings, values
from smgate.domain.state import Fleet
from smgate.scenario import invariants, watch


@pytest.fixture
def fleet():
    """Two servers on SM107 that a rollout granted the target, one that came later, a pool."""
    made = given.Fleet(min_gpu_sets=2).enforce().qualified()
    made.granted("a", "b")
    made.node("c")
    made.launch("c")
    return made


def told(fleet, name, **changes):
    """A standing decision, as one that names no launches."""
    return replace(fleet.override(name), launch_ids=(), **changes)


def target(fleet, name, **changes):
    return told(fleet, name, form="append", value=given.TARGET, **changes)


def grant(fleet, name, **changes):
    made = decisions.Granted(
        unit=fleet.id(name), kernel_keys=(given.KEY,), rollout="r1", wave=0, code="granted"
    )
    return replace(made, **changes)


def other_sm(fleet):
    fleet.node("z", sm="9.0")
    fleet.launch("z", sm="9.0")
    return target(fleet, "z")


def mixed_sms(fleet):
    gpus = (values.Gpu(uuid="GPU-m1", sm="10.7"), values.Gpu(uuid="GPU-m2", sm="10.3"))
    fleet.launch("m", gpus=gpus)
    return target(fleet, "m")


def expert_parallel(fleet):
    fleet.launch("c", asked_a2a="deepep")
    return target(fleet, "c")


def dies_of_it(fleet):
    fleet.node("y", sm="8.0")
    fleet.launch("y", sm="8.0")
    return told(fleet, "y", form="append", value=given.SAFE)


def split(fleet):
    decided = fleet.decided("a")
    return replace(decided, value=given.SAFE, launch_ids=(*decided.launch_ids, "later"))


def twice(fleet):
    return fleet.decided("a")


def frozen_out(fleet):
    return told(fleet, "a", value=given.SAFE, code="freeze")


def restored(fleet, *waiting):
    """After a restore of which all but these nodes have said what they held."""
    nodes = dict.fromkeys(fleet.state.nodes)
    fleet.record(decisions.LogRestored(before="log", incarnation="two", reason="r"), "controller")
    for node in nodes:
        if node not in waiting:
            held = facts.DirectiveHeld(restored_as="two", incarnation="log", generation=1, units=())
            fleet.says(node, held)
    return told(fleet, "a", value=given.SAFE, code="restore_unfinished")


def without_a_grant(fleet):
    return target(fleet, "c", code="granted")


def offered_again(fleet):
    fleet.check("a", outcome="failed")
    return target(fleet, "a")


def granted_again(fleet):
    fleet.check("a", outcome="failed")
    return grant(fleet, "a")


def during_a_freeze(fleet):
    fleet.orders(commands.DeclareFreeze(id="f", reason="r"))
    return grant(fleet, "c")


def with_the_breaker_open(fleet):
    fleet.record(decisions.BreakerTripped(units=("a",), window_s=1), "controller")
    return decisions.WaveOpened(rollout="r1", wave=1, units=(), eligible=0)


def of_a_halted_rollout(fleet):
    fleet.orders(commands.HaltRollout(rollout="r1", reason="r"))
    return decisions.WaveJoined(rollout="r1", wave=0, units=(fleet.id("c"),))


def while_observing(fleet):
    fleet.orders(commands.SetGateMode(gate=given.GATE, sm="10.7", mode="observe", reason="r"))
    return grant(fleet, "c")


def while_disabled(fleet):
    fleet.orders(commands.DisableGate(gate=given.GATE, reason="r"))
    return grant(fleet, "c")


def while_excluded(fleet):
    fleet.orders(commands.ExcludeUnit(unit="c", reason="r"))
    return grant(fleet, "c")


def of_an_unknown_key(fleet):
    fleet.launch("c", build=given.build(flashinfer_version="0.9.9"))
    key = given.key_of(given.build(flashinfer_version="0.9.9"))
    return grant(fleet, "c", kernel_keys=(key,))


def of_another_key(fleet):
    return grant(fleet, "c", kernel_keys=("0" * 16,))


def of_a_silent_node(fleet):
    fleet.later(301, silent=["c"])
    return grant(fleet, "c")


def in_no_wave(fleet):
    return grant(fleet, "c")


def after_nothing(fleet):
    return grant(fleet, "c", rollout=None, wave=None, code="standing")


def above_the_limit(fleet):
    limited = policy.Policy(min_gpu_sets=2, exposure_limit_units=2)
    fleet.record(rulings.PolicyPublished(policy=limited, reason="r"), "operator:alice")
    return grant(fleet, "c")


def one_too_many_in_flight(fleet):
    plan = fleet.state.rollouts["r1"].plan
    fleet.state.rollouts["r1"].plan = replace(plan, max_in_flight=2)
    fleet.launch("c", settled=False)
    return grant(fleet, "c")


def ended_by(fleet, code):
    return decisions.GrantEnded(
        unit=fleet.id("a"), kernel_keys=(given.KEY,), gpu_uuids=("GPU-a",), code=code, sentence="s"
    )


def own_approval(fleet):
    return rulings.RolloutApproved(rollout="r1", approver="alice", reason="r")


def own_acceptance(fleet):
    fleet.record(
        rulings.ChangeAsked(command="freeze_lift", body={"id": "f"}, by="alice", reason="r"),
        "operator:alice",
    )
    change = list(fleet.state.changes)[-1]
    return rulings.ChangeAccepted(change=change, author="alice", accepted_by="alice", reason="r")


def drain(fleet, name, **changes):
    launch = fleet.unit(name).launch
    made = decisions.DrainOrdered(
        unit=fleet.id(name),
        code="pinned_off",
        sentence="s",
        launch_ids=launch.launch_ids,
        nodes=(name,),
        timeout_s=1,
        deadline_us=fleet.now_us,
    )
    return replace(made, **changes)


def not_told_the_safe_value(fleet):
    return drain(fleet, "a")


def of_another_launch(fleet):
    fleet.orders(commands.PinUnit(unit="a", direction="off", reason="r"))
    return drain(fleet, "a", launch_ids=("older",))


def off_the_target_already(fleet):
    fleet.orders(commands.PinUnit(unit="a", direction="off", reason="r"))
    fleet.restarts("a")
    return drain(fleet, "a")


def by_a_node_that_nobody_hears(fleet):
    fleet.later(301, silent=["a"])
    fleet.orders(commands.PinUnit(unit="a", direction="off", reason="r"))
    return drain(fleet, "a")


def one_too_many_down(fleet):
    """Servers that their owners restart: the controller orders none of them itself."""
    allowed = policy.Policy(min_gpu_sets=2, max_units_down=1, min_serving_share=0.0)
    fleet.orders(commands.PublishPolicy(policy=allowed, reason="r"))
    for name in ("a", "b"):
        fleet.orders(commands.PinUnit(unit=name, direction="off", reason="r"))
    fleet.record(drain(fleet, "a"), "controller")
    return drain(fleet, "b")


def too_few_left(fleet):
    allowed = policy.Policy(min_gpu_sets=2, max_units_down=9, min_serving_share=0.9)
    fleet.orders(commands.PublishPolicy(policy=allowed, reason="r"))
    fleet.orders(commands.PinUnit(unit="a", direction="off", reason="r"))
    return drain(fleet, "a")


BROKEN = {
    "within_the_gate": [other_sm, mixed_sms, expert_parallel],
    "constructs": [dies_of_it],
    "never_split": [split, twice],
    "stopping_ends_nothing": [frozen_out, restored],
    "only_by_a_grant": [without_a_grant],
    "not_offered_again": [offered_again, granted_again],
    "nothing_opens_while_stopped": [
        during_a_freeze,
        with_the_breaker_open,
        of_a_halted_rollout,
    ],
    "only_where_enforced": [while_observing, while_disabled, while_excluded],
    "evidence_first": [of_an_unknown_key, of_another_key, of_a_silent_node],
    "by_a_rollout": [in_no_wave, after_nothing],
    "within_the_limits": [above_the_limit, one_too_many_in_flight],
    "only_keep_rules_end": [
        lambda fleet: ended_by(fleet, "freeze"),
        lambda fleet: ended_by(fleet, "pinned_off"),
        lambda fleet: ended_by(fleet, "self_test_failed"),
    ],
    "two_people": [own_approval, own_acceptance],
    "drained_onto_the_safe_value": [
        not_told_the_safe_value,
        of_another_launch,
        off_the_target_already,
        by_a_node_that_nobody_hears,
    ],
    "drains_within_the_budget": [one_too_many_down, too_few_left],
}
"""Per invariant, how the last event of a history breaks it."""


def test_every_invariant_has_a_history_that_breaks_it():
    assert set(BROKEN) == {check.__name__ for check, _ in invariants.OF_EVENTS}


@pytest.mark.parametrize(
    ("name", "breaks"), [(name, one) for name, found in BROKEN.items() for one in found]
)
def test_an_invariant_finds_the_event_that_breaks_it(fleet, name, breaks):
    event = breaks(fleet)
    found = dict(invariants.of_event(fleet.state, event))
    assert found[name], f"{name} did not see {event}"


def test_a_start_is_careful_until_its_nodes_have_said_what_they_held(fleet):
    event = restored(fleet, "a")
    assert dict(invariants.of_event(fleet.state, event))["stopping_ends_nothing"] is None


def test_what_the_real_core_records_breaks_none(fleet):
    fleet.check("a", outcome="failed")
    fleet.orders(commands.PinUnit(unit="b", direction="off", reason="r"))
    watched = watch.Watch()
    watched.take(fleet.history)
    watched.settled(fleet.now_us)
    watched.same_as(fleet.state)
    assert watched.violations == []
    assert set(watched.checks) >= set(BROKEN) - {
        "two_people",
        "drained_onto_the_safe_value",
        "drains_within_the_budget",
    }


def test_a_grant_that_goes_without_its_event_is_seen(fleet):
    before = invariants.standing(fleet.state)
    frozen = rulings.FreezeDeclared(id="f", reason="r")
    assert invariants.grants_end_only_by_name(before, fleet.state, frozen) is None
    fleet.unit("a").drop_grants()
    assert invariants.grants_end_only_by_name(before, fleet.state, frozen)
    ended = ended_by(fleet, "pinned_off")
    assert invariants.grants_end_only_by_name(before, fleet.state, ended) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"sentence": "Another."},
        {"facts": (1,)},
        {"rules_version": "0"},
        {"also": ("x",)},
    ],
)
def test_a_decision_that_is_not_the_rules_own_is_seen(changes):
    fleet = given.Fleet().enforce()
    fleet.node("a")
    fleet.launch("a")
    history = fleet.history
    index = next(i for i, r in enumerate(history) if isinstance(r.event, decisions.OverrideSet))
    changed = history[index]._replace(event=replace(history[index].event, **changes))
    for last, violations in ((history[index], 0), (changed, 1)):
        watched = watch.Watch()
        watched.take([*history[:index], last])
        assert [v.invariant for v in watched.violations] == ["recomputes"] * violations


def test_a_wait_that_ran_out_unsaid_is_seen(fleet):
    assert invariants.waits_are_kept(fleet.state, fleet.now_us) is None
    assert "ran out" in (invariants.waits_are_kept(fleet.state, fleet.now_us + 10**14) or "")


def test_a_fact_that_nobody_planned_for_is_seen(fleet):
    fleet.launch("c", settled=False)
    watched = watch.Watch()
    watched.take(fleet.history)
    watched.settled(fleet.now_us)
    assert [v.invariant for v in watched.violations] == ["nothing_is_forgotten"]


def test_a_fold_that_differs_is_seen(fleet):
    watched = watch.Watch()
    watched.take(fleet.history)
    watched.snapshot()
    watched.same_as(fleet.state)
    assert watched.violations == []
    watched.same_as(Fleet())
    assert [v.invariant for v in watched.violations] == ["replays"]
