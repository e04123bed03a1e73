"""What one server's log says: the life it is in, what it resolved, how loading went, how it died.

Pure and incremental: lines in, state changed. A life begins with a `server_args=` line. SGLang's
Engine path prints that line twice, the first time before anything is resolved, so the last one
before the ranks initialise is the one that counts. Nothing but the fields of `Life` is kept.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import Final

from smgate_agent import server_args, units

_HEAD: Final = r"[^'\"{}()=<>]{0,160}?"
"""What may stand before a message: a time and a rank, nothing a prompt could be quoted in."""

_ARGS: Final = re.compile(_HEAD + re.escape(server_args.MARKER))
_INIT: Final = re.compile(
    _HEAD + r"(?:Init parallel begin\.|Init torch distributed begin\.|Load weight begin\.)"
)
_LOADED: Final = re.compile(_HEAD + r"Load weight end\.")
_LOADED_TYPE: Final = re.compile(r"\btype=([A-Za-z][A-Za-z0-9_]{0,119}),")
_LOADED_USAGE: Final = re.compile(r"\bmem usage=(\d{1,4}\.\d{1,3}) GB")
_READY: Final = re.compile(
    _HEAD + r"(?:The server is fired up and ready to roll!"
    r"|Dummy health check server started in background thread)"
)
_DIED: Final = re.compile(
    _HEAD + r"(?:Scheduler hit an exception:|Received sigquit from a child process\."
    r"|RuntimeError: Rank \d{1,6} scheduler died during initialization)"
)
_WORDS: Final = ("erver_args=", "Init ", "Load weight", "erver ", "cheduler ", "Received sig")
"""Cheap first look: a line without any of these matches none of the patterns above."""

_TRACEBACK: Final = "Traceback (most recent call last)"
_UPCAST_FRAME: Final = re.compile(
    r"\s{1,16}File \"[^\"]{1,1024}\", line \d{1,9}, in upcast_from_mxfp\b"
)
_ERROR_LINE: Final = re.compile(
    r"[A-Za-z_][A-Za-z0-9_.]{0,199}(?:Error|Exception|Interrupt|Exit)\b"
)
_OUT_OF_MEMORY: Final = re.compile(r"torch\.(?:cuda\.)?OutOfMemoryError: CUDA out of memory\b")
_TRACEBACK_LINES_MAX: Final = 400
"""Longest traceback that is followed; eight ranks may write theirs into each other."""
_RANK: Final = re.compile(r"\[rank(\d{1,5})\]: ?")
"""What torch puts before each line of an exception that nobody caught."""
_RANKS_MAX: Final = 128
"""Tracebacks that are followed at once."""


@dataclass(frozen=True, kw_only=True)
class Life:
    """One start of a server, as its log tells it. `number` counts the starts seen in this log."""

    number: int = 0
    args: server_args.ServerArgs | None = None
    initialised: bool = False
    loaded: bool = False
    architecture: str | None = None
    weight_bytes: int | None = None
    ready: bool = False
    died: bool = False
    upcast_ran_out_of_memory: bool = False
    torn: bool = False
    """Some of the log since was lost: whether it is still this start, the log does not say."""


@dataclass(kw_only=True)
class _Stack:
    """A traceback that has begun, of one rank where its lines say which."""

    lines_left: int = 0
    upcasts: bool = False


class LogReader:
    """Folds lines into the present `Life`."""

    def __init__(self, life: Life | None = None) -> None:
        self.life = life or Life()
        self._stacks: dict[str, _Stack] = {}

    def lose(self) -> None:
        """Some lines were written that never come here."""
        self._stacks.clear()
        if self.life.number:
            self.life = dataclasses.replace(self.life, torn=True)

    def line(self, text: str) -> None:
        """Take one whole line."""
        if any(word in text for word in _WORDS):
            self._message(text)
        rank = _RANK.match(text)
        if rank is None:
            self._traceback("", text)
        else:
            self._traceback(rank.group(1), text[rank.end() :])

    def _message(self, text: str) -> None:
        if _ARGS.match(text):
            self._server_args(text)
        elif _INIT.match(text):
            self.life = dataclasses.replace(self.life, initialised=True)
        elif _LOADED.match(text):
            self._load_ended(text)
        elif _READY.match(text):
            self.life = dataclasses.replace(self.life, ready=True)
        elif _DIED.match(text):
            self.life = dataclasses.replace(self.life, died=True)

    def _server_args(self, text: str) -> None:
        args = server_args.from_log_line(text)
        if args is None:
            return
        life = self.life
        if life.number == 0 or life.initialised or life.died or life.torn:
            self.life = Life(number=life.number + 1, args=args)
            self._stacks.clear()
        else:
            self.life = dataclasses.replace(life, args=args)

    def _load_ended(self, text: str) -> None:
        kind = _LOADED_TYPE.search(text)
        usage = _LOADED_USAGE.search(text)
        seen = self.life.weight_bytes
        weight = units.gib_to_bytes(float(usage.group(1))) if usage else None
        self.life = dataclasses.replace(
            self.life,
            initialised=True,
            loaded=True,
            # A draft model loads after the model it drafts for, and says so in the same words.
            architecture=self.life.architecture or (kind.group(1) if kind else None),
            weight_bytes=max((w for w in (seen, weight) if w is not None), default=None),
        )

    def _traceback(self, rank: str, text: str) -> None:
        stack = self._stacks.get(rank)
        if _TRACEBACK in text:
            # Ranks that die together write into each other: an unfinished stack stays open.
            if stack is None and len(self._stacks) < _RANKS_MAX:
                stack = self._stacks[rank] = _Stack()
            if stack is not None:
                stack.lines_left = _TRACEBACK_LINES_MAX
            return
        if stack is None:
            return
        stack.lines_left -= 1
        if _UPCAST_FRAME.match(text):
            stack.upcasts = True
        elif _ERROR_LINE.match(text):
            if stack.upcasts and _OUT_OF_MEMORY.match(text):
                self.life = dataclasses.replace(self.life, upcast_ran_out_of_memory=True, died=True)
            stack.lines_left = 0
        if stack.lines_left <= 0:
            del self._stacks[rank]
