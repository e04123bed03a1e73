"""Rules 1 to 6 of the decision table: is it ours?"""

from dataclasses import replace

import pytest
from tests import given

from smgate.domain import commands, facts, policy, values

DEEPEP = values.Pair(runner="auto", a2a="deepep")


@pytest.fixture
def fleet():
    """SM107 is enforced; one node is known and runs nothing yet."""
    made = given.Fleet().enforce()
    made.node("a")
    return made


def two_gpus(first, second):
    return (values.Gpu(uuid="GPU-a", sm=first), values.Gpu(uuid="GPU-a2", sm=second))


# 1 observe


def test_observe_is_the_default_and_says_what_it_would_do():
    fleet = given.Fleet()
    fleet.node("a")
    fleet.launch("a")
    assert fleet.told("a") == ("keep", None, "observe")
    assert fleet.would("a") == ("append", given.SAFE, "no_rollout")


def test_observe_comes_before_every_other_rule():
    fleet = given.Fleet()
    fleet.node("a")
    fleet.launch("a", asked_runner="triton", asked_runner_in="argv")
    fleet.orders(commands.ExcludeUnit(unit="a", reason="mine"))
    assert fleet.told("a") == ("keep", None, "observe")
    assert fleet.would("a") == ("keep", None, "excluded")


def test_observe_holds_a_new_start_back_and_records_no_grant():
    fleet = given.Fleet().qualified()
    fleet.node("a")
    fleet.launch("a")
    fleet.rollout()
    assert fleet.seen(given.decisions.Granted) == []
    assert fleet.would("a")[0] == "append"


def test_observe_keeps_what_was_appended_before(fleet):
    fleet.launch("a")
    fleet.applies("a")
    fleet.orders(commands.SetGateMode(gate=given.GATE, sm="10.7", mode="observe", reason="wait"))
    assert fleet.told("a") == ("keep", given.SAFE, "observe")


@pytest.mark.parametrize("other", ["10.3", "12.0"])
def test_one_observed_sm_among_several_makes_the_unit_observed(fleet, other):
    fleet.launch("a", gpus=two_gpus("10.7", other))
    assert fleet.told("a")[2] == "observe"
    fleet.enforce(other)
    assert fleet.told("a")[2] == "sm_mixed"


def test_the_mode_is_that_of_the_sm_last_known(fleet):
    fleet.launch("a", sm=None)
    assert fleet.told("a")[2] == "no_rollout"


# 2 excluded, released


def test_an_excluded_unit_keeps_what_it_had(fleet):
    fleet.launch("a")
    fleet.applies("a")
    fleet.orders(commands.ExcludeUnit(unit="a", reason="mine"))
    assert fleet.told("a") == ("keep", given.SAFE, "excluded")
    fleet.orders(commands.IncludeUnit(unit="a", reason="yours"))
    assert fleet.told("a") == ("append", given.SAFE, "no_rollout")


def test_excluded_comes_before_what_the_launch_is(fleet):
    fleet.launch("a", platform="rocm", model=None, model_digest=None)
    assert fleet.told("a")[2] == "not_cuda"
    fleet.orders(commands.ExcludeUnit(unit="a", reason="mine"))
    assert fleet.told("a")[2] == "excluded"


def test_a_released_unit_gets_nothing_not_even_what_was_before(fleet):
    fleet.launch("a")
    fleet.applies("a")
    fleet.orders(commands.ReleaseUnit(unit="a", reason="take it"))
    assert fleet.told("a") == ("untouched", None, "released")
    fleet.orders(commands.SetGateMode(gate=given.GATE, sm="10.7", mode="observe", reason="wait"))
    assert fleet.told("a") == ("keep", None, "observe")


# 3 platform and model


@pytest.mark.parametrize("platform", ["rocm", "npu", "xpu", "none"])
def test_another_platform_is_left_alone_without_an_alarm(fleet, platform):
    fleet.launch("a", platform=platform, model=None, model_digest=None)
    assert fleet.told("a") == ("untouched", None, "not_cuda")
    assert fleet.alarms() == set()


