"""Owns group commit: what waited while one commit ran is written by the next, together.

There is no thread and no timer: of the callers that wait, the first writes for all. So a lone caller
waits for nobody, and whoever was taken in gets an answer as long as its own thread lives.

Whoever is answered wakes the next that is, and the last of them whoever writes next. One thread at a
time then wants the interpreter, where all at once would fight for it; and who was answered first has
come back with more before the next commit begins, where it would else wait for that one and its own.
"""

from __future__ import annotations

import collections
import threading
from typing import TYPE_CHECKING, Final

from smgate.log import batch, port

if TYPE_CHECKING:
    from collections.abc import Sequence

TOGETHER_MAX: Final = 1_000
"""Records in one commit of several callers. More would hold the head row for too long."""

WAITING_MAX: Final = 10_000
"""Records that may wait. A database that takes 10,000 a second has them written in a second; more
would only be memory, and callers that have given up by then."""


class _Call:
    """One caller: what it asked, and its answer once there is one."""

    __slots__ = ("after", "answer", "asked", "turn")

    def __init__(self, asked: batch.Prepared) -> None:
        self.asked: Final = asked
        self.answer: port.Appended | BaseException | None = None
        self.after: _Call | None = None  # Whom it wakes; the last wakes the next to write.
        self.turn: Final = threading.Lock()  # Released when there is an answer, or it is to write.
        self.turn.acquire()


class GroupCommit:
    """Appends to one store under one writer's name, from any number of threads."""

    def __init__(self, store: port.Store, *, writer: str) -> None:
        self._store: Final = store
        self._writer: Final = writer
        self._lock: Final = threading.Lock()
        self._waiting: Final[collections.deque[_Call]] = collections.deque()
        self._waiting_records = 0
        self._writing = False

    def append(self, records: Sequence[port.NewRecord], *, gapless: bool = False) -> port.Appended:
        """As `port.Store.append`, unfenced.

        Raises:
            LogOverloadedError: too much waits already; nothing was taken.
        """
        call = _Call(batch.prepare(records, gapless=gapless, above=self._store.above))
        with self._lock:
            wait = self._writing
            if wait:
                self._take_in(call)
            self._writing = True
        if wait:
            call.turn.acquire()
        try:
            if call.answer is None:
                self._write(call)
        finally:
            self._pass_on(call)
        assert call.answer is not None, "a turn is given to answer or to write"
        if isinstance(call.answer, BaseException):
            raise call.answer
        return call.answer

    def _take_in(self, call: _Call) -> None:
        count = len(call.asked.records)
        if self._waiting_records + count > WAITING_MAX:
            raise port.LogOverloadedError(self._waiting_records)
        self._waiting.append(call)
        self._waiting_records += count

    def _write(self, first: _Call) -> None:
        """Write what `first` asked and what waits; line those up that have answers, whatever happens."""
        calls = [first]
        try:
            with self._lock:
                self._gather(calls)
            self._answer(calls)
        finally:
            self._line_up(calls)

    def _gather(self, calls: list[_Call]) -> None:
        count = len(calls[0].asked.records)
        while self._waiting:
            more = len(self._waiting[0].asked.records)
            if count + more > TOGETHER_MAX:
                break
            calls.append(self._waiting.popleft())
            self._waiting_records -= more
            count += more

    def _answer(self, calls: list[_Call]) -> None:
        answers: Sequence[port.Appended | Exception]
        try:
            answers = self._store.append_group([one.asked for one in calls], writer=self._writer)
        except port.LogError as error:
            # Who waits learns it too: else each of them could wait out a time-out of its own.
            with self._lock:
                calls += self._waiting
                self._waiting.clear()
                self._waiting_records = 0
            answers = [error] * len(calls)
        except Exception as error:  # noqa: BLE001  one of them may hold what nobody foresaw
            if len(calls) > 1:
                for one in calls:
                    self._answer([one])
                return
            answers = [error]
        for one, answer in zip(calls, answers, strict=True):
            one.answer = answer

    def _line_up(self, calls: list[_Call]) -> None:
        """Have each caller wake the next one that was answered; take in those again that were not."""
        # Without an answer only if this thread was stopped in the middle. Whether they were written
        # is unknown, and finding out is what asking again does.
        unanswered = [one for one in calls[1:] if one.answer is None]
        with self._lock:
            self._waiting.extendleft(reversed(unanswered))
            self._waiting_records += sum(len(one.asked.records) for one in unanswered)
        before = calls[0]
        for one in calls[1:]:
            if one.answer is not None:
                before.after = one
                before = one

    def _pass_on(self, call: _Call) -> None:
        """Wake the next that was answered; after the last of them, the next that writes."""
        if call.after is not None:
            call.after.turn.release()
            return
        with self._lock:
            if self._waiting:
                following = self._waiting.popleft()
                self._waiting_records -= len(following.asked.records)
                following.turn.release()
            else:
                self._writing = False
