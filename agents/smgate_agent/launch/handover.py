"""Becomes the command: same process, arguments plus what was appended, nothing else changed."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from smgate_agent.launch import ending, telling

if TYPE_CHECKING:
    from collections.abc import Sequence

FLAG = "--moe-runner-backend"
NOT_FOUND, NOT_EXECUTABLE = 127, 126
IGNORED_BY_PYTHON = ("SIGPIPE", "SIGXFSZ")
LOCALE_VARIABLE = "LC_CTYPE"


def become(argv: Sequence[str], more: Sequence[str]) -> int:
    """Replace this process by the command with more arguments.

    Returns a shell's exit status if that is impossible.
    """
    command = [*argv, *more]
    with contextlib.suppress(Exception):
        _undo_interpreter_start()
    try:
        os.execvp(command[0], command)
    except OSError as exc:
        telling.say(f"cannot start the command: {exc.strerror}")
        return NOT_FOUND if isinstance(exc, FileNotFoundError) else NOT_EXECUTABLE
    except ValueError:
        telling.say("cannot start the command: it is empty or malformed")
        return NOT_FOUND


def _undo_interpreter_start() -> None:
    """Take back what the interpreter itself changed when it started: two signals, one variable.

    In the C locale Python sets `LC_CTYPE`; the kernel still shows the environment as it was given.
    """
    for name in IGNORED_BY_PYTHON:
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    ending.disobey()
    given = Path("/proc/self/environ").read_bytes().split(b"\0")
    prefix = LOCALE_VARIABLE.encode() + b"="
    if LOCALE_VARIABLE in os.environ and not any(entry.startswith(prefix) for entry in given):
        del os.environ[LOCALE_VARIABLE]
