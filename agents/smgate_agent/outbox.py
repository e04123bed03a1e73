"""Facts on their way to the controller, durable before anything is sent.

A fact gets the next sequence number in the transaction that stores it, so the stream has no gap;
the controller acknowledges a contiguous prefix, which is kept seven days more in case a restored
controller lacks it. The same transaction remembers what was reported last under a key, so that a
fact is written only when it changed. What could not be kept is counted, and said by a
`gap_noticed` fact as soon as facts can be kept again.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from smgate.wire import base, facts
from smgate_agent import clock, outbox_file

KEEP_ACKNOWLEDGED_S: Final = 7 * 86400
BATCH_BYTES_MAX: Final = base.BODY_BYTES_MAX * 3 // 4
"""Facts of one batch, encoded; the frame around them is small."""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """The outbox in numbers."""

    outbox_id: str
    depth: int
    next_sequence: int
    acknowledged_through: int
    last_acknowledged_at_us: int | None
    dropped: int
    gap_open: bool


class Outbox:
    """The file and the lock around it; used by every thread of the agent."""

    def __init__(
        self,
        path: Path,
        *,
        clock_: clock.Clock,
        new_id: Callable[[], str],
        bytes_max: int = 256 << 20,
    ) -> None:
        self._clock = clock_
        self._new_id = new_id
        self._lock = threading.RLock()
        self._file = outbox_file.OutboxFile(
            path, clock_=clock_, begin=self._begin, bytes_max=bytes_max
        )
        self.appended = threading.Event()
        """Set when there is something to send; whoever sends clears it."""
        self._dropped = 0
        self._dropped_unsaid = False

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._file.close()

    def append(self, payload: facts.Payload) -> bool:
        """Store a fact durably; False if there was no room for it."""
        return self._store(payload, key=None, salt="")

    def report(self, key: str, payload: facts.Payload, *, salt: str = "") -> bool:
        """Store a fact if it differs from the last one under this key, or the salt does."""
        return self._store(payload, key=key, salt=salt)

    def last_reported(self, key: str) -> facts.Payload | None:
        """The last payload reported under this key."""
        row = self._read(
            lambda db: db.execute("SELECT payload FROM reported WHERE key = ?", (key,)).fetchone()
        )
        try:
            return None if row is None else _decode(row[0])
        except msgspec.MsgspecError:
            return None  # written by an agent that knew other facts: as good as never said

    def pending(self, *, limit: int = base.BATCH_FACTS_MAX) -> tuple[str, tuple[facts.Fact, ...]]:
        """Outbox id and the facts to send next: the first not acknowledged, in order."""

        def read(db: sqlite3.Connection) -> tuple[str, list[tuple[int, int, bytes]]]:
            rows = db.execute(
                "SELECT sequence, occurred_at_us, payload FROM fact "
                "WHERE sequence > ? ORDER BY sequence LIMIT ?",
                (_number(db, "acknowledged_through"), limit),
            )
            return _required(db, "outbox_id"), rows.fetchall()

        found = self._read(read)
        if found is None:
            return outbox_file.UNKNOWN_OUTBOX, ()
        outbox_id, rows = found
        batch: list[facts.Fact] = []
        size = 0
        for sequence, occurred_at_us, payload in rows:
            size += len(payload)
            if batch and size > BATCH_BYTES_MAX:
                break
            try:
                known = _decode(payload)
            except msgspec.MsgspecError:
                self.renew(without=sequence)  # another version's fact cannot be sent, nor skipped
                return self.pending(limit=limit)
            fact = facts.Fact(sequence=sequence, occurred_at_us=occurred_at_us, payload=known)
            batch.append(fact)
        return outbox_id, tuple(batch)

    def acknowledge(self, *, outbox_id: str, through: int) -> None:
        """Everything up to `through` is durable elsewhere; what was so for seven days goes."""
        with self._lock:
            try:
                self._file.transact(lambda db: self._acknowledge(db, outbox_id, through, keep=True))
            except outbox_file.UnavailableError:
                # No room even to note the time: what the controller has is what can go.
                self._read(lambda db: self._acknowledge(db, outbox_id, through, keep=False))

    def _acknowledge(
        self, db: sqlite3.Connection, outbox_id: str, through: int, *, keep: bool
    ) -> None:
        if outbox_id != _required(db, "outbox_id"):
            return  # an answer to an outbox that has been left behind
        reached = min(through, _number(db, "next_sequence") - 1)
        if reached <= _number(db, "acknowledged_through"):
            return
        now_us = self._clock.now_us()
        if keep:
            db.execute(
                "UPDATE fact SET acknowledged_at_us = ? "
                "WHERE sequence <= ? AND acknowledged_at_us IS NULL",
                (now_us, reached),
            )
            oldest_us = now_us - KEEP_ACKNOWLEDGED_S * 1_000_000
            db.execute("DELETE FROM fact WHERE acknowledged_at_us < ?", (oldest_us,))
        else:
            db.execute("DELETE FROM fact WHERE sequence <= ?", (reached,))
        _set(db, "acknowledged_through", reached)
        _set(db, "last_acknowledged_at_us", now_us)

    def rewind(self) -> bool:
        """Send again everything that is kept; True if that is more than was pending."""

        def write(db: sqlite3.Connection) -> bool:
            (first,) = db.execute("SELECT min(sequence) FROM fact").fetchone()
            if first is None or first > _number(db, "acknowledged_through"):
                return False
            _set(db, "acknowledged_through", first - 1)
            return True

        rewound = bool(self._read(write))
        if rewound:
            self.appended.set()
        return rewound

    def renew(self, *, without: int | None = None) -> None:
        """Begin a new outbox: the controller cannot continue this one.

        Facts that were not acknowledged move over; `without` is one that the controller refuses.
        """

        def write(db: sqlite3.Connection) -> str:
            rows = db.execute(
                "SELECT occurred_at_us, payload FROM fact "
                "WHERE sequence > ? AND sequence IS NOT ? ORDER BY sequence",
                (_number(db, "acknowledged_through"), without),
            ).fetchall()
            lost = _required(db, "outbox_id")
            db.execute("DELETE FROM fact")
            db.execute("DELETE FROM reported")  # what is said again closes the gap
            db.execute("DELETE FROM meta")
            outbox_id = self._begin(db, lost)
            for occurred_at_us, payload in rows:
                _insert(db, payload, occurred_at_us)
            return outbox_id

        outbox_id = self._read(write)
        if outbox_id is not None:
            self._file.remember_id(outbox_id)
            self._dropped += without is not None
        self.appended.set()

    def close_gap(self) -> None:
        """A full report followed the gap: say so, once."""

        def write(db: sqlite3.Connection) -> None:
            lost = _meta(db, "lost_outbox_id")
            if lost is not None:
                closed = facts.GapNoticed(lost_outbox_id=lost, closed=True)
                _insert(db, base.encode(closed), self._clock.now_us())
                db.execute("DELETE FROM meta WHERE key = 'lost_outbox_id'")

        self._read(write)
        self.appended.set()

    def standing(self) -> Standing:
        """The outbox in numbers; what cannot be read is shown as an open gap."""

        def read(db: sqlite3.Connection) -> Standing:
            following = _number(db, "next_sequence")
            acknowledged = _number(db, "acknowledged_through")
            last = _meta(db, "last_acknowledged_at_us")
            return Standing(
                outbox_id=_required(db, "outbox_id"),
                depth=following - 1 - acknowledged,
                next_sequence=following,
                acknowledged_through=acknowledged,
                last_acknowledged_at_us=None if last is None else int(last),
                dropped=self._dropped,
                gap_open=self._dropped_unsaid or _meta(db, "lost_outbox_id") is not None,
            )

        return self._read(read) or Standing(
            outbox_id=outbox_file.UNKNOWN_OUTBOX,
            depth=0,
            next_sequence=1,
            acknowledged_through=0,
            last_acknowledged_at_us=None,
            dropped=self._dropped,
            gap_open=True,
        )

    def _store(self, payload: facts.Payload, *, key: str | None, salt: str) -> bool:
        body = base.encode(payload)

        def write(db: sqlite3.Connection) -> bool:
            if self._dropped_unsaid:
                self._say_dropped(db)
            if key is not None:
                row = db.execute(
                    "SELECT salt, payload FROM reported WHERE key = ?", (key,)
                ).fetchone()
                if row == (salt, body):
                    return False
                db.execute("REPLACE INTO reported VALUES (?, ?, ?)", (key, salt, body))
            _insert(db, body, self._clock.now_us())
            return True

        with self._lock:
            try:
                stored = self._with_room(write)
            except outbox_file.UnavailableError:
                self._dropped += 1
                self._dropped_unsaid = True
                return False
            self._dropped_unsaid = False
        if stored:
            self.appended.set()
        return stored

    def _with_room(self, write: Callable[[sqlite3.Connection], bool]) -> bool:
        try:
            return self._file.transact(write)
        except outbox_file.UnavailableError:
            # Facts the controller already has are kept for its sake; new ones come first.
            self._file.transact(
                lambda db: db.execute("DELETE FROM fact WHERE acknowledged_at_us IS NOT NULL")
            )
            return self._file.transact(write)

    def _say_dropped(self, db: sqlite3.Connection) -> None:
        """Facts found no room: say it, and forget what was reported, so that all is said again."""
        outbox_id = _required(db, "outbox_id")
        _insert(db, base.encode(facts.GapNoticed(lost_outbox_id=outbox_id)), self._clock.now_us())
        db.execute("DELETE FROM reported")
        _set(db, "lost_outbox_id", outbox_id)

    def _begin(self, db: sqlite3.Connection, lost_outbox_id: str | None) -> str:
        outbox_id = self._new_id()
        _set(db, "outbox_id", outbox_id)
        _set(db, "next_sequence", 1)
        _set(db, "acknowledged_through", 0)
        if lost_outbox_id is not None:
            _set(db, "lost_outbox_id", lost_outbox_id)
            gap = facts.GapNoticed(lost_outbox_id=lost_outbox_id)
            _insert(db, base.encode(gap), self._clock.now_us())
        return outbox_id

    def _read(self, action: Callable[[sqlite3.Connection], outbox_file.T]) -> outbox_file.T | None:
        """Run an action that may be left out while the file is unavailable."""
        with self._lock:
            try:
                return self._file.transact(action)
            except outbox_file.UnavailableError:
                return None


def _decode(payload: object) -> facts.Payload:
    if not isinstance(payload, bytes):
        raise msgspec.ValidationError("not bytes")  # SQLite stores any type in any column
    return msgspec.json.decode(payload, type=facts.Payload)


def _insert(db: sqlite3.Connection, payload: bytes, occurred_at_us: int) -> None:
    sequence = _number(db, "next_sequence")
    # A clock from before 1970 would make a fact that nobody takes.
    db.execute(
        "INSERT INTO fact (sequence, occurred_at_us, payload) VALUES (?, ?, ?)",
        (sequence, max(0, occurred_at_us), payload),
    )
    _set(db, "next_sequence", sequence + 1)


def _meta(db: sqlite3.Connection, key: str) -> str | None:
    row = db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return None if row is None else str(row[0])


def _required(db: sqlite3.Connection, key: str) -> str:
    value = _meta(db, key)
    if value is None:
        raise sqlite3.DatabaseError(f"the outbox lost its {key}")
    return value


def _number(db: sqlite3.Connection, key: str) -> int:
    value = _required(db, key)
    if not value.isdigit():
        raise sqlite3.DatabaseError(f"the outbox has no usable {key}")
    return int(value)


def _set(db: sqlite3.Connection, key: str, value: int | str) -> None:
    db.execute("REPLACE INTO meta VALUES (?, ?)", (key, str(value)))
