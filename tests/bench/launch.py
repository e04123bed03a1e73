"""`make bench-launch`: what the launch gate adds to a start, as JSON lines {name, runs, value, unit}.

The archive in front of a command that only ends, and the same command by itself, in turn; the
difference of the medians is what the gate adds, its interpreter included. BENCH_RUNS runs each (15).

    no_check     a controller on loopback decides at once and wants no check
    check        it wants one: `inventory`, in an interpreter without torch
    absent       nobody listens at the controller's address
    silent       it accepts and says nothing
    not_enrolled nobody is asked
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

from tests.launch import asking, nvml_library, stand_ins

RUNS = 15
SM = "10.7"
SILENT_RUNS = 3
"""A silent controller costs seconds each time, and always the same."""


def _node(folder: pathlib.Path) -> stand_ins.Node:
    node = stand_ins.Node(folder, stand_ins.build_archive(folder))
    node.command.write_text(f"#!{sys.executable} -IS\n")
    gpus = [{"uuid": f"GPU-{index:04d}-aaaa", "sm": SM} for index in range(8)]
    node.environ["LD_LIBRARY_PATH"] = str(nvml_library.write(folder / "nvml", gpus))
    model = folder / "k3"
    model.mkdir()
    config = pathlib.Path("tests/fixtures/sglang/k3_config.json").read_text()
    (model / "config.json").write_text(config)
    return node


def _timed_s(node: stand_ins.Node, *, gated: bool) -> float:
    command = ["sglang", "serve", "--model-path", str(node.folder / "k3"), "--tp-size", "8"]
    gate = [sys.executable, "-I", str(node.archive), "launch", "--state-dir", str(node.state), "--"]
    begun = time.perf_counter()
    subprocess.run(
        [*(gate if gated else ()), *command],
        env=node.environ,
        check=True,
        capture_output=True,
        executable=None if gated else str(node.command),
    )
    return time.perf_counter() - begun


def _wanting(names: list[str]) -> Callable[[tuple], bytes | None]:
    decide = stand_ins.honest(asking.decide())

    def reply(request: tuple) -> bytes | None:
        if request[1] != "/v1/agent/launch" or not names:
            return decide(request)
        decide(request)
        return stand_ins.http_answer(stand_ins.answer(checks_wanted=names))

    return reply


@contextlib.contextmanager
def _asked(node: stand_ins.Node, reply: Callable[[tuple], bytes | None]) -> Iterator[None]:
    with stand_ins.Controller(reply) as controller:
        node.enroll(controller.url)
        yield


@contextlib.contextmanager
def _absent(node: stand_ins.Node) -> Iterator[None]:
    with stand_ins.Controller(lambda _: None) as controller:
        node.enroll(controller.url)
    yield


@contextlib.contextmanager
def _not_enrolled(node: stand_ins.Node) -> Iterator[None]:
    (node.state / "credential.json").unlink(missing_ok=True)
    yield


def main() -> int:
    """Measure and print."""
    runs = int(os.environ.get("BENCH_RUNS") or RUNS)
    with tempfile.TemporaryDirectory() as folder:
        node = _node(pathlib.Path(folder))
        cases = {
            "no_check": (_asked(node, _wanting([])), runs),
            "check": (_asked(node, _wanting(["inventory"])), runs),
            "not_enrolled": (_not_enrolled(node), runs),
            "absent": (_absent(node), min(runs, SILENT_RUNS)),
            "silent": (_asked(node, lambda _: None), min(runs, SILENT_RUNS)),
        }
        for name, (around, count) in cases.items():
            bare, gated = [], []
            with around:
                for _ in range(count):
                    bare.append(_timed_s(node, gated=False))
                    gated.append(_timed_s(node, gated=True))
            added = statistics.median(gated) - statistics.median(bare)
            row = {"name": f"added_{name}", "runs": count, "value": round(added, 3), "unit": "s"}
            print(json.dumps(row), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
