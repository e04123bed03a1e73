"""One decision per unit launch: gathering ranks, late ranks, the most careful member, `keep`."""

from dataclasses import replace

import pytest
from tests import given

from smgate.domain import commands, decisions, facts, policy, values

GRANTED = ("append", given.TARGET, "granted")
NEWER = given.build(flashinfer_version="0.7.3")


@pytest.fixture
def fleet():
    """SM107 is enforced and the usual build qualified; nodes m and n run nothing yet."""
    made = given.Fleet().enforce().qualified()
    made.node("m", "n")
    return made


def rank(fleet, node, number, *, nnodes=2, **changes):
    return fleet.launch(node, nnodes=nnodes, node_rank=number, unit_name="two", **changes)


def both(fleet, **of_the_second):
    rank(fleet, "m", 0)
    rank(fleet, "n", 1, **of_the_second)


def serve(fleet, *, second=given.TARGET):
    for number, (node, runner) in enumerate((("m", given.TARGET), ("n", second))):
        fleet.serves(node, runner, unit_name="two", nnodes=2, node_rank=number)


# Gathering


def test_a_unit_of_one_node_is_decided_at_once(fleet):
    fleet.launch("m")
    assert fleet.decided("m").launch_ids == ("m-1",)


def test_a_unit_launch_waits_for_all_its_ranks(fleet):
    rank(fleet, "m", 0)
    assert fleet.unit("two").override is None
    assert [(wait.code, wait.sentence) for wait in fleet.waits] == [
        ("unit_launch", "1 of 2 ranks have reported this launch.")
    ]
    rank(fleet, "n", 1)
    assert fleet.decided("m").launch_ids == ("m-1", "n-1")
    assert fleet.override("two").nodes == ("m", "n")


@pytest.mark.parametrize(("waited", "decided"), [(59.9, False), (60, True)])
def test_the_gather_deadline_decides_with_what_is_known(fleet, waited, decided):
    rank(fleet, "m", 0)
    fleet.later(waited)
    assert (fleet.unit("two").override is not None) is decided


def test_a_rank_that_never_reported_gets_the_unit_no_start(fleet):
    fleet.rollout()
    rank(fleet, "m", 0)
    fleet.later(60)
    override = fleet.override("two")
    assert override.value == given.SAFE
    assert "unit_incomplete" in (override.code, *override.also)


def test_the_last_reading_stands_for_a_rank_that_is_late_this_time(fleet):
    both(fleet)
    fleet.rollout()
    rank(fleet, "m", 0)
    fleet.later(60)
    assert fleet.told("two") == GRANTED


def test_the_last_reading_of_a_late_rank_can_also_speak_against(fleet):
    both(fleet, build=NEWER)
    fleet.rollout()
    rank(fleet, "m", 0)
    fleet.later(60)
    assert fleet.told("two")[:2] == ("append", given.SAFE)


def test_time_without_a_leader_does_not_count_towards_the_deadline(fleet):
    rank(fleet, "m", 0)
    fleet.away(3600)
    assert fleet.unit("two").override is None
    fleet.later(60)
    assert fleet.unit("two").override is not None


# Late ranks


def test_a_late_rank_gets_the_same_value_though_the_standing_decision_has_moved(fleet):
    both(fleet)
    fleet.rollout()
    rank(fleet, "m", 0)
    fleet.later(60)
    first = fleet.decided("m")
    assert first.value == given.TARGET
    fleet.orders(commands.DisableGate(gate=given.GATE, reason="stop"))
    rank(fleet, "n", 1)
    late = fleet.decided("n")
    assert (late.form, late.value, late.code) == (first.form, first.value, first.code)
    assert late.launch_ids == ("m-2", "n-2")
    assert late.nodes == ("m", "n")
    assert fleet.told("two") == ("append", given.SAFE, "gate_disabled")


def test_the_node_of_a_rank_that_was_never_known_is_told_too(fleet):
    rank(fleet, "m", 0)
    fleet.later(60)
    assert fleet.decided("m").nodes == ("m",)
    rank(fleet, "n", 1)
    assert fleet.decided("n").nodes == ("m", "n")
    assert fleet.decided("n").launch_ids == ("m-1", "n-1")


