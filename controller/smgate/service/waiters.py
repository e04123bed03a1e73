"""Owns waiting for news inside this process: topics, woken from any thread, awaited on one loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Final, TypeVar

from smgate.service import book

T = TypeVar("T")


class Waiters:
    """Who waits for what. Used on one event loop; `wake` and `close` may be called from anywhere."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._futures: Final[dict[str, set[asyncio.Future[None]]]] = {}
        self._closed = False
        self.count = 0
        """How many wait now."""

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Say which loop the waiting happens on."""
        self._loop = loop

    def wake(self, topics: set[str]) -> None:
        """News for these topics. Does nothing before `bind` and after the loop ended."""
        self._soon(lambda: self._wake(topics))

    def close(self) -> None:
        """Wake everybody, and let nobody wait again: the process is about to stop."""
        self._closed = True
        self._soon(lambda: self._wake({book.EVERY_NODE, *self._futures}))

    async def until(
        self, topic: str, check: Callable[[], Awaitable[T | None]], *, timeout_s: float
    ) -> T | None:
        """What `check` first gives, asked now and after every news; None when the time is over."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + timeout_s
        while True:
            with self._listening(topic, loop) as future:
                found = await check()
                left = ends - loop.time()
                if found is not None or left <= 0 or self._closed:
                    return found
                await asyncio.wait([future], timeout=left)

    @contextlib.contextmanager
    def _listening(
        self, topic: str, loop: asyncio.AbstractEventLoop
    ) -> Iterator[asyncio.Future[None]]:
        # Registered before the check, so that news between check and wait is not lost.
        future: asyncio.Future[None] = loop.create_future()
        self._futures.setdefault(topic, set()).add(future)
        self.count += 1
        try:
            yield future
        finally:
            self.count -= 1
            listeners = self._futures[topic]
            listeners.discard(future)
            if not listeners:
                del self._futures[topic]

    def _wake(self, topics: set[str]) -> None:
        for topic in list(self._futures) if book.EVERY_NODE in topics else topics:
            for future in self._futures.get(topic, ()):
                if not future.done():
                    future.set_result(None)

    def _soon(self, call: Callable[[], None]) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # The loop is closed: nobody waits.
                self._loop.call_soon_threadsafe(call)
