"""Where the ranks of one server meet without the controller: rank 0's gate, before SGLang is there.

It listens at a fixed distance from the rendezvous port, where SGLang has no port of its own. Each
rank sends its report; when all are in, rank 0 asks each whether it is still there, and only then
tells all what they agreed on. So a network that parted in between ends in the safe value on both
sides, but for the one message that tells the outcome. A rank that has the controller's decision
brings it along, signed. Who can reach this port can part a unit, as they could by SGLang's own
ports; a target that a rank neither holds nor has proof of it never takes.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from smgate_agent.launch import ranks_rule, shapes

Json = dict[str, Any]

PORT_DISTANCE = 1117
"""SGLang takes the ports just above the rendezvous, one per data-parallel rank."""
PORT_MAX = 65535
LINE_BYTES_MAX = 1 << 20
ANSWER_S = 1.0
CONNECT_S = 2.0
PAUSE_S = 0.25
SETTLE_S = 3 * PAUSE_S
"""So long another launch of this unit, if there is one at the same time, has to be heard too."""
CONNECTIONS_MAX = 256


def address_of(rendezvous: str, distance: int = PORT_DISTANCE) -> tuple[str, int]:
    """Where rank 0's gate is met."""
    host, _, port = rendezvous.rpartition(":")
    wanted = int(port) + distance
    return host, wanted if wanted <= PORT_MAX else int(port) - distance


class Line:
    """A connection that carries one JSON object per line."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._left = b""

    def send(self, value: Json, *, timeout_s: float) -> bool:
        """Whether it went out."""
        try:
            self._connection.settimeout(max(0.01, timeout_s))
            self._connection.sendall(json.dumps(value).encode() + b"\n")
        except OSError:
            return False
        return True

    def receive(self, *, until: float) -> Json | None:
        """The next object; None if there is none by then, or it is none."""
        while b"\n" not in self._left:
            left = until - time.monotonic()
            if left <= 0 or len(self._left) > LINE_BYTES_MAX:
                return None
            try:
                self._connection.settimeout(left)
                more = self._connection.recv(4096)
            except OSError:
                return None
            if not more:
                return None
            self._left += more
        line, _, self._left = self._left.partition(b"\n")
        try:
            value = shapes.parse(line)
        except shapes.MalformedError:
            return None
        return value if isinstance(value, dict) else None

    def close(self) -> None:
        """Hang up."""
        with contextlib.suppress(OSError):
            self._connection.close()


@dataclass
class Meeting:
    """Rank 0's side. Late comers are told what was agreed for as long as this process listens."""

    unit: str
    nnodes: int
    _listener: socket.socket
    _came: dict[int, list[tuple[Json, Line]]] = field(default_factory=dict)
    _proofs: list[Json] = field(default_factory=list)
    _told: Json | None = None
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def wait(self, *, until: float) -> list[Json]:
        """Until all other ranks have come, or one brings the controller's decision: such proofs."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._proofs or len(self._came) >= self.nnodes - 1,
                timeout=max(0.0, until - time.monotonic()),
            )
            return list(self._proofs)

    def agree(self, own: Json) -> Json:
        """Settle on one value with those who came and are still there, and tell them."""
        time.sleep(SETTLE_S)
        there = [one for one, line in self._all() if is_there(line)]
        # A rank that is there twice belongs to two launches of this unit: which one is not known.
        complete = sorted(one["rank"] for one in there) == list(range(1, self.nnodes))
        agreed = ranks_rule.agree([own, *there], complete=complete)
        self.tell(agreed)
        return agreed

    def tell(self, agreed: Json, proof: Json | None = None) -> None:
        """Tell all who came, and all who still come, what holds for this launch.

        `proof` is the controller's signed decision, where there is one.
        """
        told = {"agreed": agreed, "proof": proof}
        with self._changed:
            self._told = told
        for _, line in self._all():
            line.send(told, timeout_s=ANSWER_S)

    def _all(self) -> list[tuple[Json, Line]]:
        with self._changed:
            return [one for came in self._came.values() for one in came]

    def serve(self) -> None:
        """Take in those who come."""
        for _ in range(CONNECTIONS_MAX):
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._meet, args=(Line(connection),), daemon=True).start()

    def _meet(self, line: Line) -> None:
        report = line.receive(until=time.monotonic() + CONNECT_S)
        if report is None or not ranks_rule.is_report(report) or not self._is_one_of_us(report):
            line.close()
            return
        with self._changed:
            # A rank that was told already is another launch's, when it comes again.
            told = None if report["rank"] in self._came else self._told
            if self._told is None:
                self._came.setdefault(report["rank"], []).append((report, line))
                if isinstance(report.get("proof"), dict):
                    self._proofs.append(report["proof"])
                self._changed.notify_all()
        if told is not None:
            line.send(told, timeout_s=ANSWER_S)

    def _is_one_of_us(self, report: Json) -> bool:
        return bool(
            report["unit"] == self.unit
            and report["nnodes"] == self.nnodes
            and 0 < report["rank"] < self.nnodes
        )


def is_there(line: Line) -> bool:
    """Whether whoever is at the other end answers."""
    if not line.send({"still_there": True}, timeout_s=ANSWER_S):
        return False
    return line.receive(until=time.monotonic() + ANSWER_S) == {"still_there": True}


def open_meeting(rendezvous: str, unit: str, nnodes: int) -> Meeting | None:
    """Listen as rank 0; None where another launch of this unit listens already."""
    listener = listen(rendezvous, nnodes)
    if listener is None:
        return None
    meeting = Meeting(unit=unit, nnodes=nnodes, _listener=listener)
    threading.Thread(target=meeting.serve, daemon=True).start()
    return meeting


def listen(rendezvous: str, backlog: int, distance: int = PORT_DISTANCE) -> socket.socket | None:
    """Rank 0's socket, for both kinds of address where the machine has both; None if it is taken."""
    _, port = address_of(rendezvous, distance)
    try:
        return socket.create_server(
            ("", port), backlog=backlog, family=socket.AF_INET6, dualstack_ipv6=True
        )
    except (OSError, ValueError, OverflowError):
        try:
            return socket.create_server(("", port), backlog=backlog)
        except (OSError, OverflowError):
            return None


def ask(rendezvous: str, own: Json, *, until: float) -> Json | None:
    """What rank 0 says, {"agreed", "proof"}, as another rank; None if it was not heard by then.

    It may not have started yet, so this is tried again. Once it has heard the report it is waited
    for, because it waits for others.
    """
    while (left := until - time.monotonic()) > 0:
        try:
            connection = socket.create_connection(
                address_of(rendezvous), timeout=min(CONNECT_S, left)
            )
        except (OSError, ValueError, OverflowError):
            time.sleep(min(PAUSE_S, left))
            continue
        line = Line(connection)
        told = _hear(line, own, until)
        line.close()
        if told is not None:
            return told
        time.sleep(PAUSE_S)
    return None


def _hear(line: Line, own: Json, until: float) -> Json | None:
    if not line.send(own, timeout_s=ANSWER_S):
        return None
    while (heard := line.receive(until=until)) is not None:
        if ranks_rule.is_agreed(heard.get("agreed")):
            return heard
        line.send({"still_there": True}, timeout_s=ANSWER_S)
    return None
