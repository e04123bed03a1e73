"""The guard beside a server that waits at SGLang's own launch gate, until the gate is open.

SGLang waits there without an end of its own, so nothing may keep this from opening it. Rank 0's
guard is two processes: each learns at once when the other is gone, whatever ended it, and then
opens without comparing anything, the two of them again. What is compared is each rank's (runner,
a2a) pair. Only two pairs that were seen and differ end the launch, once: if that cannot be
remembered, or the launch before was ended for it, the gate is opened and it is said.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import sys
import time
from pathlib import Path
from typing import Any

from smgate_agent.launch import barrier, barrier_rule, guard_start, server, shapes, state, telling

Json = dict[str, Any]

TICK_S = 0.3
READ_BYTES = 1 << 16
LINE_BYTES_MAX = 1 << 20
SEND_S = 1.0
FOLLOW_FACTOR = 2
"""A follower's guard outlives rank 0's time-out, and no more: there it opens nothing."""
BEGUN, ENDED = b"g", b"."
DISAGREED = "unit_disagreed_here"
NO_FLAG = "a rank of it does not wait at SGLang's launch gate"


class Peer:
    """The other end of a connection; it never keeps this one waiting."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.word: Json | None = None
        self._left = b""
        connection.settimeout(SEND_S)

    def take(self) -> list[Json] | None:
        """The objects that came, or None if this is the end of it."""
        try:
            more = self.connection.recv(READ_BYTES)
        except OSError:
            return None
        *lines, self._left = (self._left + more).split(b"\n")
        if not more or len(self._left) > LINE_BYTES_MAX:
            return None
        found = []
        for line in lines:
            with contextlib.suppress(shapes.MalformedError):
                value = shapes.parse(line)
                found += [value] if isinstance(value, dict) else []
        return found

    def say(self, value: Json) -> None:
        """Send it, if it can be sent."""
        with contextlib.suppress(OSError):
            self.connection.sendall(json.dumps(value).encode() + b"\n")


class Guard:
    """What both kinds have: the server, what the launch gate told, and the selector."""

    def __init__(self, told: Json) -> None:
        self.told, self.word = told, told["word"]
        self.unit, self.nnodes = self.word["unit"], self.word["nnodes"]
        self.server = server.Server(
            pid=told["pid"],
            started=told["started"],
            host=told.get("host", ""),
            port=told.get("port", 0),
        )
        self.store = state.Store(Path(told["state_dir"]))
        self.began = time.monotonic()
        self.selector = selectors.DefaultSelector()

    def waited_s(self) -> float:
        """How long this guard has been there."""
        return time.monotonic() - self.began

    def may_end(self, pairs: list[Json]) -> bool:
        """Whether a disagreement may end this launch: once, and only if that can be remembered."""
        kept = {"kernel_key": self.told["kernel_key"], "pairs": pairs, "at_us": _now_us()}
        return not self.word["remembers"] and self.store.save_disagreed(
            self.unit, {"unit": self.unit, **kept}
        )

    def end_launch(self, code: str, why: str) -> None:
        """End this rank's server; SGLang's other ranks do not go on without it."""
        self.conclude(code)
        telling.say(f"ended this launch ({code}: {why})")
        self.server.end()

    def conclude(self, code: str) -> None:
        """Leave word of how it ended."""
        kept = {"launch_id": self.word["launch_id"], "unit": self.unit, "outcome": code}
        waited_ms = int(self.waited_s() * 1_000)
        self.store.save_barrier(
            self.word["launch_id"], {**kept, "waited_ms": waited_ms, "at_us": _now_us()}
        )


class First(Guard):
    """Rank 0's. `twin` is readable when the other process of the pair is gone."""

    def __init__(self, told: Json, twin: int) -> None:
        super().__init__(told)
        self.listener = socket.socket(fileno=told["sockets"]["listener"])
        self.listener.settimeout(SEND_S)
        self.selector.register(self.listener, selectors.EVENT_READ)
        self.selector.register(twin, selectors.EVENT_READ)
        self.peers: list[Peer] = []
        self.opens: str | None = None
        """Why the gate is to be opened now."""

    def run(self) -> None:
        """Until the gate is open or the server is gone."""
        while self.server.is_there():
            for key, _ in self.selector.select(TICK_S):
                if isinstance(key.data, Peer):
                    self._take(key.data)
                elif key.fileobj is self.listener:
                    self._accept()
                else:
                    telling.say("one of the two guards is gone (guard_died): opening the gate")
                    open_in_two(self)
                    return
            # Compared anew until it is open: a rank may die after it agreed, and come back otherwise.
            if self._is_ended():
                return
            is_late = self.waited_s() > self.told["timeout_s"]
            code = self.opens or ("gate_timeout" if is_late else None)
            if code is not None and self.server.open_gate():
                self._opened(code)
                return

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            connection, _ = self.listener.accept()
            peer = Peer(connection)
            self.peers.append(peer)
            self.selector.register(connection, selectors.EVENT_READ, peer)

    def _take(self, peer: Peer) -> None:
        came = peer.take()
        for word in came or ():
            if barrier_rule.is_word(word, self.unit, self.nnodes):
                peer.word = word
                peer.say({"gated": True})
        if came is None:
            self.selector.unregister(peer.connection)
            peer.connection.close()
            self.peers.remove(peer)

    def _is_ended(self) -> bool:
        """Compare what is known; whether the launch was ended."""
        words = [peer.word for peer in self.peers if peer.word is not None]
        if any(not word["flagged"] and not word["able"] for word in words):
            # A rank that starts without the flag, now, while this one waits for it: all would hang.
            self.end_launch("flags_differ", NO_FLAG)
            return True
        flagged = [self.word, *(word for word in words if word["flagged"])]
        pairs = [(word["rank"], word["pair"]) for word in flagged]
        said = barrier_rule.compare(pairs, self.nnodes)
        self.opens = "pairs_agree" if said == barrier_rule.AGREE else None
        if said == barrier_rule.DISAGREE:
            differ = [pair for _, pair in pairs if pair is not None]
            # One rank that remembers is enough: another's folder may have gone with its container.
            ended_before = any(word["remembers"] for word in words)
            if not ended_before and self.may_end(differ):
                self._tell({"outcome": DISAGREED, "pairs": differ})
                self.end_launch(DISAGREED, _said(differ))
                return True
            self.opens = "disagreed_again"
        return False

    def _opened(self, code: str) -> None:
        self._tell({"outcome": code})
        self.conclude(code)
        known = sorted({peer.word["rank"] for peer in self.peers if peer.word is not None})
        if code != "pairs_agree":
            telling.say(f"opened SGLang's launch gate ({code}; heard of ranks {[0, *known]})")

    def _tell(self, what: Json) -> None:
        for peer in self.peers:
            peer.say(what)