def test_a_model_that_was_never_read_is_left_alone_and_alarms_on_a_candidate(fleet):
    fleet.launch("a", model=None)
    assert fleet.told("a") == ("untouched", None, "model_unknown")
    assert fleet.alarms() == {"model_unknown"}


def test_a_model_that_was_never_read_does_not_alarm_elsewhere():
    fleet = given.Fleet().enforce("10.0")
    fleet.node("a", sm="10.0")
    fleet.launch("a", sm="10.0", model=None)
    assert fleet.told("a")[2] == "model_unknown"
    assert fleet.alarms() == set()


def test_the_last_reading_of_a_model_holds_for_a_launch_that_could_not_read_it(fleet):
    fleet.launch("a")
    fleet.node("b")
    fleet.launch("b", model=None)
    assert fleet.told("b") == ("append", given.SAFE, "no_rollout")


@pytest.mark.parametrize("model", [given.OTHER_MODEL, given.NOT_PACKED])
def test_another_model_or_format_is_none_of_our_business(fleet, model):
    fleet.launch("a", model=model, model_digest=model.digest)
    assert fleet.told("a") == ("untouched", None, "not_applicable")
    assert fleet.alarms() == set()


def test_a_format_that_only_the_loader_sees_is_ours(fleet):
    fleet.launch("a", model=given.ONLY_TOP_LEVEL, model_digest=given.ONLY_TOP_LEVEL.digest)
    assert fleet.told("a")[2] == "no_rollout"


def test_the_platform_comes_before_the_model(fleet):
    fleet.launch("a", platform="rocm", model=given.OTHER_MODEL)
    assert fleet.told("a")[2] == "not_cuda"


# 4 layout


@pytest.mark.parametrize(
    "changes",
    [
        {"asked_a2a": "deepep"},
        {"dry_resolved": DEEPEP},
        {"asked_a2a": "deepep", "dry_resolved": replace(DEEPEP, a2a="none")},
        {"asked_runner": "megamoe", "asked_runner_in": "argv"},
    ],
)
def test_any_other_a2a_asked_or_resolved_is_left_alone(fleet, changes):
    fleet.launch("a", **changes)
    assert fleet.told("a") == ("untouched", None, "layout_not_covered")


def test_an_a2a_that_the_server_attests_counts_as_well(fleet):
    fleet.launch("a")
    fleet.serves("a", "auto", "mooncake")
    assert fleet.told("a")[2] == "layout_not_covered"


def test_the_model_comes_before_the_layout_and_the_layout_before_the_choice(fleet):
    fleet.launch("a", model=given.OTHER_MODEL, asked_a2a="deepep")
    assert fleet.told("a")[2] == "not_applicable"
    fleet.launch("a", asked_a2a="deepep", argv_read=False)
    assert fleet.told("a")[2] == "layout_not_covered"


# 5 the operator's own choice


def test_a_choice_nobody_could_read_is_left_alone(fleet):
    fleet.launch("a", argv_read=False)
    assert fleet.told("a") == ("untouched", None, "choice_unknown")


def test_what_was_not_read_comes_before_what_is_said_to_stand_there(fleet):
    fleet.launch("a", argv_read=False, asked_runner="triton")
    assert fleet.told("a")[2] == "choice_unknown"


def test_an_explicit_runner_is_left_alone_until_a_person_adopts_the_flag(fleet):
    fleet.launch("a", asked_runner="triton", asked_runner_in="config", config_file="read")
    assert fleet.told("a") == ("untouched", None, "explicit_choice")
    assert "uncontrolled" not in fleet.alarms()
    fleet.orders(commands.AdoptFlag(unit="a", reason="ours now"))
    assert fleet.told("a") == ("append", given.SAFE, "no_rollout")


def test_explicit_auto_is_no_choice(fleet):
    fleet.launch("a", asked_runner="auto", asked_runner_in="argv")
    assert fleet.told("a") == ("append", given.SAFE, "no_rollout")


