"""Runs one check and prints its result, whatever the imported packages do."""

from __future__ import annotations

import importlib
import json
import math
import os
import sys
from typing import TYPE_CHECKING, Any

from smgate_agent import probe

if TYPE_CHECKING:
    from collections.abc import Sequence

MARK = "smgate-result "
USAGE_STATUS = 2
STDOUT, STDERR = 1, 2
NO_COMPILER = "FLASHINFER_DISABLE_JIT"
REFUSED_TO_COMPILE = "MissingJITCacheError"
"""What FlashInfer raises for a kernel that is not prebuilt, where it may not compile."""


def main(argv: Sequence[str]) -> int:
    """Print the result as one marked line on the real stdout; the status is 0 for any result."""
    launch = _launch(argv[1:])
    if launch is None or not argv:
        sys.stderr.write("usage: probe CHECK [LAUNCH], LAUNCH a JSON object\n")
        return USAGE_STATUS
    result = run(argv[0], launch)
    numbers = {name: one for name, one in result["numbers"].items() if math.isfinite(one)}
    result = {**result, "numbers": numbers}  # JSON has neither NaN nor infinity
    line = MARK + json.dumps({"check": argv[0], "probe_version": probe.VERSION, **result}) + "\n"
    sys.stdout.flush()
    os.write(_ANSWER, line.encode())
    # Packages may have left threads and exit handlers behind that hang or crash at shutdown.
    os._exit(0)


_ANSWER = STDOUT


def _launch(given: Sequence[str]) -> dict[str, Any] | None:
    """What is known of the launch: nothing where nothing was given, None where it is no object."""
    if not given:
        return {}
    try:
        (text,) = given
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def run(name: str, launch: dict[str, Any]) -> dict[str, Any]:
    """The result of one check: outcome, reason, numbers, and its control if it has one."""
    global _ANSWER  # noqa: PLW0603 (the one place where the real stdout is put aside)
    if name not in probe.CHECKS:
        return {"outcome": "skipped", "reason": "check_unknown_here", "numbers": {}}
    _ANSWER = os.dup(STDOUT)
    os.dup2(STDERR, STDOUT)
    if not os.environ.get(probe.ALLOW_COMPILE):
        os.environ[NO_COMPILER] = "1"
    try:
        check = importlib.import_module(f"smgate_agent.probe.{name}")
        result: dict[str, Any] = check.run(launch)
    except ModuleNotFoundError as exc:
        reason = "torch_missing" if exc.name == "torch" else "module_missing"
        return {"outcome": "error", "reason": reason, "numbers": {}}
    except SystemExit:
        return {"outcome": "error", "reason": "import_exited", "numbers": {}}
    except BaseException as exc:
        if type(exc).__name__ == REFUSED_TO_COMPILE:
            return {"outcome": "skipped", "reason": "would_compile", "numbers": {}}
        reason = f"check_raised_{type(exc).__name__.lower()}"[:80]
        return {"outcome": "error", "reason": reason, "numbers": {}}
    return result
