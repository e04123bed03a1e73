"""What SGLang would make of a launch, asked of SGLang itself by the gate, in SGLang's interpreter.

The machine's GPU is told to torch as everywhere in these tests (`worker_machine.py`), here by a
`sitecustomize` that only the gate's resolving child takes up: what it runs is what ships.
"""

import json
import os
import pathlib

import pytest
from tests.launch import nvml_library, stand_ins
from tests.sglang import conftest

from smgate_agent.launch import barrier_rule

pytestmark = pytest.mark.sglang

TOLD = """
import os, sys
if any("prepare_server_args" in word for word in sys.orig_argv):
    with open(os.environ["ASKED"], "a") as stream:
        stream.write("SGLang was asked\\n")
    sys.path.insert(0, {folder!r})
    import worker_stubs
    worker_stubs.install()
    worker_stubs.flashinfer_is_installed()
    import worker_machine
    story = worker_machine.machine(sm=os.environ["SM"], torch_cuda="13.0")
    story.__enter__()
"""
VERSIONS = (conftest.BASE_VERSION, *conftest.asked_for(os.environ))
PATIENT_S = 1200
"""Importing SGLang takes 10 s of a core, and a test's machine may be busy."""
FLAGS = (
    "--tp-size",
    "8",
    "--device",
    "cuda",
    "--trust-remote-code",
    "--mem-fraction-static",
    "0.85",
)


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    return stand_ins.build_archive(tmp_path_factory.mktemp("gate"))


@pytest.fixture(params=VERSIONS)
def node(tmp_path, archive, request):
    """A node whose `sglang` is run by the interpreter of this SGLang."""
    node = stand_ins.Node(tmp_path, archive)
    node.sglang_version = request.param
    stand_ins.write_command(node.command, python=conftest.require_env(request.param))
    site = tmp_path / "story"
    site.mkdir()
    (site / "sitecustomize.py").write_text(TOLD.format(folder=str(conftest.WORKER.parent)))
    node.environ |= {"PYTHONPATH": str(site), "ASKED": str(tmp_path / "asked")}
    return node


def times_asked(node):
    """How often a child was started to ask SGLang."""
    return len(pathlib.Path(node.environ["ASKED"]).read_text().splitlines())


def resolved(node, sm, *argv, deadline_s=PATIENT_S):
    """What the gate reports that SGLang would make of this launch."""
    gpus = [{"uuid": f"GPU-{index:04d}-aaaa", "sm": sm} for index in range(8)]
    node.environ["LD_LIBRARY_PATH"] = str(nvml_library.write(node.folder / "nvml", gpus))
    node.environ["SM"] = sm

    def hands_off(launch):
        return stand_ins.directive(stand_ins.entry(launch, "untouched", None, "observe"))

    with stand_ins.Controller(stand_ins.honest(hands_off)) as controller:
        node.enroll(controller.url)
        options = ["--deadline-s", str(deadline_s)]
        node.seen = node.launch("sglang", "serve", *argv, options=options, timeout=PATIENT_S)
        (launch,) = controller.launches()
    assert launch["build"]["sglang_version"] == node.sglang_version
    return launch["dry_resolved"]


CASES = {
    "auto": ("10.7", [], ("flashinfer_mxfp4", "none")),
    "auto on an SM it does not select for": ("9.0", [], ("auto", "none")),
    "a choice": ("10.7", ["--moe-runner-backend", "marlin"], ("marlin", "none")),
}


@pytest.mark.parametrize(("sm", "more", "expected"), CASES.values(), ids=CASES)
def test_sglang_itself_says_what_it_would_run(node, k3_models, sm, more, expected):
    argv = ["--model-path", k3_models["group_and_top"], *FLAGS, *more]
    runner = "auto" if not more and node.sglang_version == "0.5.18" else expected[0]
    assert resolved(node, sm, *argv) == {"runner": runner, "a2a": expected[1]}


@pytest.mark.timeout(3 * PATIENT_S)
def test_the_answer_is_kept_for_the_same_launch_alone(node, k3_models):
    argv = ["--model-path", k3_models["group_and_top"], *FLAGS]
    first = resolved(node, "10.7", *argv)
    (kept,) = (node.state / "dry_resolved").iterdir()
    written = kept.stat().st_mtime_ns
    assert resolved(node, "10.7", *argv) == first
    assert (kept.stat().st_mtime_ns, times_asked(node)) == (written, 1)
    assert resolved(node, "10.7", *argv, "--moe-runner-backend", "triton")["runner"] == "triton"
    assert times_asked(node) == 2
    assert len(list((node.state / "dry_resolved").iterdir())) == 2
    assert str(k3_models["group_and_top"]) not in kept.read_text() + kept.name


WORLDS = {
    "one world": ([], None),
    "replicas": (["--dp-size", "2"], "several_worlds"),
}


@pytest.mark.parametrize(("more", "code"), WORLDS.values(), ids=WORLDS)
def test_sglang_itself_says_whether_its_ranks_could_wait_at_its_gate(node, k3_models, more, code):
    tried = (barrier_rule.FLAG, str(barrier_rule.PORT_TRIED))
    resolved(node, "10.7", "--model-path", k3_models["group_and_top"], *FLAGS, *more, *tried)
    kept = [json.loads(path.read_text()) for path in (node.state / "dry_resolved").iterdir()]
    if node.sglang_version == "0.5.18":
        assert kept == []  # it knows no such flag, and would end at it
    else:
        assert [barrier_rule.hindrance(node.sglang_version, one) for one in kept] == [code]
        assert barrier_rule.door(kept[0]) == "127.0.0.1"


REFUSED = {
    "a flag it does not know": ["--no-such-flag"],
    "a name it does not know": ["--moe-runner-backend", "nosuch"],
}


@pytest.mark.parametrize("more", REFUSED.values(), ids=REFUSED)
def test_what_sglang_refuses_is_not_known_and_the_launch_goes_on(node, k3_models, more):
    argv = ["--model-path", k3_models["group_and_top"], *FLAGS, *more]
    assert resolved(node, "10.7", *argv) is None
    assert not list(pathlib.Path(node.state).glob("dry_resolved/*"))


def test_a_resolution_that_hangs_costs_its_share_of_the_deadline(node, k3_models):
    """What is left of the deadline is enough to hear the controller."""
    story = pathlib.Path(node.environ["PYTHONPATH"]) / "sitecustomize.py"
    story.write_text(story.read_text() + "    import time; time.sleep(600)\n")
    argv = ["--model-path", k3_models["group_and_top"], *FLAGS]
    assert resolved(node, "10.7", *argv, deadline_s=20) is None
    assert (times_asked(node), node.seen["children"]) == (1, [])
    assert "(observe, by directive" in node.stderr