@pytest.mark.parametrize(
    ("changes", "alarms"),
    [
        ({}, False),
        ({"asked_runner": "triton", "asked_runner_in": "argv"}, True),
        ({"asked_a2a": "deepep"}, True),
        ({"model": given.OTHER_MODEL, "model_digest": given.OTHER_MODEL.digest}, True),
        ({"build": NEWER}, False),
    ],
)
def test_a_late_rank_that_contradicts_the_decision_opens_an_alarm(fleet, changes, alarms):
    rank(fleet, "m", 0)
    fleet.later(60)
    rank(fleet, "n", 1, **changes)
    assert ("unit_disagrees" in fleet.alarms()) is alarms


def test_a_rank_that_starts_anew_opens_a_new_launch(fleet):
    both(fleet)
    rank(fleet, "m", 0)
    assert fleet.unit("two").launch.decided is None
    rank(fleet, "n", 1)
    assert fleet.decided("n").launch_ids == ("m-2", "n-2")


def test_ranks_that_attest_different_pairs_end_the_grant(fleet):
    both(fleet)
    fleet.rollout()
    both(fleet)
    serve(fleet, second="marlin")
    assert fleet.told("two") == ("append", given.SAFE, "unit_disagreed_here")
    assert [e.code for e in fleet.seen(decisions.GrantEnded)] == ["unit_disagreed_here"]


# The most careful member


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, GRANTED),
        ({"build": NEWER}, ("append", given.SAFE, "build_not_qualified")),
        (
            {"asked_runner": "triton", "asked_runner_in": "argv"},
            ("untouched", None, "explicit_choice"),
        ),
        ({"asked_a2a": "deepep"}, ("untouched", None, "layout_not_covered")),
        ({"platform": "rocm"}, ("untouched", None, "not_cuda")),
        ({"draft_asserts_auto": True}, GRANTED),
    ],
)
@pytest.mark.parametrize("careful", [0, 1])
def test_one_value_for_all_ranks_that_of_the_most_careful(fleet, changes, told, careful):
    both(fleet)
    fleet.rollout()
    assert fleet.told("two") == GRANTED
    rank(fleet, "m", 0, **(changes if careful == 0 else {}))
    rank(fleet, "n", 1, **(changes if careful == 1 else {}))
    assert fleet.told("two") == told


def test_a_failure_on_one_rank_gives_all_ranks_the_safe_value(fleet):
    both(fleet)
    fleet.rollout()
    fleet.check("n", outcome="failed")
    assert fleet.told("two") == ("append", given.SAFE, "self_test_failed")


def test_no_safe_value_on_one_rank_means_none_for_the_unit(fleet):
    both(fleet, draft_asserts_auto=True)
    assert fleet.told("two") == ("untouched", None, "no_rollout")
    assert fleet.override("two").no_safe_value


def test_of_two_hands_off_the_one_that_appends_nothing_wins(fleet):
    both(fleet)
    for node in "mn":
        fleet.applies(node)
    fleet.node("m", sm=None)
    rank(fleet, "m", 0, gpus=(values.Gpu(uuid="GPU-new"),))
    rank(fleet, "n", 1, model=given.OTHER_MODEL, model_digest=given.OTHER_MODEL.digest)
    assert fleet.told("two") == ("untouched", None, "not_applicable")


# Unit names


def test_a_unit_of_one_node_ignores_the_names_it_is_given(fleet):
    fleet.launch("m", unit_name="deployment", workload="deployment")
    fleet.launch("n", unit_name="deployment", workload="deployment")
    assert fleet.id("m") != fleet.id("n")


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ({"unit_name": "u", "workload": "w", "rendezvous": "h:1"}, "u"),
        ({"workload": "w", "rendezvous": "h:1"}, "w"),
        ({"rendezvous": "h:1"}, "h:1"),
    ],
)
def test_a_unit_of_several_nodes_has_the_most_stable_name_it_was_given(fleet, names, expected):
    fleet.launch("m", nnodes=2, **names)
    assert fleet.id(expected) == expected


def test_a_new_launch_on_the_gpus_of_a_dead_unit_supersedes_it(fleet):
    fleet.launch("m")
    before = fleet.id("m")
    both(fleet)
    assert not fleet.state.units[before].live
    assert "gpu_overlap" not in fleet.alarms()


