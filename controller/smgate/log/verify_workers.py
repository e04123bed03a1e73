"""Owns walking stretches of a log in several processes: hashing is most of the work, and one core's."""

from __future__ import annotations

import concurrent.futures
import functools
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Generator, Sequence
from typing import Final

import typing_extensions

from smgate.log import open as log_open, port, verify, walk

STRETCH: Final = 50_000
"""Positions walked at a time: half a second, so that little is lost when it is interrupted."""


class WorkerEndedError(port.LogUnavailableError):
    """A process that walked was ended from outside, so nothing is known of its stretch."""

    def __init__(self) -> None:
        super().__init__("worker_ended", "a process that verified a part of the log was killed")

    @property
    @typing_extensions.override
    def next_step(self) -> str:
        """What a person can do about it."""
        return "Look whether memory ran out (dmesg); give --workers 1, and --progress to go on."


def cores() -> int:
    """Processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def walker(url: str, store: port.Store, *, workers: int) -> verify.Walker:
    """Walks stretches of the database at `url` in that many processes; a short log in this one."""

    def walks(
        stretches: Sequence[verify.Stretch], watched: frozenset[int]
    ) -> Generator[walk.Walked]:
        if min(workers, len(stretches)) == 1:
            yield from verify.here(store)(stretches, watched)
            return
        pool = concurrent.futures.ProcessPoolExecutor(
            min(workers, len(stretches)),
            # Not forked: a copy of open connections is no connection.
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_begin,
        )
        try:
            asked = [pool.submit(_walk, url, *one, watched) for one in stretches]
            for one in asked:
                try:
                    found = one.result()
                except concurrent.futures.BrokenExecutor as error:
                    raise WorkerEndedError from error
                if not isinstance(found, walk.Walked):
                    raise port.LogUnavailableError(*found)
                yield found
        finally:
            pool.shutdown(cancel_futures=True)

    return walks


def _begin() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Who asked is told; the workers only end.
    threading.Thread(target=_end_with_the_parent, daemon=True).start()


def _end_with_the_parent() -> None:
    """A parent that was killed cannot say that it is gone, and the queue would be waited on for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "only a worker runs this"
    multiprocessing.connection.wait([parent.sentinel])
    os._exit(1)


@functools.cache
def _opened(url: str) -> port.Store:
    """One connection for all stretches of a worker."""
    return log_open.open_store(url, clock_us=lambda: 0, read_only=True)


def _walk(
    url: str, start: walk.Place, through: int, watched: frozenset[int]
) -> walk.Walked | tuple[str, str]:
    try:
        return walk.walk(_opened(url), start=start, through=through, watched=watched)
    except port.LogUnavailableError as error:
        return error.reason, error.detail  # The error itself would not survive the way back.
