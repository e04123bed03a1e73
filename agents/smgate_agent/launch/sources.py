"""Starts the two reading children side by side and waits for both."""

from __future__ import annotations

import pkgutil
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from smgate_agent.launch.children import Children
    from smgate_agent.launch.command import Command

Json = dict[str, Any]


def script(name: str) -> str:
    """The text of a child's script, out of the archive or the installed package."""
    return (pkgutil.get_data("smgate_agent.launch", name) or b"").decode()


def read_both(
    children: Children,
    found: Command | None,
    *,
    mig_names: Sequence[str],
    options: str,
    config_path: str | None,
    timeout_s: float,
) -> tuple[Json, Json]:
    """What the driver says and what SGLang's interpreter says; `{}` for one that did not answer."""
    driver: list[Json] = []
    reader: list[Json] = []

    def ask_driver() -> None:
        if sys.executable:
            argv = [sys.executable, "-I", "-S", "-c", script("nvml_child.py"), *mig_names]
            # A child that had to be killed is a driver that is there and does not answer.
            silent = {"library": True, "answered": False}
            driver.append(children.run(argv, timeout_s=timeout_s).result() or silent)

    def ask_reader() -> None:
        if found is not None and found.interpreter is not None:
            argv = [found.interpreter, *found.interpreter_flags, "-c", script("reader_child.py")]
            argv += [options] if config_path is None else [options, config_path]
            reader.append(children.run(argv, timeout_s=timeout_s).result() or {})

    _together(ask_driver, ask_reader)
    return (driver or [{}])[0], (reader or [{}])[0]


def _together(first: Callable[[], None], second: Callable[[], None]) -> None:
    beside = threading.Thread(target=first, daemon=True)
    beside.start()
    second()
    beside.join()
