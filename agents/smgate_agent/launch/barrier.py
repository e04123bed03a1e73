"""Whether the ranks of this launch wait at SGLang's own launch gate: all of them, or none.

Asked for with `--barrier`, before the command starts. Rank 0 decides, when every rank has said that
it can, and hears them once more before. From the moment a rank has answered to that it may have been
counted, so it does not start before it has heard what was decided, or that rank 0 is gone. What
rank 0's server was started with is the truth for every rank that comes later: its guard, which
stays beside it until the gate is open (`guard.py`), tells them.
"""

from __future__ import annotations

import socket
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from smgate_agent.launch import barrier_rule, guard_start, ranks

if TYPE_CHECKING:
    from collections.abc import Callable

Json = dict[str, Any]

PORT_DISTANCE = ranks.PORT_DISTANCE + 1
WORD_S = 2.0
GONE_S = 3.0
"""So long nobody must listen at rank 0 before it counts as gone, to a rank that may be counted."""
WIND_UP_S = 30.0
"""For what is begun: a guard to be there, and the others to be told."""
OPEN, COUNTED, CLOSED = "open", "counted", "closed"


@dataclass(frozen=True)
class Rank:
    """This rank, as the others see it, and what its guard has to know."""

    word: Json
    rendezvous: str
    hindrance: str | None
    """Why it cannot wait at SGLang's gate."""
    door: str | None
    """The address at which rank 0's SGLang listens for the word to go on."""
    told: Json
    """What its guard is told."""

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0."""
        return bool(self.word["rank"] == 0)


@dataclass
class Barrier:
    """One attempt. The work is done in a thread; `wait` gives up on it, but not when it counts."""

    read: Callable[[], Rank]
    """Asks SGLang what this rank is, which takes its time."""
    timeout_s: float
    until: float
    code: str = "ranks_missing"
    flags: tuple[str, ...] = ()
    _state: str = OPEN
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _done: threading.Event = field(default_factory=threading.Event)

    def wait(self) -> tuple[str, ...]:
        """What the command is given more; nothing where the ranks did not agree to wait.

        Takes until `until`, and where this rank may have been counted until rank 0 was heard, but
        not longer than the gate's own time-out.
        """
        threading.Thread(target=self._work, daemon=True).start()
        self._done.wait(max(0.0, self.until - time.monotonic()))
        if not self._move(OPEN, CLOSED):
            self._done.wait(max(0.0, self._patient_until() + WIND_UP_S - time.monotonic()))
        with self._lock:
            self._state = CLOSED
            return self.flags

    def _patient_until(self) -> float:
        """Until when rank 0 is waited for: longer where this rank may have been counted."""
        return self.until + (self.timeout_s if self._state == COUNTED else 0.0)

    def _move(self, before: str, after: str) -> bool:
        with self._lock:
            if self._state != before:
                return False
            self._state = after
            return True

    def _work(self) -> None:
        try:
            rank = self.read()
            if rank.is_first:
                self._lead(rank)
            else:
                self._follow(rank)
        except Exception as exc:
            self.code = f"barrier_error_{type(exc).__name__.lower()}"
        finally:
            self._done.set()

    # Rank 0

    def _lead(self, rank: Rank) -> None:
        listener = self._listen(rank)
        if listener is None:
            return
        with listener:
            came = self._gather(rank, listener)
            try:
                self._decide(rank, listener, came)
            finally:
                for _, line in came:
                    line.close()

    def _listen(self, rank: Rank) -> socket.socket | None:
        """Listen, as soon as no other launch of this unit does: its guards outlive it a moment."""
        while time.monotonic() < self.until:
            listener = ranks.listen(rank.rendezvous, rank.word["nnodes"], PORT_DISTANCE)
            if listener is not None:
                return listener
            self.code = "another_launch_is_here"
            time.sleep(ranks.PAUSE_S)
        return None

    def _gather(self, rank: Rank, listener: socket.socket) -> list[tuple[Json, ranks.Line]]:
        """Those who came, until all are here or the time is up."""
        own, came, until = rank.word, [], self.until
        while (left := until - time.monotonic()) > 0:
            listener.settimeout(left)
            try:
                connection, _ = listener.accept()
            except OSError:
                continue
            line = ranks.Line(connection)
            word = line.receive(until=time.monotonic() + WORD_S)
            if word is None or not barrier_rule.is_word(word, own["unit"], own["nnodes"]):
                line.close()
                continue
            came.append((word, line))
            if {word["rank"] for word, _ in came} >= set(range(1, own["nnodes"])):
                # One rank may come twice, from two launches: the second has to be heard too.
                until = min(self.until, time.monotonic() + ranks.SETTLE_S)
        return came

    def _decide(
        self, rank: Rank, listener: socket.socket, came: list[tuple[Json, ranks.Line]]
    ) -> None:
        own = rank.word
        here = [word for word, line in came if ranks.is_there(line)]
        able, numbers = barrier_rule.who([own, *here])
        if numbers != list(range(own["nnodes"])):
            self.code = "ranks_missing"
        elif not able:
            self.code = rank.hindrance or "another_rank_cannot"
        elif self._move(OPEN, COUNTED):
            self._commit(rank, listener)
        for word, line in came:
            told: Json = {"gated": bool(self.flags)}
            if word["flagged"] and not self.flags:
                told = {"outcome": "flags_differ"}
            line.send(told, timeout_s=ranks.ANSWER_S)

    def _commit(self, rank: Rank, listener: socket.socket) -> None:
        """Take a port, leave a guard, and only then have the flag."""
        host = str(rank.door)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as held:
            # Bound and not listening: the port is nobody else's, and SGLang can still have it,
            # since it sets the same option. If it could not, it would wait for ever and not say so.
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.bind((host, 0))
            port = held.getsockname()[1]
            there = {"host": barrier_rule.ANY_HOST.get(host, host), "port": port}
            guard = guard_start.start({**rank.told, **there}, {"listener": listener, "held": held})
            self.code = "no_guard"
            if guard is not None and not self._take(str(port), guard):
                guard.cancel()

    def _take(self, port: str, guard: guard_start.Started | None) -> bool:
        """Have the flag, unless this was given up meanwhile."""
        with self._lock:
            if self._state == CLOSED or (guard is not None and not guard.go()):
                return False
            self._state, self.code = COUNTED, "ranks_wait"
            self.flags = (barrier_rule.FLAG, port)
            return True

    # The others

    def _follow(self, rank: Rank) -> None:
        refused_since: float | None = None
        while self._state != CLOSED and time.monotonic() < self._patient_until():
            there = connect(rank.rendezvous)
            if isinstance(there, socket.socket):
                line, refused_since = ranks.Line(there), None
                gated = self._hear(line, rank.word)
                line.close()
                if gated is not None:
                    self._be_told(rank, gated=gated)
                    return
            elif there is None or refused_since is None:
                refused_since = None if there is None else time.monotonic()
            elif self._state == COUNTED and time.monotonic() > refused_since + GONE_S:
                # Its guards are there for as long as its server waits: so that is gone as well.
                self.code = "rank_0_gone"
                return
            time.sleep(ranks.PAUSE_S)

    def _hear(self, line: ranks.Line, word: Json) -> bool | None:
        if not line.send(word, timeout_s=ranks.ANSWER_S):
            return None
        while (heard := line.receive(until=self._patient_until())) is not None:
            if heard.get("gated") in (True, False):
                return bool(heard["gated"])
            if heard.get("still_there") is not True:
                continue
            if self._state != COUNTED and not self._move(OPEN, COUNTED):
                return None  # given up, so not there
            line.send({"still_there": True}, timeout_s=ranks.ANSWER_S)
        return None

    def _be_told(self, rank: Rank, *, gated: bool) -> None:
        if not gated or rank.hindrance is not None:
            self.code = rank.hindrance or "not_all_ranks_can"
            return
        # Rank 0 alone listens at its port: on the others SGLang looks only whether there is one.
        guard = guard_start.start(rank.told, {})
        if not self._take(str(barrier_rule.PORT_TRIED), guard) and guard is not None:
            self._take(str(barrier_rule.PORT_TRIED), None)


def connect(rendezvous: str) -> socket.socket | ConnectionRefusedError | None:
    """A connection to rank 0; the error where its machine says that nobody listens; else None."""
    try:
        address = ranks.address_of(rendezvous, PORT_DISTANCE)
        return socket.create_connection(address, timeout=ranks.CONNECT_S)
    except ConnectionRefusedError as exc:
        return exc
    except (OSError, ValueError, OverflowError):
        return None
