"""The checks a controller asks for: run in SGLang's Python, reported before the decision."""

import concurrent.futures
import json

import pytest
from tests.launch import stand_ins

from smgate.wire import base, facts
from smgate_agent import probe
from smgate_agent.launch import checks

BROKEN = {
    "missing": (None, "error", "flashinfer_missing"),
    "raises": ("raise ValueError('no')", "error", "flashinfer_import_failed"),
    "another package missing": ("import no_such_package", "error", "flashinfer_import_failed"),
    "exits": ("import sys; sys.exit(0)", "error", "import_exited"),
    "exits at once": ("import os; os._exit(0)", "error", "probe_no_answer"),
    "crashes": (
        "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
        "error", "probe_crashed_signal_11",
    ),
    "hangs": ("import time; time.sleep(600)", "timeout", "probe_timeout"),
    "floods stdout": ("import os\nwhile True: os.write(1, b'x' * 65536)", "timeout", "probe_timeout"),
    "prints": (
        "print('smgate-result {\"outcome\": \"passed\", \"reason\": \"a_lie\"}', flush=True)",
        "failed", "callable_missing:trtllm_fp4_block_scale_routed_moe",
    ),
    "closes its files": (
        "import os; [os.close(n) for n in range(3, 64) if os.path.exists(f'/proc/self/fd/{n}')]",
        "error", "probe_no_answer",
    ),
}  # fmt: skip


def wanting(*names):
    """A controller that wants these checks, then leaves the unit alone."""

    def decide(launch):
        return stand_ins.directive(stand_ins.entry(launch, "untouched", None, "observe"))

    honest = stand_ins.honest(decide)

    def reply(request):
        if request[1] == "/v1/agent/launch":
            honest(request)
            return stand_ins.http_answer(stand_ins.answer(checks_wanted=list(names)))
        return honest(request)

    return reply


def finished(node, *names, options=()):
    """The facts that came in, in order."""
    with stand_ins.Controller(wanting(*names)) as controller:
        node.enroll(controller.url)
        node.launch("sglang", "serve", "--model-path", "m", options=options)
    batches = [
        base.decode(json.dumps(body).encode(), facts.FactsBatch)
        for _, path, body, _ in controller.requests
        if path == "/v1/agent/facts"
    ]
    paths = [path.partition("?")[0].rpartition("/")[2] for _, path, _, _ in controller.requests]
    assert paths[1] == "facts", "results come before the question for the decision"
    last = batches[-1].facts
    assert [fact.sequence for fact in last] == list(range(2, 2 + len(last)))
    assert batches[0].facts == last[: len(batches[0].facts)]
    return [fact.payload for fact in last]


@pytest.mark.parametrize(("source", "outcome", "reason"), BROKEN.values(), ids=BROKEN)
def test_a_broken_flashinfer_is_a_result_and_never_a_crash(node, source, outcome, reason):
    package = node.folder / "site" / "flashinfer"
    if source is None:
        for path in package.iterdir():
            path.unlink()
        package.rmdir()
    else:
        (package / "__init__.py").write_text(source + "\n")
    hangs = reason == "probe_timeout"
    deadline_s = 8 if hangs else 120
    check, applied = finished(node, "api_boundary", options=["--deadline-s", str(deadline_s)])
    assert (check.check, check.outcome, check.reason) == ("api_boundary", outcome, reason)
    assert check.probe_version == probe.VERSION
    assert check.negative_control == "not_run"
    assert applied.form == "untouched"
    # What breaks costs no deadline, and what hangs no more than its share.
    assert node.took_s < (20 if hangs else deadline_s / 2)


def test_a_check_nobody_here_knows_is_skipped(node):
    check, _ = finished(node, "of_another_release")
    assert (check.outcome, check.reason) == ("skipped", "check_unknown_here")


def test_a_torch_without_a_gpu_is_skipped_and_one_that_is_missing_is_an_error(node):
    torch = node.folder / "site" / "torch" / "__init__.py"
    torch.write_text(
        "class version: cuda = None\nclass cuda:\n    is_available = staticmethod(lambda: False)\n"
    )
    check, _ = finished(node, "inventory")
    assert (check.outcome, check.reason) == ("skipped", "no_gpu")
    torch.write_text("raise ImportError\n")
    check, _ = finished(node, "inventory")
    assert (check.outcome, check.reason) == ("error", "torch_missing")


def test_no_check_runs_unless_the_answer_asks_for_it(node):
    (node.folder / "site" / "flashinfer" / "__init__.py").write_text(
        f"open({str(node.folder / 'imported')!r}, 'w')\n"
    )
    with stand_ins.Controller(wanting()) as controller:
        node.enroll(controller.url)
        node.launch("sglang", "serve", "--model-path", "m")
    assert not (node.folder / "imported").exists()
    assert [fact["payload"]["type"] for fact in controller.facts()] == ["override_applied"]


