"""What the gate holds between launches: the last directive, what it appended, its records."""

import time

import nacl.signing
import pytest
from tests.launch import nvml_library, stand_ins
from tests.launch.asking import ENFORCE, SAFE, TARGET, decide, given_for, serve

from smgate_agent.launch import kernel_key


def test_a_verified_directive_holds_while_the_controller_is_away(sm107, k3):
    with stand_ins.Controller(
        stand_ins.honest(decide("append", "flashinfer_mxfp4", "granted"))
    ) as it:
        sm107.enroll(it.url)
        assert serve(sm107, k3) == TARGET
        (launch,) = it.launches()
    held = stand_ins.directive(
        stand_ins.entry(
            launch, "append", "flashinfer_mxfp4", "granted",
            unit="node-a:" + unit_digest(launch), given_for=given_for(launch),
        ),
        modes=ENFORCE,
    )  # fmt: skip
    sm107.hold(held)
    sm107.enroll(None)
    assert serve(sm107, k3) == TARGET
    assert "granted, by local rule" in sm107.stderr
    # Another layout is another kernel: the held decision does not speak of it.
    assert serve(sm107, k3, "--tp", "2") == SAFE


def unit_digest(launch):
    return kernel_key.unit_id("node-a", launch).partition(":")[2]


def test_keep_appends_again_what_was_appended_last(sm107, k3):
    with stand_ins.Controller(stand_ins.honest(decide("append", "flashinfer_mxfp4"))) as controller:
        sm107.enroll(controller.url)
        serve(sm107, k3)
    with stand_ins.Controller(stand_ins.honest(decide("keep", None, "observe"))) as controller:
        sm107.enroll(controller.url)
        assert serve(sm107, k3) == TARGET
        assert serve(sm107, k3, "--tp", "2") == SAFE


def test_keep_with_a_value_appends_what_the_controller_worked_out(sm107, k3):
    with stand_ins.Controller(stand_ins.honest(decide("keep", "marlin", "observe"))) as controller:
        sm107.enroll(controller.url)
        assert serve(sm107, k3) == SAFE


def test_keep_never_beats_a_flag_that_a_person_wrote(sm107, k3):
    with stand_ins.Controller(stand_ins.honest(decide("append", "flashinfer_mxfp4"))) as controller:
        sm107.enroll(controller.url)
        serve(sm107, k3)
    with stand_ins.Controller(stand_ins.honest(decide("keep", None, "observe"))) as controller:
        sm107.enroll(controller.url)
        seen = sm107.launch(
            *("sglang", "serve", "--model-path", str(k3), "--moe-runner-backend", "triton")
        )
        assert seen["argv"][-1] == "triton"


def test_ranks_do_not_keep_what_only_one_of_them_remembers(sm107, k3):
    ranks = ("--nnodes", "2", "--dist-init-addr", "head:20000")
    with stand_ins.Controller(stand_ins.honest(decide("append", "marlin"))) as controller:
        sm107.enroll(controller.url)
        assert serve(sm107, k3, *ranks) == SAFE
    with stand_ins.Controller(stand_ins.honest(decide("keep", None, "observe"))) as controller:
        sm107.enroll(controller.url)
        assert serve(sm107, k3, *ranks) == []


def test_gate_and_agent_mean_the_same_socket():
    from smgate_agent import config
    from smgate_agent.launch import options

    assert config.DEFAULT_SOCKET == options.AGENT_SOCKET


def test_keep_without_a_past_leaves_the_command_alone(sm107, k3):
    with stand_ins.Controller(stand_ins.honest(decide("keep", None, "observe"))) as controller:
        sm107.enroll(controller.url)
        assert serve(sm107, k3) == []


def test_a_held_directive_that_was_tampered_with_is_not_held(sm107, k3):
    sm107.enroll(None)
    sm107.hold(stand_ins.directive(modes=ENFORCE), nacl.signing.SigningKey(b"\x09" * 32))
    assert serve(sm107, k3) == []
    (sm107.state / "directive.json").write_bytes(b"\xff" * 100)
    assert serve(sm107, k3) == []


@pytest.mark.parametrize(
    ("value", "more", "sm"),
    [
        ("flashinfer_mxfp4", [], "9.0"),
        ("flashinfer_mxfp4", ["--moe-a2a-backend", "deepep"], "10.7"),
        ("marlin", ["--moe-a2a-backend", "deepep"], "10.7"),
        ("marlin", [], "8.0"),
        ("triton", [], "10.7"),
    ],
)
def test_a_decision_with_which_sglang_would_not_start_is_not_carried_out(node, k3, value, more, sm):
    gpus = [{"uuid": "GPU-0000-aaaa", "sm": sm}]
    node.environ["LD_LIBRARY_PATH"] = str(nvml_library.write(node.folder / "nvml", gpus))
    with stand_ins.Controller(stand_ins.honest(decide("append", value, "granted"))) as controller:
        node.enroll(controller.url)
        assert serve(node, k3, *more) == []
    (fact,) = controller.facts()
    assert fact["payload"]["code"] == "value_would_not_start"


def test_an_operators_own_runner_wins_unless_the_decision_for_this_launch_says_otherwise(sm107, k3):
    sm107.hold(stand_ins.directive(modes=ENFORCE))
    sm107.enroll(None)
    assert serve(sm107, k3, "--moe-runner-backend", "triton") == []
    # The flag was adopted: a person gave it to the controller, whose decision comes last and wins.
    with stand_ins.Controller(stand_ins.honest(decide("append", "marlin"))) as controller:
        sm107.enroll(controller.url)
        assert serve(sm107, k3, "--moe-runner-backend", "triton") == SAFE


def test_nothing_is_appended_to_a_command_that_could_not_be_read(sm107, k3):
    with stand_ins.Controller(stand_ins.honest(decide("append", "marlin"))) as controller:
        sm107.enroll(controller.url)
        seen = sm107.launch("/bin/sh", "-c", 'exec sglang serve --model-path "$0"', str(k3))
    assert seen["argv"][1:] == ["serve", "--model-path", str(k3)]
    assert "choice_unknown" in sm107.stderr


def test_the_resident_agent_finds_the_launch_by_its_record(sm107, k3):
    from smgate_agent import launch_records

    seen = sm107.launch("sglang", "serve", "--model-path", str(k3))
    (record,) = launch_records.read_all(sm107.state, now_us=time.time_ns() // 1_000)
    assert record.pid == seen["pid"]
    assert record.gpu_uuids == ("GPU-0000-aaaa", "GPU-0001-aaaa")
    assert (record.model_path, record.mxfp4) == (str(k3), True)
    assert record.architecture == "KimiK3ForConditionalGeneration"


def test_a_read_only_or_full_state_folder_does_not_matter(sm107, k3):
    with stand_ins.Controller(stand_ins.honest(decide())) as controller:
        sm107.enroll(controller.url)
        (sm107.state / "launches").write_text("a file where a folder should be")
        (sm107.state / "last_appended").write_text("")
        (sm107.state / "models").symlink_to("/proc/self/nothing")
        (sm107.state / "directive.json").mkdir()
        assert serve(sm107, k3) == SAFE
