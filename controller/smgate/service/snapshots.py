"""Owns snapshots of the fold: whether a kept one may be gone on from, and when one is made.

A snapshot is never brought up to date: one of another fold or of another log is left alone, and the
log is folded from its beginning. So none can change what is decided, only how soon.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import pathlib
import zlib
from dataclasses import dataclass, field
from typing import Final

import smgate
from smgate.clock import Clock
from smgate.domain.state import Fleet
from smgate.log import graph, port, port_snapshots
from smgate.service import book

KEPT_MAX: Final = 2
"""Were the newest damaged, the one before it would still spare most of the log."""
EVERY: Final = 20_000
"""Events after which another is worth its time: about a second of folding."""
EVERY_OF_UNITS: Final = 5
"""Or so many per unit, if that is more: what it costs grows with the fleet."""
COMPRESSION: Final = 1

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Folded:
    """All that one fold makes of the log."""

    fleet: Fleet = field(default_factory=Fleet)
    book: book.Book = field(default_factory=book.Book)


@functools.cache
def state_codec() -> graph.Codec:
    """Reads and writes what is folded."""
    return graph.Codec(Folded)


@functools.cache
def fold_version() -> str:
    """A hash of the code whose change may change what is folded, or how it is written down."""
    package = pathlib.Path(smgate.__path__[0])
    sources = [
        *sorted((package / "domain").rglob("*.py")),
        *(
            package / "log" / name
            for name in ("codec.py", "graph.py", "graph_shapes.py", "sharing.py")
        ),
        *(package / "service" / name for name in ("book.py", "fold.py", "snapshots.py")),
    ]
    hashed = hashlib.sha256()
    for path in sources:
        hashed.update(path.relative_to(package).as_posix().encode() + b"\0")
        hashed.update(hashlib.sha256(path.read_bytes()).digest())
    return hashed.hexdigest()


def load(store: port.Store, *, through: int, least: int = 0) -> Folded | None:
    """The newest snapshot between two positions that this process can go on from."""
    for place in store.snapshots():
        if not least <= place.position <= through:
            continue
        refused = _refused(store, place)
        if refused is None:
            data = store.snapshot_data(place.position)
            try:
                folded = None if data is None else _read(data)
            except (graph.UnreadableError, zlib.error) as error:
                refused = f"it cannot be read: {error}"
            else:
                if folded is not None and folded.fleet.position == place.position:
                    return folded
                refused = "it is not what it says it is"
        log.warning("The snapshot at position %d is not used: %s.", place.position, refused)
    return None


def newest(store: port.Store) -> int:
    """The position of the newest snapshot of this fold; 0 if there is none."""
    return next(
        (one.position for one in store.snapshots() if one.fold_version == fold_version()), 0
    )


def _refused(store: port.Store, place: port_snapshots.Snapshot) -> str | None:
    if place.fold_version != fold_version():
        return "another release folded it"
    if store.chain_at(place.position) != place.chain:
        return "it is of another log"
    return None


def _read(data: bytes) -> Folded:
    folded: Folded = state_codec().decode(zlib.decompress(data))
    return folded


def due(fleet: Fleet, since: int, *, least: int | None = None) -> bool:
    """True when enough was folded since a position that a snapshot is worth its time."""
    enough = max(EVERY, EVERY_OF_UNITS * len(fleet.units)) if least is None else least
    return fleet.position - since >= enough


def keep(store: port.Store, head: port.Head, walked: graph.Walked, *, clock: Clock) -> None:
    """Write one snapshot, and forget the oldest."""
    snapshot = port_snapshots.Snapshot(
        position=head.position,
        chain=head.chain,
        fold_version=fold_version(),
        created_at_us=clock.now_us(),
        data=zlib.compress(walked.encode(), COMPRESSION),
    )
    store.keep_snapshot(snapshot, most=KEPT_MAX)
    log.info("Kept a snapshot at position %d, %d bytes.", head.position, len(snapshot.data))
