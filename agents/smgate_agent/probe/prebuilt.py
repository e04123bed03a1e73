"""FlashInfer compiles nothing here, and yet loads what it compiled before.

Its own switch refuses both: with `FLASHINFER_DISABLE_JIT` only kernels of the flashinfer-jit-cache package
load, and not those that a server's start compiled on this machine (0.7.2.post1, `jit/core.py`: such a
kernel goes through `build`, where ninja finds nothing to do). So the switch stays, and where a module is
loaded ninja is asked first, in this process alone, whether anything is left to do.
"""

from __future__ import annotations

import importlib
import subprocess
from typing import Any

from smgate_agent.probe import ending

Spec = Any

NOTHING_TO_DO = "no work to do"
NINJA_TIMEOUT_S = 30.0
CLASSES = ("JitSpecNvcc", "JitSpec")
"""The description of a module that nvcc compiles: since 0.7, and before."""
NEEDED = ("build_and_load", "is_aot", "jit_library_path", "load", "ninja_path", "write_ninja")


def load_what_is_built() -> None:
    """Have FlashInfer load modules that are compiled and up to date; all others go on being refused.

    A version that is built otherwise is left as it is: it loads what its switch lets it.
    """
    try:
        core = importlib.import_module("flashinfer.jit.core")
    except ImportError:
        return
    for kind in (getattr(core, name, None) for name in CLASSES):
        if kind is not None and all(hasattr(kind, name) for name in NEEDED):
            _take_over(kind)
            return


def _take_over(kind: type[Spec]) -> None:
    packaged = kind.build_and_load

    def build_and_load(spec: Spec, *given: object, **named: object) -> object:
        if spec.is_aot:
            return packaged(spec, *given, **named)
        if not (spec.jit_library_path.exists() and _is_up_to_date(spec)):
            raise ending.EndedError("skipped", "kernels_not_prebuilt")
        return spec.load(spec.jit_library_path)

    kind.build_and_load = build_and_load


def _is_up_to_date(spec: Spec) -> bool:
    """Whether a server's start would load this file, and not compile it anew."""
    try:
        spec.write_ninja()
    except Exception:
        return False
    ask = ["ninja", "-n", "-C", str(spec.ninja_path.parent), "-f", str(spec.ninja_path)]
    try:
        said = subprocess.run(
            ask,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=NINJA_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return said.returncode == 0 and NOTHING_TO_DO in said.stdout.decode(errors="replace")
