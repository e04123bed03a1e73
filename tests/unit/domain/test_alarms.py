"""Alarms, silence, waits and the breaker: computed apart from the table, in every mode."""

import pytest
from tests import given

from smgate.domain import alarms, commands, decisions, facts, rules, sensing, values

CODES_OF_THE_DESIGN = {
    "memory_fallback",
    "override_not_in_effect",
    "uncontrolled",
    "exposed",
    "unit_disagrees",
}


@pytest.fixture
def fleet():
    """Three servers on SM107 behind launch gates, in observe mode."""
    made = given.Fleet()
    made.node("a", "b", "c")
    for node in "abc":
        made.launch(node)
    return made


def episodes(fleet, cause):
    return [e for e in fleet.state.episodes.values() if e.cause == cause]


def test_the_alarms_of_the_design_are_known():
    assert set(alarms.SENTENCES) >= CODES_OF_THE_DESIGN
    assert set(alarms.SENTENCES) >= set(alarms.LOUD_CODES)


def test_one_episode_per_cause_however_many_units(fleet):
    for node in "abc":
        fleet.serves(node, "auto")
    (episode,) = episodes(fleet, "memory_fallback")
    assert episode.units == tuple(sorted(fleet.id(node) for node in "abc"))
    assert (episode.gate, episode.sm) == (given.GATE, "10.7")


def test_an_episode_closes_after_its_quiet_time_and_not_before(fleet):
    fleet.serves("a", "auto")
    fleet.says("a", facts.MemoryFallbackCleared(instance_id="k3"))
    (episode,) = episodes(fleet, "memory_fallback")
    fleet.later(299)
    assert episode.closed_us is None
    fleet.serves("a", "marlin")
    fleet.later(1)
    assert episode.closed_us == fleet.now_us


def test_a_cause_that_comes_back_in_the_quiet_time_keeps_its_episode(fleet):
    fleet.serves("a", "auto")
    fleet.says("a", facts.MemoryFallbackCleared(instance_id="k3"))
    fleet.later(200)
    fleet.says("a", facts.MemoryFallbackSeen(instance_id="k3", phase="active"))
    fleet.later(200)
    (episode,) = episodes(fleet, "memory_fallback")
    assert episode.closed_us is None
    fleet.says("a", facts.MemoryFallbackCleared(instance_id="k3"))
    fleet.later(300)
    fleet.says("a", facts.MemoryFallbackSeen(instance_id="k3", phase="active"))
    assert len(episodes(fleet, "memory_fallback")) == 2


@pytest.mark.parametrize(
    ("runner", "a2a", "mxfp4", "phase"),
    [
        ("auto", "none", True, "active"),
        ("triton", "none", True, "active"),
        ("auto", "megamoe", True, None),
        ("marlin", "none", True, None),
        (given.TARGET, "none", True, None),
        ("auto", "none", False, None),
        ("auto", "deepep", None, "active"),
    ],
)
def test_an_unresolved_runner_on_packed_experts_is_a_memory_fallback(
    fleet, runner, a2a, mxfp4, phase
):
    fleet.instance("a")
    fleet.says(
        "a",
        facts.EffectiveSeen(
            instance_id="k3",
            runner=runner,
            a2a=a2a,
            source="log",
            architecture=given.K3,
            mxfp4=mxfp4,
        ),
    )
    assert fleet.unit("a").live_instances()[0].fallback == phase
    assert ("memory_fallback" in fleet.alarms()) is (phase is not None)


def test_a_fallback_is_imminent_before_it_serves_and_crashed_when_it_dies_of_it(fleet):
    fleet.instance("a", "starting")
    fleet.effective("a", "auto")
    assert fleet.unit("a").live_instances()[0].fallback == "imminent"
    fleet.says("a", facts.MemoryFallbackSeen(instance_id="k3", phase="crashed"))
    fleet.instance("a", "exited", exit_code=1)
    assert "memory_fallback" in fleet.alarms()
    fleet.launch("a")
    fleet.serves("a", "marlin")
    assert "memory_fallback" not in fleet.alarms()
    assert fleet.state.fallbacks_total == {("10.7", "imminent"): 1, ("10.7", "crashed"): 1}


