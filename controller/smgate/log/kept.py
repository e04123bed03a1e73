"""Owns heads of the log that were kept out of its reach, and whether it still leads through them.

A chain inside a database proves nothing against somebody who recomputes all of it. A head in the
answer to a node, in an alarm or in anybody's notes is out of that person's reach.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from smgate.log import chain, port, walk


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A head that was kept: its place and its chain, and the line it stands on, if in a file."""

    position: int
    chain: bytes
    line: int | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A kept head beside the log as it stands."""

    kept: Kept
    agrees: bool
    kind: walk.Kind | None
    """What was done, if it does not agree; None too where a bad row before it hides that."""
    sentence: str


_DIGEST: Final = re.compile(r"[0-9a-fA-F]{64}")
_PLAIN: Final = re.compile(rf"(?<![0-9A-Za-z])(\d{{1,19}})[:\s]+({_DIGEST.pattern})(?![0-9A-Za-z])")


def read(lines: Iterable[str]) -> tuple[list[Kept], int]:
    """Every head in a text, and the number of lines, not empty, that have none.

    A line is an answer or an alarm in JSON, with `position` and `chain` beside each other anywhere
    in it, or any text with POSITION:CHAIN in it.
    """
    found: list[Kept] = []
    without = 0
    for number, line in enumerate(lines, start=1):
        here = [Kept(position=p, chain=c, line=number) for p, c in _heads(line)]
        found += here
        without += bool(line.strip()) and not here
    return found, without


def compare(kept: Sequence[Kept], *, walked: walk.Walked, head: port.Head) -> tuple[Compared, ...]:
    """Say of each kept head whether the log leads through it."""
    met = {0: chain.GENESIS} | walked.met
    return tuple(_compare(one, met.get(one.position), walked, head) for one in kept)


def rewritten(compared: Iterable[Compared]) -> walk.BadRow | None:
    """The lowest place that was walked and at which a kept head contradicts the log."""
    wrong = [one for one in compared if one.kind is walk.Kind.REWRITTEN]
    if not wrong:
        return None
    one = min(wrong, key=lambda each: each.kept.position)
    return walk.bad_row(walk.BATCH, one.kept.position, walk.Kind.REWRITTEN, one.sentence)


def truncated(compared: Iterable[Compared], end: int) -> walk.BadRow | None:
    """Where the log ends, if the highest of the heads that were kept is behind that."""
    wrong = [one for one in compared if one.kind is walk.Kind.TRUNCATED]
    if not wrong:
        return None
    one = max(wrong, key=lambda each: each.kept.position)
    return walk.bad_row(walk.EVENT, end + 1, walk.Kind.TRUNCATED, one.sentence)


def _compare(
    one: Kept, chain_there: bytes | None, walked: walk.Walked, head: port.Head
) -> Compared:
    kind: walk.Kind | None = None
    if chain_there == one.chain:
        sentence = f"The log leads through {one.position}."
    elif chain_there is not None:
        kind = walk.Kind.REWRITTEN
        sentence = f"The chain at position {one.position} is not the one that was kept."
    elif one.position <= walked.place.position:
        kind = walk.Kind.REWRITTEN
        sentence = f"No batch ends at position {one.position}, where a head was kept."
    elif walked.first_bad is not None:
        sentence = f"Not looked at: a bad row stands before position {one.position}."
    else:
        kind = walk.Kind.TRUNCATED
        sentence = f"The log ends at {head.position}; a head at {one.position} was kept."
    return Compared(kept=one, agrees=chain_there == one.chain, kind=kind, sentence=sentence)


def _heads(line: str) -> Iterator[tuple[int, bytes]]:
    left: list[object] = []
    try:
        left.append(json.loads(line))
    except (ValueError, RecursionError):
        left.append(line)
    while left:
        one = left.pop()
        if isinstance(one, dict):
            head = _head(one.get("position"), one.get("chain"))
            if head is not None:
                yield head
                continue
            one = list(one.values())
        if isinstance(one, list):
            left += reversed(one)
        elif isinstance(one, str):
            for position, digest in _PLAIN.findall(one):
                yield int(position), bytes.fromhex(digest)


def _head(position: object, digest: object) -> tuple[int, bytes] | None:
    """The head that two values are; None if they are something else of those names."""
    if type(position) is int and isinstance(digest, str) and _DIGEST.fullmatch(digest):
        return position, bytes.fromhex(digest)
    return None