def test_two_live_servers_on_one_gpu_alarm(fleet):
    fleet.launch("m")
    fleet.instance("m", instance_id="first")
    both(fleet)
    serve(fleet, second="marlin")
    assert "gpu_overlap" in fleet.alarms()


# Keep


@pytest.fixture
def kept(fleet):
    """A unit whose gate last appended the target; then a person excluded it."""
    fleet.launch("m")
    fleet.rollout()
    fleet.restarts("m")
    assert fleet.unit("m").appended_value == given.TARGET
    fleet.orders(commands.ExcludeUnit(unit="m", reason="mine"))
    return fleet


def test_keep_appends_again_what_was_appended_last(kept):
    assert kept.told("m") == ("keep", given.TARGET, "excluded")


def test_keep_takes_the_safe_value_if_only_the_kernel_key_differs(kept):
    kept.launch("m", build=NEWER)
    assert kept.told("m") == ("keep", given.SAFE, "excluded")


@pytest.mark.parametrize(
    "changes",
    [
        {"model": replace(given.MODEL, digest="77" * 8), "model_digest": "77" * 8},
        {"asked_a2a": "deepep"},
        {"gpus": (values.Gpu(uuid="GPU-m", sm="10.3"),)},
    ],
)
def test_keep_appends_nothing_if_anything_else_differs(kept, changes):
    kept.launch("m", **changes)
    assert kept.told("m")[:2] == ("keep", None)


def test_keep_appends_nothing_if_nothing_ever_was(fleet):
    fleet.launch("m")
    fleet.orders(commands.ExcludeUnit(unit="m", reason="mine"))
    assert fleet.told("m") == ("keep", None, "excluded")


def test_keep_survives_a_launch_that_appended_nothing(kept):
    launch_id = kept.launch("m")
    kept.says(
        "m",
        facts.OverrideApplied(
            launch_id=launch_id, form="untouched", source="local_rule", code="local_untouched"
        ),
    )
    assert kept.told("m") == ("keep", given.TARGET, "excluded")


def test_keep_never_appends_what_would_not_start(kept):
    kept.launch("m", build=given.build(torch_cuda="12.6"))
    assert kept.told("m") == ("keep", None, "excluded")


def test_keep_appends_nothing_over_an_explicit_choice(kept):
    kept.launch("m", asked_runner="triton", asked_runner_in="argv")
    assert kept.told("m") == ("keep", None, "excluded")


def test_ranks_of_different_builds_keep_what_they_had(fleet):
    both(fleet, build=NEWER)
    for node in "mn":
        fleet.applies(node)
    fleet.orders(commands.ExcludeUnit(unit="two", reason="mine"))
    assert fleet.told("two") == ("keep", given.SAFE, "excluded")


def test_a_grant_is_not_in_force_while_a_rank_runs_nobody_knows_what(fleet):
    both(fleet)
    fleet.rollout()
    both(fleet)
    serve(fleet)
    assert "uncontrolled" not in fleet.alarms()
    both(fleet, build=given.build(flashinfer_version=None))
    assert fleet.told("two") == ("append", given.SAFE, "build_not_qualified")
    serve(fleet)
    assert "uncontrolled" in fleet.alarms()


def test_a_torch_that_is_no_version_stops_only_its_own_unit(fleet):
    fleet.launch("m", build=given.build(torch_cuda="nightly"))
    fleet.launch("n")
    fleet.rollout(select=policy.Selector(racks=("r1",)))
    assert fleet.told("m")[1] != given.TARGET
    assert fleet.told("n") == GRANTED


def test_what_must_end_on_one_rank_is_said_before_what_may_not_start_on_another(fleet):
    """Else it would enter a wave that it can never pass."""
    fleet.orders(
        commands.PublishIssue(
            issue=policy.KnownIssue(id="driver", title="t", match={"driver": ("580.1.*",)}),
            reason="a report",
        )
    )
    both(fleet, build=given.build(driver_version="580.1.7"))  # no part of the kernel key
    assert fleet.told("two") == ("append", given.SAFE, "known_issue:driver")
    fleet.rollout()
    assert fleet.verdicts() == []
    fleet.orders(commands.WithdrawIssue(issue_id="driver", reason="it was another driver"))
    assert fleet.told("two") == GRANTED
