"""What any number of callers of one subject append, for the log's bench."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

WARM_S = 0.1
HANG_S = 60.0
"""So long a call may take before it is taken to hang."""


class Subject(Protocol):
    """Something that appends. Of several that open one database, the first makes the tables."""

    def writer(self, facts: int) -> Callable[[], object]:
        """Appends that many facts, durably, at every call. Each writer is one caller."""
        ...

    def close(self) -> None: ...


def rate(
    subject: Subject, *, callers: int, facts: int, seconds: float, hang_s: float = HANG_S
) -> float:
    """Facts per second that so many callers append, each `facts` at a time.

    Raises:
        TimeoutError: a call never came back.
        Exception: what the first of them to fail raised.
    """
    stop, done = threading.Event(), [0] * callers
    writers = [subject.writer(facts) for _ in range(callers)]
    failures: list[Exception] = []

    def call(index: int) -> None:
        write = writers[index]
        try:
            while not stop.is_set():
                write()
                done[index] += facts
        except Exception as error:
            failures.append(error)
            stop.set()

    threads = [
        threading.Thread(target=call, args=(index,), daemon=True) for index in range(callers)
    ]
    for thread in threads:
        thread.start()
    stop.wait(WARM_S)
    before, begun = sum(done), time.perf_counter()
    stop.wait(seconds)
    counted, took = sum(done) - before, time.perf_counter() - begun
    stop.set()
    until = time.monotonic() + hang_s
    for thread in threads:
        thread.join(max(0, until - time.monotonic()))
    if failures:
        raise failures[0]
    if any(thread.is_alive() for thread in threads):
        raise TimeoutError(f"a call did not come back in {hang_s:g} s")
    return counted / took
