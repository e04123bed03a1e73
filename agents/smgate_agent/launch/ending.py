"""How this process ends when it is asked to before it has become the command.

It dies of the signal, as the command would have, so that a supervisor sees what it always saw. As
process 1 of a container a signal kills nobody who does not handle it: there the gate ends with the
status a shell would give, and what SGLang would not notice either is not noticed.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

REQUESTS = ("SIGTERM", "SIGINT")
"""SGLang handles these, also as process 1."""
KILLERS = ("SIGHUP", "SIGQUIT")
"""These kill a process that does not handle them, unless it is process 1."""
SIGNAL_STATUS = 128


class Terminated(BaseException):
    """Somebody asked this process to end before it became the command."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def obey() -> None:
    """Raise `Terminated` in the main thread on a request to end; what is ignored stays ignored."""

    def end(number: int, _frame: FrameType | None) -> None:
        disobey()  # a second request ends it at once
        raise Terminated(number)

    for name in REQUESTS if os.getpid() == 1 else REQUESTS + KILLERS:
        number = getattr(signal, name)
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            with contextlib.suppress(ValueError):  # not the main thread: nothing can be set
                signal.signal(number, end)


def disobey() -> None:
    """Leave these signals to the kernel again, as whoever started this process had them."""
    for name in REQUESTS + KILLERS:
        number = getattr(signal, name)
        if callable(signal.getsignal(number)):
            with contextlib.suppress(ValueError):
                signal.signal(number, signal.SIG_DFL)


def die(number: int) -> int:
    """Die of the signal; returns a shell's status where that is impossible."""
    disobey()
    with contextlib.suppress(OSError):
        os.kill(os.getpid(), number)
    return SIGNAL_STATUS + number
