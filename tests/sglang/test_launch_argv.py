"""What the launch gate execs, given to SGLang's own parser and resolution.

The archive is run with a stand-in for `sglang` that writes down its arguments; those go to SGLang's
`prepare_server_args` and its full resolution at the same SM. So "the last flag wins", "the command
line beats the file" and "`--config=FILE` is ignored" are SGLang's word here, not the gate's.
"""

import json
import subprocess
import sys

import pytest
from tests.launch import nvml_library, stand_ins

from smgate_agent.launch import flags, local_rule

pytestmark = pytest.mark.sglang

TORCH_CUDA = "13.0"
FLAGS = (
    *("--tp-size", "8", "--device", "cuda", "--trust-remote-code", "--skip-tokenizer-init"),
    *("--mem-fraction-static", "0.85", "--disable-cuda-graph"),
)
SMS = ("9.0", "10.0", "10.3", "10.7", "12.0")
LEFT_ALONE = {sm: "flashinfer_mxfp4" if sm.startswith("10.") else "auto" for sm in SMS}
OPTIONS_SCRIPT = """
import argparse, json, os, sys
answers = os.fdopen(os.dup(1), "w"); os.dup2(2, 1)
sys.path.insert(0, {folder!r})
import worker_stubs
worker_stubs.install()
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
answers.write(json.dumps(sorted(parser._option_string_actions)))
"""


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    return stand_ins.build_archive(tmp_path_factory.mktemp("gate"))


@pytest.fixture
def node(tmp_path, archive):
    return stand_ins.Node(tmp_path, archive)


def show_gpus(node, sm):
    gpus = [{"uuid": f"GPU-{index:04d}-aaaa", "sm": sm} for index in range(8)]
    node.environ["LD_LIBRARY_PATH"] = str(nvml_library.write(node.folder / "nvml", gpus))


def serve(node, sglang, sm, argv):
    """What SGLang resolves the gate's command to."""
    seen = node.launch("sglang", "serve", *argv)["argv"][2:]
    assert seen[: len(argv)] == list(argv)
    return sglang.ask("resolve_argv", argv=seen, sm=sm, torch_cuda=TORCH_CUDA)


def decided(form, value, code="as_decided"):
    def decide(launch):
        unit = stand_ins.entry(launch, form, value, code, given_for=local_rule.given_for(launch))
        return stand_ins.directive(unit)

    return stand_ins.honest(decide)


DECISIONS = [(sm, "append", "marlin") for sm in SMS]
DECISIONS += [(sm, "append", "flashinfer_mxfp4") for sm in SMS if sm.startswith("10.")]
DECISIONS += [(sm, "untouched", None) for sm in SMS]


@pytest.mark.parametrize(("sm", "form", "value"), DECISIONS)
def test_sglang_resolves_to_what_was_decided(sglang, node, k3_models, sm, form, value):
    show_gpus(node, sm)
    with stand_ins.Controller(decided(form, value)) as controller:
        node.enroll(controller.url)
        argv = ["--model-path", k3_models["group_and_top"], *FLAGS]
        resolved = serve(node, sglang, sm, argv)
        (launch,) = controller.launches()
    assert [gpu["sm"] for gpu in launch["gpus"]] == [sm] * 8
    assert (resolved["runner"], resolved["a2a"]) == (value or LEFT_ALONE[sm], "none")


def test_a_format_only_at_the_top_level_is_bf16_if_left_alone_and_packed_as_decided(
    sglang, node, k3_models
):
    """SGLang's own selection misses this checkpoint on every SM; the appended flag does not."""
    show_gpus(node, "10.7")
    argv = ["--model-path", k3_models["top_only"], *FLAGS]
    for form, value, expected in (("untouched", None, "auto"), ("append", "marlin", "marlin")):
        with stand_ins.Controller(decided(form, value)) as controller:
            node.enroll(controller.url)
            assert serve(node, sglang, "10.7", argv)["runner"] == expected


def test_the_module_takes_the_appended_flag_too(sglang, node, k3_models):
    show_gpus(node, "10.7")
    package = node.folder / "site" / "sglang"
    (package / "__init__.py").write_text("")
    stand_ins.write_command(package / "launch_server.py")
    argv = ["--model-path", k3_models["group_and_top"], *FLAGS]
    with stand_ins.Controller(decided("append", "marlin")) as controller:
        node.enroll(controller.url)
        seen = node.launch(sys.executable, "-m", "sglang.launch_server", *argv)["argv"][1:]
    resolved = sglang.ask("resolve_argv", argv=seen, sm="10.7", torch_cuda=TORCH_CUDA)
    assert resolved["runner"] == "marlin"


