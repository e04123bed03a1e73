"""Owns the file by which a verification that was stopped goes on.

It is believed only as far as the chain says: every link up to its place is recomputed first, and must
come to the chain it names. What it saves is reading the records before it, again.
"""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Final

import msgspec

from smgate.log import verify, walk

FORMAT: Final = 1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    format: int
    position: int
    batch: int
    chain: str
    recorded_at_us: int


class UnreadableError(Exception):
    """The file is not one of these."""


def load(path: pathlib.Path) -> walk.Place | None:
    """The place a file names; None without a file.

    Raises:
        UnreadableError: it holds something else.
    """
    try:
        read = msgspec.json.decode(path.read_bytes(), type=_File)
        if read.format != FORMAT:
            raise UnreadableError(f"format {read.format}")
        return walk.Place(
            position=read.position,
            batch=read.batch,
            chain=bytes.fromhex(read.chain),
            recorded_at_us=read.recorded_at_us,
        )
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError, ValueError) as error:
        raise UnreadableError(str(error)) from error


def save(path: pathlib.Path, walked: walk.Walked) -> None:
    """Write down what is verified, whole or not at all."""
    place = walked.place
    made = _File(
        format=FORMAT,
        position=place.position,
        batch=place.batch,
        chain=place.chain.hex(),
        recorded_at_us=place.recorded_at_us,
    )
    beside = path.with_name(f"{path.name}.new")
    beside.write_bytes(msgspec.json.encode(made) + b"\n")
    beside.replace(path)


def resume(store: walk.Rows, place: walk.Place, watched: frozenset[int]) -> walk.Walked | None:
    """What is verified up to the place, if the chain recomputed from the first batch leads there."""
    linked = walk.walk(store, through=place.position, watched=watched, rows=False)
    return linked if linked.first_bad is None and linked.place == place else None


def kept(place: walk.Place) -> verify.Kept:
    """A place that the log no longer leads to is a head that was kept, and says so."""
    return verify.Kept(position=place.position, chain=place.chain)
