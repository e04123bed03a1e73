"""What the gate reads of a launch, as the controller receives it."""

import pathlib
import subprocess
import sys

import pytest
from tests.launch import nvml_library, stand_ins
from tests.launch.asking import reported

from smgate.wire import facts
from smgate_agent.launch import command, flags, model, plan, units

CONFIG = """model-path: {path}
tp-size: 8
moe-runner-backend: marlin
api-key: sk-never-leaves
"""


def test_a_whole_launch_is_read(sm107, k3):
    planned, _ = reported(
        sm107, "sglang", "serve", "--model-path", str(k3), "--tp", "8", "--ep-size=2",
        "--moe-runner-b", "auto", "--moe-a2a-backend", "none", "--nnodes", "2", "--node-rank", "1",
        "--dist-init-addr", "[fd00::7]:20000",
        environ={"LWS_LEADER_ADDRESS": "k3-0.k3.serving", "FLASHINFER_DISABLE_VERSION_CHECK": "1"},
        options=["--unit", "k3-prod-0", "--restarter", "hook"],
    )  # fmt: skip
    assert planned == facts.LaunchPlanned(
        launch_id=planned.launch_id,
        platform="cuda",
        argv_read=True,
        gpus=tuple(
            facts.Gpu(uuid=f"GPU-{i:04d}-aaaa", sm="10.7", name="NVIDIA R200", memory_bytes=288 << 30)
            for i in range(2)
        ),
        unit_name="k3-prod-0",
        workload="lws:k3-0.k3.serving",
        rendezvous="fd00::7:20000",
        nnodes=2,
        node_rank=1,
        asked_runner="auto",
        asked_runner_in="argv",
        asked_a2a="none",
        model_digest=model.digest(str(k3), None),
        model=facts.Model(
            digest=model.digest(str(k3), None),
            architecture="KimiK3ForConditionalGeneration",
            quant_method="compressed-tensors",
            format_top_level="mxfp4-pack-quantized",
            format_group="mxfp4-pack-quantized",
        ),
        build=facts.Build(
            sglang_version="0.5.23",
            flashinfer_version="0.7.2.post1",
            flashinfer_commit="be" * 20,
            artifact_pins={"TRTLLM_GEN_BMM": "49" * 32},
            cute_dsl_version="4.8.0",
            cuda_toolkit=planned.build.cuda_toolkit,
            torch_version="2.13.0",
            torch_cuda="13.0",
            driver_version="595.10.02",
            disqualifying_env=("FLASHINFER_DISABLE_VERSION_CHECK",),
        ),
        layout=facts.Layout(
            tp=8, ep=2, experts=896, hidden_size=3584, intermediate_size=3072, top_k=16, expert_layers=92
        ),
        restarter="hook",
    )  # fmt: skip


RUNNERS = {
    "nothing": ([], None, None),
    "two tokens": (["--moe-runner-backend", "marlin"], "marlin", "argv"),
    "with an equals sign": (["--moe-runner-backend=triton"], "triton", "argv"),
    "abbreviated": (["--moe-runner-b", "marlin"], "marlin", "argv"),
    "abbreviated, with an equals sign": (["--moe-r=marlin"], "marlin", "argv"),
    "the last one wins": (
        ["--moe-runner-backend", "marlin", "--moe-runner-backend=auto"], "auto", "argv",
    ),
    "a name SGLang does not know": (["--moe-runner-backend", "sk-secret"], "other", "argv"),
    "no value at all": (["--moe-runner-backend"], "other", "argv"),
    "another flag where the value should be": (
        ["--moe-runner-backend", "--enable-metrics"], "other", "argv",
    ),
    "an alias of an a2a backend": (["--moe-runner-backend", "megamoe"], "megamoe", "argv"),
    "one token with a space is no flag": (["--moe-runner-backend marlin"], None, None),
    "the draft's flag is another one": (["--speculative-moe-runner-backend", "marlin"], None, None),
}  # fmt: skip
PREFIXES = {
    "sglang serve": ["sglang", "serve"],
    "python -m": ["python3", "-m", "sglang.launch_server"],
    "python with flags": ["/usr/bin/python3.11", "-u", "-X", "utf8", "-m", "sglang.launch_server"],
    "python and a script": ["python3", "/opt/sglang/bin/sglang", "serve"],
    "behind numactl": ["numactl", "--cpunodebind=0", "sglang", "serve"],
    "behind env": ["env", "A=b", "python3", "-m", "sglang.launch_server"],
    "dynamo": ["python3", "-m", "dynamo.sglang"],
}