# argv, YAML file, and what SGLang must resolve to under a local rule that wants marlin.
OWN_CHOICE = {
    "nobody chose": ([], None, "marlin"),
    "explicit auto is no choice": (["--moe-runner-backend", "auto"], None, "marlin"),
    "triton": (["--moe-runner-backend", "triton"], None, "triton"),
    "the target": (["--moe-runner-backend", "flashinfer_mxfp4"], None, "flashinfer_mxfp4"),
    "with an equals sign": (["--moe-runner-backend=triton"], None, "triton"),
    "abbreviated": (["--moe-runner-b", "triton"], None, "triton"),
    "abbreviated with an equals sign": (["--moe-r=triton"], None, "triton"),
    "the last of two": (
        ["--moe-runner-backend", "triton", "--moe-runner-backend", "auto"], None, "marlin",
    ),
    "in the file": (["--config", "{file}"], "moe-runner-backend: triton\n", "triton"),
    "abbreviated in the file": (["--config", "{file}"], "moe-runner-b: triton\n", "triton"),
    "the last in the file": (
        ["--config", "{file}"], "moe-runner-backend: auto\nmoe-runner-backend: triton\n", "triton",
    ),
    "auto in the file": (["--config", "{file}"], "moe-runner-backend: auto\n", "marlin"),
    "a file without it": (["--config", "{file}"], "log-level: info\n", "marlin"),
    "an empty file": (["--config", "{file}"], "", "marlin"),
    "the command line beats the file": (
        ["--config", "{file}", "--moe-runner-backend", "triton"], "moe-runner-backend: marlin\n",
        "triton",
    ),
    "auto on the command line beats the file": (
        ["--config", "{file}", "--moe-runner-backend", "auto"], "moe-runner-backend: triton\n",
        "marlin",
    ),
    "a file SGLang ignores": (["--config={file}"], "moe-runner-backend: triton\n", "marlin"),
    "a file SGLang ignores, abbreviated": (
        ["--conf", "{file}"], "moe-runner-backend: triton\n", "marlin",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("argv", "text", "expected"), OWN_CHOICE.values(), ids=OWN_CHOICE)
def test_the_operators_own_choice_wins_in_every_form(sglang, node, k3_models, argv, text, expected):
    show_gpus(node, "10.7")
    node.enroll(None)
    node.hold(stand_ins.directive(modes={"10.7": "enforce"}))
    file = node.folder / "server.yaml"
    file.write_text(text or "")
    argv = [token.format(file=file) for token in argv]
    model = ["--model-path", k3_models["group_and_top"], *FLAGS]
    assert serve(node, sglang, "10.7", [*model, *argv])["runner"] == expected
    assert serve(node, sglang, "10.7", [*argv, *model])["runner"] == expected


# Forms with which SGLang itself refuses to start: the gate must not turn them into a start.
REFUSED = {
    "a missing file": (["--config", "{folder}/gone.yaml"], ""),
    "two files": (["--config", "{file}", "--config", "{file}"], ""),
    "no file named": (["--config"], ""),
    "not called YAML": (["--config", "{folder}/dump.json"], ""),
    "a list": (["--config", "{file}"], "- a\n"),
    "underscores": (["--config", "{file}"], "moe_runner_backend: marlin\n"),
    "an unknown key": (["--config", "{file}"], "moe-runner-bakend: marlin\n"),
    "null": (["--config", "{file}"], "moe-runner-backend: null\n"),
    "a name it does not know": (["--moe-runner-backend", "nosuch"], ""),
    "one token": (["--moe-runner-backend marlin"], ""),
}


@pytest.mark.parametrize(("argv", "text"), REFUSED.values(), ids=REFUSED)
def test_what_sglang_refuses_it_still_refuses(sglang, node, k3_models, argv, text):
    show_gpus(node, "10.7")
    node.enroll(None)
    node.hold(stand_ins.directive(modes={"10.7": "enforce"}))
    file = node.folder / "server.yaml"
    file.write_text(text)
    argv = [token.format(file=file, folder=node.folder) for token in argv]
    resolved = serve(
        node, sglang, "10.7", ["--model-path", k3_models["group_and_top"], *FLAGS, *argv]
    )
    assert resolved["error"]["stage"] == "parse"


def test_the_gate_knows_the_names_sglang_knows(sglang):
    choices = sglang.ask("choices")
    assert set(choices["runner"]) == flags.RUNNERS
    assert set(choices["a2a"]) == flags.A2A_BACKENDS


def test_no_other_flag_of_sglang_reads_as_one_of_the_gates():
    """A flag that is the beginning of one the gate reads would be taken for an abbreviation."""
    from tests.sglang import conftest

    python = conftest.require_env(conftest.BASE_VERSION)
    script = OPTIONS_SCRIPT.format(folder=str(conftest.WORKER.parent))
    process = subprocess.run(
        [python, "-c", script], capture_output=True, text=True, check=True, timeout=120
    )
    options = json.loads(process.stdout)
    assert len(options) > 300
    read = {option for names in flags.OPTIONS.values() for option in names}
    for option in options:
        assert (flags.values([option, "x"]) != {}) == (option in read), option