def test_a_fallback_that_is_reported_again_counts_once(fleet):
    fleet.serves("a", "auto")
    fleet.says("a", facts.MemoryFallbackSeen(instance_id="k3", phase="active"))
    fleet.effective("a", "auto")
    assert fleet.state.fallbacks_total == {("10.7", "active"): 1}


def test_a_fallback_that_reaches_serving_is_active(fleet):
    fleet.instance("a", "starting")
    fleet.effective("a", "auto")
    fleet.instance("a", "serving")
    assert fleet.state.fallbacks_total == {("10.7", "imminent"): 1, ("10.7", "active"): 1}


def test_another_model_in_auto_is_no_fallback(fleet):
    fleet.launch("a", model=given.OTHER_MODEL, model_digest=given.OTHER_MODEL.digest)
    fleet.instance("a")
    fleet.says("a", facts.EffectiveSeen(instance_id="k3", runner="auto", a2a="none", source="log"))
    assert fleet.alarms() == {"uncontrolled"}  # b and c, which SGLang starts on the target
    assert all(fleet.id("a") not in e.units for e in fleet.state.episodes.values())


def test_a_launch_that_sglang_would_put_on_the_target_is_uncontrolled_before_it_runs(fleet):
    (episode,) = episodes(fleet, "uncontrolled")
    assert episode.units == tuple(sorted(fleet.id(node) for node in "abc"))
    fleet.serves("a", "marlin")  # what it attests counts
    fleet.instance("b", "exited", exit_code=0)  # and one that ended runs nothing
    assert episode.units == (fleet.id("c"),)


@pytest.mark.parametrize(
    "launch",
    [
        {"build": given.build(sglang_version="0.5.18")},
        {"dry_resolved": values.Pair(runner="auto", a2a="none")},
        {"asked_a2a": "deepep"},
        {"argv_read": False},
        {"asked_runner": "triton"},
        {"model": given.NOT_PACKED, "model_digest": given.NOT_PACKED.digest},
        {"sm": "10.3"},
    ],
)
def test_a_launch_that_sglang_would_not_put_on_the_target_is_not_uncontrolled(launch):
    fleet = given.Fleet()
    fleet.node("a", sm=launch.get("sm", "10.7"))
    fleet.launch("a", **launch)
    assert "uncontrolled" not in fleet.alarms()
    fleet.enforce()
    fleet.node("b")
    fleet.launch("b")  # told the safe value
    assert "uncontrolled" not in fleet.alarms()


def test_an_override_that_is_not_in_effect_alarms():
    fleet = given.Fleet().enforce()
    fleet.node("a")
    fleet.launch("a")
    fleet.serves("a", "marlin")
    assert fleet.alarms() == set()
    fleet.launch("a")
    fleet.serves("a", "auto")
    assert fleet.alarms() == {"override_not_in_effect", "memory_fallback"}


def test_a_later_decision_does_not_make_a_running_server_wrong():
    fleet = given.Fleet().enforce().qualified()
    fleet.node("a")
    fleet.launch("a")
    fleet.serves("a", "marlin")
    fleet.rollout()
    assert fleet.told("a")[1] == given.TARGET
    assert "override_not_in_effect" not in fleet.alarms()
    fleet.restarts("a")
    fleet.orders(commands.PinUnit(unit="a", direction="off", reason="r"))
    assert fleet.alarms() == {"exposed"}


# Silence


def test_a_node_is_silent_after_its_time_and_returns(fleet):
    fleet.later(299, silent="a")
    assert not fleet.state.nodes["a"].silent
    fleet.later(1, silent="a")
    assert fleet.state.nodes["a"].silent
    assert not fleet.state.nodes["b"].silent
    fleet.later(1)
    assert not fleet.state.nodes["a"].silent
    assert [e.node for e in fleet.seen(decisions.NodeReturned)] == ["a"]


def test_an_outage_of_the_controller_silences_nobody(fleet):
    fleet.now_us += 7 * 86400 * given.SECOND_US
    taken = decisions.LeadershipTaken(
        epoch=2, holder="c2", away_us=7 * 86400 * given.SECOND_US, rules_version=rules.RULES_VERSION
    )
    fleet.record(taken, "controller")
    assert sensing.sense(fleet.state, contacts={}, now_us=fleet.now_us) == ()
    later = fleet.now_us + 300 * given.SECOND_US
    assert len(sensing.sense(fleet.state, contacts={}, now_us=later)) == 3