@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES)
@pytest.mark.parametrize(("argv", "runner", "where"), RUNNERS.values(), ids=RUNNERS)
def test_the_runner_is_read_in_every_form(prefix, argv, runner, where):
    found = command.find([*prefix, "--model-path", "m", *argv])
    choice = plan.choose(found.tokens, None)
    assert flags.known(choice.values.get("runner"), flags.RUNNERS) == runner
    assert (where == "argv") == ("runner" in choice.values)
    assert choice.values["model_path"] == "m"
    assert choice.argv_read


UNREADABLE = {
    "inside one string": ["bash", "-c", "sglang serve --model-path m"],
    "inside one string, at its end": ["sh", "-c", "exec /opt/bin/sglang"],
    "another program": ["/opt/start.sh", "--model-path", "m"],
    "another module": ["python3", "-m", "vllm.entrypoints.openai.api_server", "--model", "m"],
    "python code": ["python3", "-c", "import sglang", "--model-path", "m"],
    "python alone": ["python3"],
    "sglang without serve": ["sglang", "version"],
    "only sglang": ["sglang"],
}


@pytest.mark.parametrize("argv", UNREADABLE.values(), ids=UNREADABLE)
def test_what_might_not_reach_the_parser_counts_as_unread(argv):
    assert command.find(argv) is None
    assert not plan.choose(None, None).argv_read


def test_the_model_may_be_the_first_word_after_serve():
    found = command.find(["sglang", "serve", "--model-type", "llm", "org/model", "--tp", "8"])
    assert flags.values(found.tokens)["model_path"] == "org/model"


