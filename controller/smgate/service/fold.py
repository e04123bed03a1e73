"""Owns the fleet at the head of the log: one fold per process, shared, and folds of earlier moments."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Callable, Iterator
from typing import Final

from smgate.clock import Clock
from smgate.domain import evolve
from smgate.domain.state import Fleet
from smgate.log import archived, codec, port
from smgate.service import book, lost, openings, snapshots

PAGE = 1_000
COLD: Final = 20_000
"""Events behind from which on a fold is a cold one, and the cycle collector is kept out of it."""

KEEP_AGAIN_US: Final = 300_000_000
"""How long after a snapshot that could not be kept another is tried: each stops the fold for a moment."""

OnTopics = Callable[[set[str]], None]


class Folder:
    """Tails the log. The fleet belongs to the folder: look at it only inside `at_head` or `now`."""

    def __init__(
        self,
        store: port.Store,
        *,
        on_topics: OnTopics = lambda _topics: None,
        cold: int = COLD,
    ) -> None:
        self._store: Final = store
        self._cold: Final = cold
        self._on_topics: Final = on_topics
        self._lock: Final = threading.RLock()
        self._head: port.Head | None = None
        self._witness: port.Head | None = None
        self._fleet = Fleet()
        self._book = book.Book()
        self._kept_position = 0
        self._keep_again_us = 0
        self.snapshot_failures = 0

    @property
    def position(self) -> int:
        """Position of the newest event folded."""
        return self._fleet.position

    @property
    def incarnation(self) -> str:
        """Which log this is; empty before the first look."""
        return "" if self._head is None else self._head.incarnation

    @property
    def book(self) -> book.Book:
        """What nodes are to be told. Only `generation` may be read outside the lock."""
        return self._book

    def reset(self) -> None:
        """Forget what is folded; the next look folds from the first event.

        What is not forgotten is how far this log had come: a `LogLostError` is told until another begins.
        """
        with self._lock:
            self._head, self._fleet, self._book = None, Fleet(), book.Book()
            self._kept_position = 0

    def keep(self, *, clock: Clock, least: int | None = None) -> bool:
        """Keep a snapshot of what is folded, if one is due; True if it was.

        Args:
            clock: when it is.
            least: events since the last one that are enough; as `snapshots.due` says if None.
        """
        with self._lock:
            head, since = self._head, self._kept_position
            if head is None or self._fleet.position <= since:
                return False
            if not snapshots.due(self._fleet, since, least=least):
                return False
            # A clock that was set back ends the pause.
            if least is None and 0 < self._keep_again_us - clock.now_us() <= KEEP_AGAIN_US:
                return False
            with _uncollected(stays=False):
                folded = snapshots.Folded(self._fleet, self._book)
                walked = snapshots.state_codec().walk(folded)
            self._kept_position = head.position
        try:
            snapshots.keep(self._store, head, walked, clock=clock)
        except Exception:
            self.snapshot_failures += 1
            self._keep_again_us = clock.now_us() + KEEP_AGAIN_US
            with self._lock:
                if self._kept_position == head.position:
                    self._kept_position = since
            raise
        return True

    @contextlib.contextmanager
    def at_head(self) -> Iterator[Fleet]:
        """The fleet, caught up, and nobody changes it meanwhile."""
        with self._lock:
            self.catch_up()
            yield self._fleet

    @contextlib.contextmanager
    def now(self) -> Iterator[Fleet]:
        """The fleet as last folded, without asking the database."""
        with self._lock:
            yield self._fleet

    def catch_up(self) -> int:
        """Fold what was appended since; the position reached.

        A log that is not the one folded so far (restored, or cut behind what this process has folded)
        is folded from its beginning.

        Raises:
            LogLostError: it is the same log by its name, without what this process has seen of it.
        """
        topics: set[str] = set()
        with self._lock:
            head = self._store.head()
            lost.check(self._store, head, self._witness)
            before = self._head
            if before is not None and (
                head.incarnation != before.incarnation or self._fleet.position < head.floor_position
            ):
                self.reset()
                topics.add(book.EVERY_NODE)
            cold = head.position - self._fleet.position >= self._cold
            try:
                with _uncollected(stays=True) if cold else contextlib.nullcontext():
                    if self._head is None:
                        topics |= self._go_on(head, cold=cold)
                    while self._fleet.position < head.position:
                        topics |= self._page(head.position)
            except BaseException:
                self.reset()  # An event folded half is worse than none folded.
                raise
            self._head = self._witness = head
            position = self._fleet.position
        if topics:
            self._on_topics(topics)
        return position

    def _go_on(self, head: port.Head, *, cold: bool) -> set[str]:
        """Begin at a snapshot or, where the log was cut, at its opening balance."""
        folded = None
        if cold:
            folded = snapshots.load(self._store, through=head.position, least=head.floor_position)
        if folded is None:
            folded = openings.begin(self._store, head.floor_position)
        if folded is None:
            return set()
        self._fleet, self._book = folded.fleet, folded.book
        self._kept_position = folded.fleet.position
        return {book.EVERY_NODE}

    def _page(self, through: int) -> set[str]:
        topics: set[str] = set()
        # Not beyond the head that was read: the chain is known of that position.
        limit = min(PAGE, through - self._fleet.position)
        records = self._store.read(after=self._fleet.position, limit=limit)
        if not records:
            raise port.LogUnavailableError(
                "corrupt", f"the head is at {through} but no record follows {self._fleet.position}"
            )
        for recorded in codec.page(records):
            evolve.evolve(self._fleet, recorded)
            topics |= self._book.take(self._fleet, recorded)
        return topics


@contextlib.contextmanager
def _uncollected(*, stays: bool) -> Iterator[None]:
    """Keep the cycle collector away from what is made here.

    A fold makes no cycles, and millions of objects that stay. Looking through them again and again
    takes a quarter of a cold fold, and later, with a large fleet, a second at a time.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if stays:
            gc.freeze()
        if collects:
            gc.enable()


def folded_at(
    store: port.Store, position: int, *, past: archived.ArchivedLog | None = None
) -> snapshots.Folded:
    """What was folded at a position of a log, or at its end.

    Args:
        store: the log.
        position: where.
        past: reads what stands below the floor.

    Raises:
        BelowFloorError: the position is in the archive, and `past` is None.
        ArchiveMissingError, ArchiveBadError: as `past`.
    """
    floor = store.head().floor_position
    if position < floor:
        with _uncollected(stays=False):
            return _on(snapshots.Folded(), store if past is None else past, position)
    with _uncollected(stays=False):
        found = snapshots.load(store, through=position, least=floor) if position >= COLD else None
        return _on(found or openings.begin(store, floor) or snapshots.Folded(), store, position)


def _on(folded: snapshots.Folded, log: archived.Log, position: int) -> snapshots.Folded:
    fleet, pages = folded.fleet, folded.book
    while fleet.position < position:
        limit = min(PAGE, position - fleet.position)
        records = log.read(after=fleet.position, limit=limit)
        if not records:
            break
        for recorded in codec.page(records):
            evolve.evolve(fleet, recorded)
            pages.take(fleet, recorded)
    return folded


def fleet_at(
    store: port.Store, position: int, *, past: archived.ArchivedLog | None = None
) -> Fleet:
    """The fleet as it was at a position. As `folded_at`."""
    return folded_at(store, position, past=past).fleet