def test_naming_the_target_on_a_candidate_is_uncontrolled_and_alarms(fleet):
    fleet.launch("a", asked_runner=given.TARGET, asked_runner_in="argv")
    assert fleet.told("a") == ("untouched", None, "explicit_choice")
    assert "uncontrolled" in fleet.alarms()


def test_naming_the_target_on_a_baseline_is_not_uncontrolled():
    fleet = given.Fleet().enforce("10.3")
    fleet.node("a", sm="10.3")
    fleet.launch("a", sm="10.3", asked_runner=given.TARGET, asked_runner_in="argv")
    assert fleet.told("a")[2] == "explicit_choice"
    assert fleet.alarms() == set()


@pytest.mark.parametrize("runner", ["auto", "triton"])
def test_a_flag_beats_the_file_sink(fleet, runner):
    fleet.launch("a")
    fleet.orders(commands.AdoptFlag(unit="a", reason="ours now"))
    fleet.launch("a", sink="file", asked_runner=runner, asked_runner_in="argv")
    assert fleet.told("a") == ("untouched", None, "override_defeated")
    loud = {"uncontrolled"} if runner == "auto" else set()  # SGLang would choose the target
    assert fleet.alarms() == {"override_defeated"} | loud


def test_the_file_sink_alone_is_steered(fleet):
    fleet.launch("a", sink="file")
    assert fleet.told("a") == ("append", given.SAFE, "no_rollout")


# 6 silicon


def test_an_sm_that_was_never_known_keeps_and_alarms():
    fleet = given.Fleet().enforce()
    fleet.node("a", sm=None)
    fleet.launch("a", sm=None)
    assert fleet.told("a") == ("keep", None, "sm_unknown")
    assert fleet.alarms() == {"sm_unknown"}


def test_a_driver_hiccup_keeps_the_last_known_sm(fleet):
    fleet.launch("a")
    fleet.launch("a", sm=None)
    assert fleet.told("a") == ("append", given.SAFE, "no_rollout")


def test_one_unknown_gpu_makes_the_unit_unknown(fleet):
    fleet.launch("a", gpus=two_gpus("10.7", None))
    assert fleet.told("a")[2] == "sm_unknown"


def test_the_choice_comes_before_the_silicon(fleet):
    fleet.launch("a", gpus=two_gpus("10.7", None), argv_read=False)
    assert fleet.told("a")[2] == "choice_unknown"


def test_mixed_sms_get_the_safe_value_where_all_have_one(fleet):
    fleet.enforce("12.0")
    fleet.launch("a", gpus=two_gpus("10.7", "12.0"))
    assert fleet.told("a") == ("append", given.SAFE, "sm_mixed")
    assert fleet.alarms() == {"sm_mixed"}


def test_mixed_sms_get_nothing_where_one_has_no_safe_value(fleet):
    fleet.enforce("8.0")
    fleet.launch("a", gpus=two_gpus("10.7", "8.0"))
    assert fleet.told("a") == ("untouched", None, "sm_mixed")
    assert fleet.alarms() == {"sm_mixed", "no_safe_value"}


@pytest.mark.parametrize("sm", ["9.0", "12.0", "12.1"])
def test_an_sm_that_the_gate_does_not_name_gets_the_safe_value(sm):
    fleet = given.Fleet().enforce(sm)
    fleet.node("a", sm=sm)
    fleet.launch("a", sm=sm)
    assert fleet.told("a") == ("append", given.SAFE, "sm_unsupported")
    assert fleet.alarms() == set()


@pytest.mark.parametrize("sm", ["8.0", "11.0"])
def test_an_sm_without_a_safe_value_gets_nothing_and_alarms(sm):
    fleet = given.Fleet().enforce(sm)
    fleet.node("a", sm=sm)
    fleet.launch("a", sm=sm)
    assert fleet.told("a") == ("untouched", None, "sm_unsupported")
    assert fleet.override("a").no_safe_value
    assert fleet.alarms() == {"no_safe_value"}


