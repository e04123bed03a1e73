"""Owns the verdict on a whole log: walked from its first row to its head, beside what was kept."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

from smgate.log import kept as kept_heads, port, walk
from smgate.log.kept import Compared, Kept
from smgate.log.walk import BadRow, Kind, Place, Walked, bad_row

__all__ = ["BadRow", "Compared", "Kept", "Kind", "Place", "VerifyReport", "Walked", "verify"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """Whether the log is whole, up to which head, and if not, where it first is not."""

    ok: bool
    positions: int
    """Records verified, from the first."""
    batches: int
    first_bad: BadRow | None
    head: port.Head | None
    redacted: tuple[int, ...] = ()
    """Positions of erased payloads that the log itself accounts for."""
    against: tuple[Compared, ...] = ()
    """What was said of each head that was kept."""

    @property
    def kind(self) -> Kind | None:
        """What was done, if anything."""
        return None if self.first_bad is None else self.first_bad.kind

    @property
    def chain_hex(self) -> str:
        """The chain at the head, to be kept or compared; empty without a head."""
        return "" if self.head is None else self.head.chain.hex()


def row(report: VerifyReport) -> dict[str, Any]:
    """The report as people and programs read it."""
    bad = report.first_bad
    return {
        "ok": report.ok,
        "position": report.positions,
        "batches": report.batches,
        "chain": report.chain_hex,
        "redacted": list(report.redacted),
        "first_bad": None if bad is None else dataclasses.asdict(bad) | {"kind": str(bad.kind)},
    }


Stretch = tuple[Place, int]
"""Where a walk begins, as the rows say, and through which position it goes."""
Walker = Callable[[Sequence[Stretch], frozenset[int]], Generator[Walked]]
"""Walks stretches, wherever, and gives what it found in their order."""


def verify(
    store: port.Store,
    *,
    kept: Sequence[Kept] = (),
    begun: Walked | None = None,
    stretch: int | None = None,
    walker: Walker | None = None,
    reached: Callable[[Walked], None] = lambda _: None,
) -> VerifyReport:
    """Recompute every hash of the log as it stands and name the first row that disagrees.

    Appends may go on meanwhile: what is verified is the log up to the head at the start.

    Args:
        store: the log; it is only read.
        kept: heads kept out of reach, through which the log must lead.
        begun: what is verified already, from the first row; of a log that was cut, its archive.
        stretch: about how many positions are walked at a time; None for all.
        walker: walks the stretches; here, one after the other, if None.
        reached: told what is verified after each stretch.
    """
    try:
        head = store.head()
    except port.LogNotReadyError as error:
        no_head = bad_row(walk.HEAD, 0, Kind.REMOVED, str(error))
        return VerifyReport(ok=False, positions=0, batches=0, first_bad=no_head, head=None)
    watched = frozenset(one.position for one in kept)
    start = walk.BEGINNING if begun is None else begun.place
    done = begun or Walked(place=start, batches=0, first_bad=None, met={})
    stretches = _stretches(store, start, head.position, stretch) if done.first_bad is None else []
    with contextlib.closing((walker or here(store))(stretches, watched)) as walks:
        for one in _meeting(store, stretches, walks, watched):
            done = _together(done, one)
            if done.first_bad is not None:
                break
            reached(done)
    compared = kept_heads.compare(kept, walked=done, head=head)
    first_bad = (
        kept_heads.rewritten(compared)  # Of what was walked, so before any bad row.
        or done.first_bad
        or _end_bad(store, head, done.place)
        or kept_heads.truncated(compared, done.place.position)
    )
    return VerifyReport(
        ok=first_bad is None,
        positions=done.place.position,
        batches=done.batches,
        first_bad=first_bad,
        head=head,
        redacted=done.redacted,
        against=compared,
    )


def verified(
    store: port.Store,
    archive: Callable[[], Walked | None],
    **how: Any,  # noqa: ANN401
) -> VerifyReport:
    """As `verify`, of a log that may have an archive, and that may be cut meanwhile.

    Args:
        store: the log.
        archive: walks its archive; asked again when more of the log went there.
        how: what `verify` takes besides.
    """
    while True:
        floor = store.head().floor_position
        try:
            return verify(store, begun=archive(), **how)
        except port.BelowFloorError:
            if store.head().floor_position == floor:
                raise


def _stretches(store: port.Store, start: Place, through: int, stretch: int | None) -> list[Stretch]:
    """Cut the log where batches end, taking the rows at their word; `_meeting` finds out."""
    begins = [start]
    if stretch is not None:
        for after in range(start.position + stretch, through - stretch // 2, stretch):
            two = store.read_batches(after=after, limit=2)
            if len(two) == 2 and begins[-1].position < two[1].first_position - 1 < through:  # noqa: PLR2004
                begins.append(
                    Place(
                        position=two[1].first_position - 1,
                        batch=two[0].first_position,
                        chain=two[0].chain,
                        recorded_at_us=two[0].recorded_at_us,
                    )
                )
    ends = [one.position for one in begins[1:]] + [through]
    return list(zip(begins, ends, strict=True))


def here(store: port.Store) -> Walker:
    """Walks one stretch after the other, in this process."""

    def walks(stretches: Sequence[Stretch], watched: frozenset[int]) -> Generator[Walked]:
        for start, through in stretches:
            yield walk.walk(store, start=start, through=through, watched=watched)

    return walks


def _meeting(
    store: port.Store,
    stretches: Sequence[Stretch],
    walks: Iterator[Walked],
    watched: frozenset[int],
) -> Iterator[Walked]:
    """The walks in order. One that did not begin where the last ended is walked anew from there."""
    place = stretches[0][0] if stretches else walk.BEGINNING
    for (start, through), found in zip(stretches, walks, strict=True):
        one = found
        if start != place:
            one = walk.walk(store, start=place, through=through, watched=watched)
        yield one
        place = one.place


def _together(done: Walked, one: Walked) -> Walked:
    return Walked(
        place=one.place,
        batches=done.batches + one.batches,
        first_bad=one.first_bad,
        met=done.met | one.met,
        redacted=done.redacted + one.redacted,
    )


def _end_bad(store: port.Store, head: port.Head, place: Place) -> BadRow | None:
    """What is wrong behind the last batch, or with the head row."""
    if head.position > place.position and head.chain != place.chain:
        sentence = (
            f"The head is at position {head.position}, but no batch follows {place.position}."
        )
        return bad_row(walk.BATCH, place.position + 1, Kind.REMOVED, sentence)
    if (head.position, head.chain, head.recorded_at_us) != (
        place.position,
        place.chain,
        place.recorded_at_us,
    ):
        sentence = f"The head row is not the end of the chain at position {place.position}."
        return bad_row(walk.HEAD, place.position, Kind.CHANGED, sentence)
    following = store.read(after=place.position, limit=1)
    now = store.head()
    for stray in following:
        if stray.position > now.position:
            sentence = f"A record stands at position {stray.position}, after the head."
            return bad_row(walk.EVENT, stray.position, Kind.INSERTED, sentence)
    for late in store.read_batches(after=now.position, limit=1):
        if late.first_position > store.head().position:
            sentence = f"A batch stands at position {late.first_position}, after the head."
            return bad_row(walk.BATCH, late.first_position, Kind.INSERTED, sentence)
    return None