CONFIG_FORMS = {
    "none": ([], "", None, "none", None, None),
    "two tokens": (["--config", "c.yaml"], CONFIG, None, "read", "marlin", "config"),
    "in the middle": (
        ["--enable-metrics", "--config", "c.yaml", "--tp", "4"], CONFIG, None,
        "read", "marlin", "config",
    ),
    "the command line wins": (
        ["--config", "c.yaml", "--moe-runner-backend", "auto"], CONFIG, None, "read", "auto", "argv",
    ),
    "the command line wins from in front": (
        ["--moe-runner-backend", "triton", "--config", "c.yaml"], CONFIG, None,
        "read", "triton", "argv",
    ),
    "with an equals sign SGLang ignores it": (
        ["--config=c.yaml"], CONFIG, None, "ignored", None, None,
    ),
    "abbreviated SGLang ignores it": (["--conf", "c.yaml"], CONFIG, None, "ignored", None, None),
    "missing file": (["--config", "gone.yaml"], CONFIG, None, "unreadable", None, None),
    "no file named": (["--config"], CONFIG, None, "unreadable", None, None),
    "two of them": (
        ["--config", "c.yaml", "--config", "c.yaml"], CONFIG, None, "unreadable", None, None,
    ),
    "not called YAML": (["--config", "c.json"], CONFIG, "c.json", "unreadable", None, None),
    "called .yml": (["--config", "c.YML"], CONFIG, "c.YML", "read", "marlin", "config"),
    "underscores are no flags": (
        ["--config", "c.yaml"], "moe_runner_backend: marlin\n", None, "read", None, None,
    ),
    "abbreviated key": (
        ["--config", "c.yaml"], "moe-runner-b: marlin\n", None, "read", "marlin", "config",
    ),
    "the last of equal keys wins": (
        ["--config", "c.yaml"], "moe-runner-backend: marlin\nmoe-runner-backend: auto\n", None,
        "read", "auto", "config",
    ),
    "null becomes a word": (
        ["--config", "c.yaml"], "moe-runner-backend: null\n", None, "read", "other", "config",
    ),
    "a list": (["--config", "c.yaml"], "- a\n", None, "unreadable", None, None),
    "a word": (["--config", "c.yaml"], "marlin\n", None, "unreadable", None, None),
    "a key that is no text": (["--config", "c.yaml"], "1: a\n", None, "unreadable", None, None),
    "not YAML": (["--config", "c.yaml"], "a: [b\n", None, "unreadable", None, None),
    "code is not run": (
        ["--config", "c.yaml"], "a: !!python/object/apply:os.abort []\n", None,
        "unreadable", None, None,
    ),
    "empty": (["--config", "c.yaml"], "", None, "read", None, None),
    "a list of values": (
        ["--config", "c.yaml"], "moe-runner-backend: [marlin]\n", None, "read", "marlin", "config",
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", CONFIG_FORMS.values(), ids=CONFIG_FORMS)
def test_config_files_are_read_as_sglang_reads_them(node, k3, form):
    argv, text, name, state, runner, where = form
    (node.folder / (name or "c.yaml")).write_text(text.format(path=k3))
    planned, _ = reported(node, "sglang", "serve", *argv)
    assert (planned.config_file, planned.asked_runner, planned.asked_runner_in) == (
        state, runner, where,
    )  # fmt: skip
    assert planned.argv_read == (state != "unreadable")


def test_the_model_may_be_named_by_the_config_file(node, k3):
    (node.folder / "c.yaml").write_text(CONFIG.format(path=k3))
    planned, _ = reported(node, "sglang", "serve", "--config", "c.yaml")
    assert planned.model.architecture == "KimiK3ForConditionalGeneration"
    assert planned.layout.tp == 8


def test_without_a_yaml_reader_in_sglangs_python_the_choice_is_unknown(node, k3):
    stand_ins.write_command(node.command, python="/usr/bin/python3")
    (node.folder / "site" / "yaml.py").write_text("raise ImportError\n")
    (node.folder / "c.yaml").write_text(CONFIG.format(path=k3))
    planned, _ = reported(node, "sglang", "serve", "--config", "c.yaml")
    assert (planned.argv_read, planned.config_file) == (False, "unreadable")


def test_the_interpreter_is_found_through_pips_trampoline_and_env(node):
    trampoline = f"#!/bin/sh\n'''exec' \"{sys.executable}\" \"$0\" \"$@\"\n' '''\n"
    for head in (f"#!{sys.executable} -u\n", trampoline, "#!/usr/bin/env -S python3 -u\n"):
        node.command.write_text(head)
        found = command.find([str(node.command), "serve"])
        assert pathlib.Path(found.interpreter).name.startswith("python")
    node.command.write_bytes(b"\x7fELF\x02")
    assert command.find([str(node.command), "serve"]).interpreter is None


def test_reading_versions_imports_no_package(node, k3):
    reader = pathlib.Path(plan.__file__).with_name("reader_child.py")
    process = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", reader.read_text(), '["--model"]'],
        env=node.environ, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert '"sglang_version": "0.5.23"' in process.stdout
    imported = {line.rpartition("|")[2].strip() for line in process.stderr.splitlines()}
    assert "json" in imported
    assert not imported & {"sglang", "torch", "flashinfer"}, "each takes seconds"


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("10.0.0.7:20000", "10.0.0.7:20000"),
        ("tcp://k3-0.k3:20000", "k3-0.k3:20000"),
        ("[fd00::7]:20000", "fd00::7:20000"),
        ("user:password@host:20000", None),
        ("host", None),
        ("", None),
        (None, None),
    ],
)
def test_a_rendezvous_is_a_host_and_a_port_or_nothing(address, expected):
    assert units.rendezvous(address) == expected


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        ({"LWS_LEADER_ADDRESS": "k3-0.k3.ns"}, "lws:k3-0.k3.ns"),
        ({"RBG_LWP_LEADER_ADDRESS": "a.b"}, "rbg:a.b"),
        ({"RBG_GROUP_NAME": "g", "RBG_ROLE_NAME": "r", "RBG_ROLE_INDEX": "2"}, "rbg:g.r.2"),
        ({"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0"}, "slurm:77.0"),
        ({"SLURM_JOB_ID": "77"}, None),
        ({"LWS_LEADER_ADDRESS": "no name"}, None),
    ],
)
def test_a_workload_is_known_by_what_its_controller_injects(environ, expected):
    assert units.workload(environ) == expected


@pytest.mark.parametrize(
    ("start", "platform"),
    [
        (nvml_library.RETURN_OK, "cuda"),
        (b"\xb8\x09\0\0\0\xc3", "cuda"),
        (nvml_library.CRASH, "cuda"),
    ],
)
def test_a_driver_that_fails_is_still_a_driver(node, start, platform):
    gpus = [{"uuid": "GPU-0000-aaaa", "sm": None}]
    library = nvml_library.write(node.folder / "nvml", gpus, start=start)
    planned, _ = reported(node, "sglang", "serve", environ={"LD_LIBRARY_PATH": str(library)})
    assert planned.platform == platform
    assert all(gpu.sm is None for gpu in planned.gpus)


def test_a_driver_that_hangs_costs_its_share_of_the_deadline(node):
    library = nvml_library.write(node.folder / "nvml", [], start=nvml_library.HANG)
    seen = node.launch(
        "sglang", "serve", "--model-path", "m",
        environ={"LD_LIBRARY_PATH": str(library)}, options=["--deadline-s", "3"],
    )  # fmt: skip
    assert node.took_s < 10
    assert seen["children"] == []


def test_without_a_driver_there_is_no_cuda(node):
    planned, _ = reported(node, "sglang", "serve")
    if not pathlib.Path("/dev/nvidiactl").exists():
        assert (planned.platform, planned.gpus) == ("none", ())
