"""What the doctor says of a command line, and what SGLang's own parser does with it."""

import pytest

from smgate_agent import doctor

pytestmark = pytest.mark.sglang

GATE = ("smgate-agent", "launch", "--", "sglang", "serve")
FLAGS = ("--tp-size", "8", "--device", "cuda", "--trust-remote-code", "--skip-tokenizer-init")
APPENDED = ("--moe-runner-backend", "marlin")

DEFEATED = {
    "double_dash": ("--",),
    "empty_argument": ("",),
    "variable_not_expanded": ("--moe-runner-backend", "$(SMGATE_MOE_RUNNER)"),
    "flag_and_value_in_one": ("--moe-runner-backend marlin",),
    "config_twice": ("--config", "{file}", "--config", "{file}"),
    "config_without_file": ("--config",),
}


@pytest.mark.parametrize("code", DEFEATED)
def test_sglang_does_not_start_on_what_the_doctor_says_defeats(sglang, k3_models, tmp_path, code):
    (tmp_path / "k3.yaml").write_text("log-level: info\n")
    argv = [word.format(file=tmp_path / "k3.yaml") for word in DEFEATED[code]]
    argv = ["--model-path", k3_models["group_and_top"], *FLAGS, *argv]
    assert code in [one.code for one in doctor.examine([*GATE, *argv]) if one.defeats]
    resolved = sglang.ask("resolve_argv", argv=[*argv, *APPENDED], sm="10.7", torch_cuda="13.0")
    assert resolved["error"]["stage"] == "parse"


def test_sglang_takes_the_value_where_the_doctor_finds_nothing(sglang, k3_models):
    argv = ["--model-path", k3_models["group_and_top"], *FLAGS, "--moe-runner-backend", "auto"]
    assert doctor.examine([*GATE, *argv]) == []
    resolved = sglang.ask("resolve_argv", argv=[*argv, *APPENDED], sm="10.7", torch_cuda="13.0")
    assert resolved["runner"] == "marlin"