@pytest.mark.parametrize("pin", ["on", "off"])
def test_the_target_never_goes_to_an_unsupported_or_mixed_sm(fleet, pin):
    fleet.enforce("12.0")
    fleet.node("b", sm="12.0")
    fleet.launch("a", gpus=two_gpus("10.7", "12.0"))
    fleet.launch("b", sm="12.0")
    for unit in ("a", "b"):
        fleet.orders(
            commands.PinUnit(unit=unit, direction=pin, break_glass=pin == "on", reason="now")
        )
    assert fleet.told("a") == ("append", given.SAFE, "sm_mixed")
    assert fleet.told("b") == ("append", given.SAFE, "sm_unsupported")


def test_a_draft_model_that_asserts_auto_has_no_safe_value(fleet):
    fleet.launch("a", draft_asserts_auto=True)
    assert fleet.told("a") == ("untouched", None, "no_rollout")
    assert fleet.alarms() == {"no_safe_value", "uncontrolled"}


@pytest.mark.parametrize("version", ["0.5.17", "0.5.24", None])
def test_a_version_nobody_ran_has_no_safe_value(fleet, version):
    fleet.launch("a", build=given.build(sglang_version=version))
    assert fleet.override("a").value is None
    assert fleet.override("a").no_safe_value


def test_a_server_without_a_launch_gate_cannot_be_steered_and_alarms(fleet):
    fleet.serves("a")
    assert fleet.told("a") == ("untouched", None, "unit_unsteerable")
    assert {"unit_unsteerable", "uncontrolled", "exposed", "adopted"} <= fleet.alarms()


def test_a_server_without_a_launch_gate_that_ended_alarms_no_more(fleet):
    fleet.serves("a", "auto")
    assert "unit_unsteerable" in fleet.alarms()
    fleet.instance("a", "exited", exit_code=0)
    assert "unit_unsteerable" not in fleet.alarms()


def test_silicon_comes_before_steering():
    fleet = given.Fleet().enforce("8.0")
    fleet.node("a", sm="8.0")
    fleet.serves("a", "auto")
    assert fleet.told("a")[2] == "sm_unsupported"


def test_no_launch_gate_in_the_path_of_one_rank_makes_the_unit_unsteerable(fleet):
    fleet.launch("a", nnodes=2, unit_name="two")
    fleet.node("b")
    fleet.says(
        "b",
        facts.InstanceChanged(
            instance_id="k3",
            state="serving",
            gpu_uuids=("GPU-b",),
            unit_name="two",
            nnodes=2,
            node_rank=1,
        ),
        facts.EffectiveSeen(
            instance_id="k3", runner="auto", a2a="none", source="log", architecture=given.K3
        ),
    )
    fleet.later(60)
    assert fleet.told("two") == ("untouched", None, "unit_unsteerable")


def test_the_gate_is_data():
    gate = replace(policy.KIMI_K3, baseline_sms=("10.0",), candidate_sms=("10.3", "10.7"))
    fleet = given.Fleet().enforce("10.3")
    fleet.node("a", sm="10.3")
    fleet.launch("a", sm="10.3")
    assert fleet.told("a")[2] == "baseline_sm"
    fleet.orders(commands.PublishGate(gate=gate, reason="more care"))
    assert fleet.told("a") == ("append", given.SAFE, "no_rollout")


def test_a_rank_without_a_launch_gate_serves_the_model_that_another_rank_read(fleet):
    fleet.launch("a", nnodes=2, unit_name="two")
    fleet.node("b")
    starting = facts.InstanceChanged(
        instance_id="k3",
        state="starting",  # it has attested nothing yet
        gpu_uuids=("GPU-b",),
        unit_name="two",
        nnodes=2,
        node_rank=1,
    )
    fleet.says("b", starting)
    fleet.later(60)
    assert fleet.told("two") == ("untouched", None, "unit_unsteerable")