def test_a_fact_is_a_sign_of_life(fleet):
    fleet.now_us += 200 * given.SECOND_US
    fleet.instance("a")
    found = sensing.sense(fleet.state, contacts={}, now_us=fleet.now_us + 150 * given.SECOND_US)
    assert sorted(event.node for event in found) == ["b", "c"]


# The breaker


def trip(fleet, *nodes):
    for node in nodes:
        fleet.says(node, facts.GpuFaultSeen(gpu_uuid=f"GPU-{node}", xid=79))


@pytest.fixture
def granted():
    """Three servers on the target in a rollout that tolerates failures."""
    made = given.Fleet().enforce().qualified()
    return made.granted("a", "b", "c", failures_max=100, failure_percent=100)


def test_enough_units_gone_bad_in_the_window_open_the_breaker(granted):
    trip(granted, "a", "b")
    assert granted.state.breaker_position is None
    trip(granted, "c")
    assert granted.seen(decisions.BreakerTripped)[0].units == tuple(
        sorted(granted.id(node) for node in "abc")
    )
    assert "breaker_open" in granted.alarms()
    assert "breaker_open" in {wait.code for wait in granted.waits}


def test_bad_signs_outside_the_window_do_not(granted):
    trip(granted, "a", "b")
    granted.later(3600)
    trip(granted, "c")
    assert granted.state.breaker_position is None


def test_a_reset_breaker_needs_new_bad_signs(granted):
    trip(granted, "a", "b", "c")
    granted.orders(commands.ResetBreaker(reason="looked"))
    assert granted.state.breaker_position is None
    assert len(granted.seen(decisions.BreakerTripped)) == 1


# Waits


def test_a_grant_that_waits_for_its_restart_is_listed_and_said_after_its_time():
    fleet = given.Fleet().enforce().qualified()
    fleet.node("a")
    fleet.launch("a")
    fleet.rollout(wave_timeout_s=365 * 86400, rollout_timeout_s=365 * 86400)
    assert "grant" in {wait.code for wait in fleet.waits}
    fleet.later(14 * 86400 - 1)
    assert fleet.seen(decisions.WaitTimedOut) == []
    fleet.later(1)
    assert [event.code for event in fleet.seen(decisions.WaitTimedOut)] == ["grant"]
    fleet.restarts("a")
    assert "grant" not in {wait.code for wait in fleet.waits}


def test_an_adopted_unit_waits_for_a_person_and_is_said_after_its_time(fleet):
    fleet.serves("a")
    (wait,) = [wait for wait in fleet.waits if wait.code == "adopted"]
    assert wait.owner == "approver"
    fleet.later(7 * 86400)
    assert "adopted" in {event.code for event in fleet.seen(decisions.WaitTimedOut)}


def test_only_a_person_ends_a_freeze(fleet):
    fleet.orders(commands.DeclareFreeze(id="f", reason="holidays"))
    (wait,) = [wait for wait in fleet.waits if wait.code == "freeze"]
    assert wait.remaining_us is None
    fleet.later(365 * 86400)
    assert "freeze" in {wait.code for wait in fleet.waits}


def test_the_planner_says_when_it_will_have_something_to_do(fleet):
    fleet.launch("a", nnodes=2, unit_name="two")
    due = given.planner.plan(fleet.state, fleet.now_us).next_due_us
    assert due == fleet.now_us + 60 * given.SECOND_US


def test_a_crash_loop_that_was_not_told_so_is_one_alarm(fleet):
    fleet.enforce()
    for _ in range(4):
        fleet.launch("a")
        fleet.instance("a", "starting")
        fleet.effective("a", "auto")
        fleet.later(900)
        fleet.instance("a", "exited", exit_code=1)
        fleet.later(200)
    (episode,) = episodes(fleet, "override_not_in_effect")
    assert episode.closed_us is None


def test_a_server_that_somebody_stopped_has_nothing_in_effect(fleet):
    fleet.enforce()
    fleet.launch("a")
    fleet.serves("a", "auto")
    fleet.instance("a", "exited", exit_code=0)
    fleet.later(301)
    (episode,) = episodes(fleet, "override_not_in_effect")
    assert episode.closed_us is not None
