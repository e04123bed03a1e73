"""Owns the files of the archive: whole batches as lines of JSON, compressed, checked by their hash.

The first line says what the file is; then comes every batch with its records, one a line, exactly as they
were stored. Anybody can read them with zcat; smgate reads none whose hash is not the one that was noted.
"""

from __future__ import annotations

import base64
import dataclasses
import gzip
import hashlib
import os
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from smgate.log import chain, port, port_archive

FORMAT: Final = "smgate log archive 1"
RECORDS_MAX: Final = 50_000
"""Records in one file, or one batch that has more: what is held in memory to read any of them."""
LEVEL: Final = 6
PREFIX: Final = "smgate-log-"
"""What the name of every file begins with."""


@dataclasses.dataclass(frozen=True, slots=True)
class Contents:
    """What one file holds."""

    batches: list[port.Batch]
    records: list[port.StoredRecord]


class ArchiveMissingError(port.LogError):
    """What was asked for stands in a file of the archive that cannot be read where it is looked for."""

    code = "archive_missing"
    next_step: Final = (
        "Put the file back there, or say where the archive is: --archive DIR with --database, "
        "SMGATE_ARCHIVE_DIR for the controller."
    )

    def __init__(self, segment: port_archive.Segment, path: pathlib.Path, cause: str) -> None:
        self.sentence = (
            f"Positions {segment.first_position} to {segment.last_position} are in the archive, and "
            f"{path} cannot be read ({cause})."
        )
        super().__init__(f"{self.sentence} {self.next_step}")


class ArchiveBadError(port.LogError):
    """A file of the archive is not the one that was written."""

    code = "archive_bad"
    next_step: Final = "Get the file from a copy of the archive; nothing else of it is lost."

    def __init__(self, path: pathlib.Path, cause: str) -> None:
        self.sentence = f"{path} is not the file that was written: {cause}."
        super().__init__(f"{self.sentence} {self.next_step}")


def write(
    folder: pathlib.Path, contents: Contents, *, before: bytes, incarnation: str
) -> port_archive.Segment:
    """Write one file, so that it is there after a power loss, and read it back.

    Args:
        folder: where; it must exist.
        contents: whole batches that follow one another, with all their records.
        before: the chain before the first of them.
        incarnation: of the log.

    Raises:
        OSError: it cannot be written.
        ArchiveBadError: what was read back is not what was written.
    """
    first, last = contents.batches[0], contents.batches[-1]
    lines = b"".join(_lines(contents, before=before, incarnation=incarnation))
    data = gzip.compress(lines, LEVEL, mtime=0)
    digest = hashlib.sha256(data).hexdigest()
    # By its content, so that no file is ever written over: two logs may use one folder, and so may a log
    # and a copy of it that went on as another.
    places = f"{first.first_position:012}-{last.last_position:012}"
    name = f"{PREFIX}{places}-{digest[:12]}.jsonl.gz"
    segment = port_archive.Segment(
        first_position=first.first_position,
        last_position=last.last_position,
        folder=str(folder.absolute()),
        name=name,
        sha256=digest,
        chain_before=before,
        chain_after=last.chain,
        recorded_at_us=last.recorded_at_us,
    )
    fresh = folder / f"{name}.new"
    with fresh.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(folder / name)
    sync(folder)
    if read(segment, folder) != contents:
        raise ArchiveBadError(folder / name, "reading it gives something else")
    return segment


def read(segment: port_archive.Segment, folder: pathlib.Path) -> Contents:
    """What a file holds.

    Raises:
        ArchiveMissingError: it is not there, or cannot be read.
        ArchiveBadError: it is not the file that was written.
    """
    path = folder / segment.name
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ArchiveMissingError(segment, path, error.strerror or str(error)) from error
    if hashlib.sha256(data).hexdigest() != segment.sha256:
        raise ArchiveBadError(path, "its hash is another")
    try:
        contents, before = _parse(gzip.decompress(data))
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise ArchiveBadError(path, str(error)) from error
    _check(segment, contents, before, path)
    return contents