@pytest.mark.parametrize(
    ("told", "kept"),
    [("caught", "caught"), ("missed", "missed"), ("sure", "not_run"), (["caught"], "not_run"), (None, "not_run")],
)  # fmt: skip
def test_a_check_says_itself_what_its_control_did_and_nothing_else_counts(told, kept):
    launch = {
        "launch_id": "l",
        "gpus": [{"uuid": "GPU-1", "sm": "10.7"}],
        "build": {},
        "layout": {},
    }
    reading = {"outcome": "passed", "reason": "right", "negative_control": told}
    assert checks.finished("quantize", reading, launch)["negative_control"] == kept


def test_a_check_is_told_its_shapes_and_gpus_and_no_more_of_the_launch():
    """Its arguments can be read by everyone on the machine."""
    launch = {
        "launch_id": "l", "gpus": [{"uuid": "GPU-1", "sm": "10.7"}], "asked_a2a": None,
        "model_digest": "aa", "build": {"sglang_version": "0.5.23"}, "layout": {"tp": 8},
    }  # fmt: skip
    assert checks.told(launch) == {
        "sm": "10.7", "a2a": "none", "layout": {"tp": 8}, "gpu_uuids": ["GPU-1"],
    }  # fmt: skip


@pytest.mark.parametrize(
    "given", [[], ["inventory", "{}", "{}"], ["inventory", "[]"], ["inventory", "{"]]
)
def test_a_probe_called_wrongly_says_how_to_call_it(given, capsys):
    assert probe.main(given) == 2
    assert capsys.readouterr().err == "usage: probe CHECK [LAUNCH], LAUNCH a JSON object\n"


def test_checks_read_what_the_gate_read_of_the_launch(sm107):
    """The SM, without which no kernels can be named, and the GPUs and shape that memory is for."""
    artifact, memory, _ = finished(sm107, "artifact", "memory")
    assert (artifact.outcome, artifact.reason) == ("error", "pins_unreadable")
    assert (memory.outcome, memory.reason) == ("skipped", "layout_unknown")


# GPUs and compilers

SLOW = """
import os, time
with open(os.environ["MARKS"], "a") as marks:
    marks.write(f"{os.environ['WHO']} begins\\n")
time.sleep(2)
with open(os.environ["MARKS"], "a") as marks:
    marks.write(f"{os.environ['WHO']} ends\\n")
raise ValueError("seen enough")
"""


def at_once(node, visible):
    """Launches at one time, each with its own GPUs: their outcomes, and who imported when."""
    (node.folder / "site" / "flashinfer" / "__init__.py").write_text(SLOW)
    marks = node.folder / "marks"
    node.environ["MARKS"] = str(marks)

    def outcome(number):
        one = stand_ins.Node.__new__(stand_ins.Node)
        vars(one).update(vars(node), dump=node.folder / f"dump-{number}.json")
        one.state = node.folder / f"state-{number}"
        one.state.mkdir()
        one.environ = node.environ | {
            "DUMP": str(one.dump), "WHO": str(number), "CUDA_VISIBLE_DEVICES": visible[number],
        }  # fmt: skip
        fact, _ = finished(one, "api_boundary")
        return fact.outcome, fact.reason

    with concurrent.futures.ThreadPoolExecutor(len(visible)) as pool:
        return list(pool.map(outcome, range(len(visible)))), marks.read_text().split("\n")[:-1]


def test_launches_on_the_same_gpus_never_both_check(sm107):
    outcomes, marks = at_once(sm107, ["0,1", "1,0", "1"])
    assert sorted(outcomes) == [
        ("error", "flashinfer_import_failed"), ("skipped", "gpus_busy"), ("skipped", "gpus_busy"),
    ]  # fmt: skip
    assert len(marks) == 2


def test_launches_on_different_gpus_check_side_by_side(sm107):
    outcomes, marks = at_once(sm107, ["0", "1"])
    assert outcomes == [("error", "flashinfer_import_failed")] * 2
    assert [mark.partition(" ")[2] for mark in marks] == ["begins", "begins", "ends", "ends"]


COMPILING = """
import os

class MissingJITCacheError(RuntimeError):
    pass

def __getattr__(name):
    if not name.startswith("__") and os.environ.get("FLASHINFER_DISABLE_JIT"):
        raise MissingJITCacheError("not prebuilt")
    raise AttributeError(name)
"""
CALLABLE = "trtllm_fp4_block_scale_routed_moe"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, ("skipped", "would_compile")),
        ({"SMGATE_ALLOW_COMPILE": "1"}, ("failed", f"callable_missing:{CALLABLE}")),
    ],
)
def test_nothing_is_compiled_before_a_server_unless_that_is_allowed(node, environ, expected):
    for name in ("__init__.py", "fused_moe.py"):
        (node.folder / "site" / "flashinfer" / name).write_text(COMPILING)
    node.environ |= environ
    fact, _ = finished(node, "api_boundary")
    assert (fact.outcome, fact.reason) == expected