class Follower(Guard):
    """Another rank's: it says which pair this rank has, and ends its server if it is to."""

    def run(self) -> None:
        """Until rank 0 has said how it ended, or the server is gone."""
        while self.server.is_there() and self.waited_s() < FOLLOW_FACTOR * self.told["timeout_s"]:
            there = barrier.connect(self.told["rendezvous"])
            if isinstance(there, socket.socket):
                with there:
                    if self._is_over(Peer(there)):
                        return
            time.sleep(TICK_S)

    def _is_over(self, peer: Peer) -> bool:
        peer.say(self.word)
        with selectors.DefaultSelector() as selector:
            selector.register(peer.connection, selectors.EVENT_READ)
            while self.server.is_there():
                if not selector.select(TICK_S):
                    continue
                came = peer.take()
                if came is None:
                    return False
                for heard in came:
                    if heard.get("still_there") is True:
                        peer.say({"still_there": True})
                    elif shapes.fits(shapes.CODE, heard.get("outcome")):
                        self._conclude(heard)
                        return True
        return True

    def _conclude(self, heard: Json) -> None:
        code, pairs = heard["outcome"], heard.get("pairs")
        if code == "flags_differ":
            self.end_launch(code, NO_FLAG)
        elif code == DISAGREED and isinstance(pairs, list):
            said = [barrier_rule.pair_of(pair) for pair in pairs if isinstance(pair, dict)]
            ranked = list(enumerate([self.word["pair"], *said]))
            differ = [pair for _, pair in ranked if pair is not None]
            found = barrier_rule.compare(ranked, len(ranked))
            if found == barrier_rule.DISAGREE and self.may_end(differ):
                self.end_launch(code, _said(differ))


def open_in_two(guard: Guard) -> None:
    """Open the gate, with nothing compared, by two processes: either may be killed, any time."""
    parent, child = os.getpid(), _fork()
    while guard.server.is_there():
        if guard.server.open_gate():
            guard.conclude("guard_died")
            return
        time.sleep(TICK_S)
        if child == 0:
            is_alone = os.getppid() != parent
        else:
            is_alone = child is None or os.waitpid(child, os.WNOHANG) != (0, 0)
        if is_alone:
            parent, child = os.getpid(), _fork()


def _fork() -> int | None:
    try:
        return os.fork()
    except OSError:
        return None


def main() -> None:
    """What `guard_start` runs. Never returns."""
    told = json.loads(sys.stdin.buffer.readline())
    if os.fork() != 0:
        os._exit(0)  # so the guard is no child of what the launch gate becomes
    try:
        if told["word"]["rank"] == 0:
            _as_two(told)
        elif _is_let_go():
            Follower(told).run()
    finally:
        os._exit(0)


def _as_two(told: Json) -> None:
    from_first, to_second = os.pipe()
    from_second, to_first = os.pipe()
    if os.fork() == 0:
        os.close(from_first)
        os.close(to_first)
        if _is_let_go():
            os.write(to_second, BEGUN)
            First(told, from_second).run()
        os.write(to_second, ENDED)
        return
    os.close(to_second)
    os.close(from_second)
    for one in told["sockets"].values():
        os.close(one)
    _no_standard_input_and_output()
    if os.read(from_first, 1) == BEGUN and os.read(from_first, 1) != ENDED:
        telling.say("one of the two guards is gone (guard_died): opening the gate")
        open_in_two(Guard(told))


def _is_let_go() -> bool:
    """Say that this is there, and wait for the word: without it there is nothing to guard."""
    os.write(sys.stdout.fileno(), guard_start.READY)
    word = sys.stdin.buffer.readline()
    _no_standard_input_and_output()
    return word == guard_start.GO


def _no_standard_input_and_output() -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (sys.stdin.fileno(), sys.stdout.fileno()):
        os.dup2(nothing, descriptor)
    os.close(nothing)


def _now_us() -> int:
    return time.time_ns() // 1_000


def _said(pairs: list[Json]) -> str:
    return " / ".join(sorted({f"{pair['runner']}, {pair['a2a']}" for pair in pairs}))
