"""Runs the checks the controller wants of this launch, each a child in SGLang's own interpreter."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smgate_agent import probe
from smgate_agent.launch import gpu_locks, local_rule, shapes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smgate_agent.launch.children import Children, Ended
    from smgate_agent.launch.command import Command

Json = dict[str, Any]

CHECK_S = 60.0
LONG_CHECKS_S = {"moe_mxfp4": 100.0}
"""It tries every tactic at six sizes. With the default deadline this leaves time to ask and to answer."""
RESERVE_S = 3.0
CHECKS_MAX = 16
GPUS_BUSY: Json = {"outcome": "skipped", "reason": "gpus_busy", "numbers": {}}
"""Another launch checks one of these GPUs, and will serve on it: no check runs beside that."""
BOOTSTRAP = """
import sys
root = sys.argv.pop(1)
sys.path[:] = [folder for folder in sys.path if folder] + [root]
from smgate_agent import probe
sys.path.remove(root)
raise SystemExit(probe.main(sys.argv[1:]))
"""


def run(
    names: Sequence[str],
    launch: Json,
    *,
    command: Command | None,
    children: Children,
    until: float,
    beside: Json | None = None,
) -> Iterator[Json]:
    """One `CheckFinished` for each wanted check, whatever happens to it.

    `beside` is told to the checks with what was read of the launch. The gate tells them nothing more; a
    test tells them `{"device": "cpu"}`.
    """
    told_all = json.dumps({**told(launch), **(beside or {})})
    with gpu_locks.held(gpu["uuid"] for gpu in launch["gpus"]) as mine:
        for name in dict.fromkeys(names[:CHECKS_MAX]):
            reading = _one(name, told_all, command, children, until) if mine else GPUS_BUSY
            yield finished(name, reading, launch)


def _one(
    name: str, told_all: str, command: Command | None, children: Children, until: float
) -> Json:
    left = until - RESERVE_S - time.monotonic()
    if name not in probe.CHECKS:
        return _nothing("skipped", "check_unknown_here")
    if left <= 0:
        return _nothing("skipped", "deadline")
    if command is None or command.interpreter is None:
        return _nothing("skipped", "interpreter_unknown")
    python = [command.interpreter, *command.interpreter_flags]
    argv = [*python, "-c", BOOTSTRAP, _root(), name, told_all]
    limit_s = LONG_CHECKS_S.get(name, CHECK_S)
    return judge(children.run(argv, timeout_s=min(limit_s, left)))


def told(launch: Json) -> Json:
    """What a check may know of the launch: what makes its shapes, and which GPUs are its own."""
    return {
        "sm": local_rule.single_sm(launch),
        "a2a": local_rule.asked_a2a(launch),
        "layout": launch["layout"],
        "gpu_uuids": [gpu["uuid"] for gpu in launch["gpus"]],
    }


def judge(ended: Ended) -> Json:
    """The child's own result, or what its end says of it."""
    result = ended.result()
    if result is not None:
        return result
    if ended.returncode is None:
        return _nothing("timeout", "probe_timeout")
    if ended.returncode < 0:
        return _nothing("error", f"probe_crashed_signal_{-ended.returncode}")
    return _nothing("error", "probe_no_answer")


def _nothing(outcome: str, reason: str) -> Json:
    return {"outcome": outcome, "reason": reason, "numbers": {}}


def finished(name: str, reading: Json, launch: Json) -> Json:
    """The wire's `CheckFinished`; an answer out of shape is an error of the check."""
    outcome, reason = reading.get("outcome"), shapes.kept(shapes.CODE, reading.get("reason"))
    if outcome not in ("passed", "failed", "error", "timeout", "skipped") or reason is None:
        outcome, reason = "error", "probe_answer_malformed"
    numbers, control = reading.get("numbers"), reading.get("negative_control")
    return {
        "type": "check_finished",
        "check": name,
        "outcome": outcome,
        "reason": reason,
        **told(launch),
        "build": launch["build"],
        "probe_version": probe.VERSION,
        "negative_control": control if control in ("caught", "missed") else "not_run",
        "launch_id": launch["launch_id"],
        "numbers": {
            key: float(value)
            for key, value in (numbers.items() if isinstance(numbers, dict) else ())
            if shapes.fits(shapes.NAME, key)
            and isinstance(value, (int, float))
            and not isinstance(value, bool)
        },
    }


def _root() -> str:
    """The archive or folder that holds this package, for the child's search path."""
    return str(Path(__file__).resolve().parents[2])