def unlisted(folder: pathlib.Path, listed: Iterable[port_archive.Segment]) -> tuple[str, ...]:
    """Files of an archive in a folder that a log does not list, and so never reads.

    A cut that was killed or stopped leaves some, and another log may keep its own there.
    """
    names = {one.name for one in listed}
    return tuple(sorted({path.name for path in folder.glob(f"{PREFIX}*")} - names))


def _check(
    segment: port_archive.Segment, contents: Contents, before: bytes, path: pathlib.Path
) -> None:
    """The hash is of the whole file; this is that it is the place of the log that it was noted for."""
    reached, position = segment.chain_before, segment.first_position
    if before != reached:
        raise ArchiveBadError(path, "it begins at another chain")
    for one in contents.batches:
        tail = chain.tail(count=one.count, root=one.root, writer=one.writer)
        reached = chain.link(
            reached, first_position=position, recorded_at_us=one.recorded_at_us, tail=tail
        )
        if (one.first_position, one.chain) != (position, reached):
            raise ArchiveBadError(path, f"the chain breaks at position {position}")
        position += one.count
    ends = (position - 1, reached, contents.batches[-1].recorded_at_us if contents.batches else 0)
    if ends != (segment.last_position, segment.chain_after, segment.recorded_at_us):
        raise ArchiveBadError(path, "it ends elsewhere")


def _lines(contents: Contents, *, before: bytes, incarnation: str) -> Iterator[bytes]:
    head = {"format": FORMAT, "incarnation": incarnation, "chain_before": before.hex()}
    yield msgspec.json.encode(head) + b"\n"
    records = iter(contents.records)
    for one in contents.batches:
        told = {
            "batch": one.first_position,
            "count": one.count,
            "root": one.root.hex(),
            "chain": one.chain.hex(),
            "recorded_at_us": one.recorded_at_us,
            "writer": one.writer,
        }
        yield msgspec.json.encode(told) + b"\n"
        for _ in range(one.count):
            yield msgspec.json.encode(_record_line(next(records))) + b"\n"


def _record_line(record: port.StoredRecord) -> dict[str, Any]:
    told: dict[str, Any] = {
        "stream": record.stream,
        "version": record.version,
        "type": record.type,
        "schema_version": record.schema_version,
        "occurred_at_us": record.occurred_at_us,
        "actor": record.actor,
        "counter_actor": record.counter_actor,
        "leaf": record.leaf.hex(),
    }
    try:
        told["data"] = record.data.decode()
    except UnicodeDecodeError:
        told["data_base64"] = base64.b64encode(record.data).decode()
    return told


def _parse(data: bytes) -> tuple[Contents, bytes]:
    lines = iter(data.splitlines())
    head = msgspec.json.decode(next(lines, b"{}"))
    if head.get("format") != FORMAT:
        raise ValueError(f"its format is {head.get('format')!r}")
    batches: list[port.Batch] = []
    records: list[port.StoredRecord] = []
    for line in lines:
        told = msgspec.json.decode(line)
        batches.append(
            port.Batch(
                first_position=told["batch"],
                count=told["count"],
                root=bytes.fromhex(told["root"]),
                chain=bytes.fromhex(told["chain"]),
                recorded_at_us=told["recorded_at_us"],
                writer=told["writer"],
            )
        )
        records += [
            _record(msgspec.json.decode(next(lines, b"{}")), batches[-1], offset)
            for offset in range(told["count"])
        ]
    return Contents(batches, records), bytes.fromhex(head["chain_before"])


def _record(told: dict[str, Any], one: port.Batch, offset: int) -> port.StoredRecord:
    plain = "data" in told
    return port.StoredRecord(
        position=one.first_position + offset,
        stream=told["stream"],
        version=told["version"],
        type=told["type"],
        schema_version=told["schema_version"],
        occurred_at_us=told["occurred_at_us"],
        recorded_at_us=one.recorded_at_us,
        actor=told["actor"],
        counter_actor=told["counter_actor"],
        data=told["data"].encode() if plain else base64.b64decode(told["data_base64"]),
        leaf=bytes.fromhex(told["leaf"]),
    )


def sync(path: pathlib.Path) -> None:
    """Have a file or a folder as it is now survive a power loss."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
