"""Bytes of a log file to whole lines: plain, Kubernetes (CRI) and docker json-file shapes.

Container runtimes cut long lines at 16 KiB and mark the parts; they are joined here, per stream.
Memory is bounded: a line longer than `LINE_BYTES_MAX` keeps its beginning and loses the rest.
Pure: bytes in, lines out, any bytes at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

import msgspec

Shape = Literal["plain", "cri", "docker"]

LINE_BYTES_MAX: Final = 256 << 10
"""A `server_args=` line is 20 to 40 KiB; JSON escapes can make a record several times that."""

_CRI_FIELDS: Final = 3
_STREAMS: Final = (b"stdout", b"stderr")


class _DockerRecord(msgspec.Struct):
    log: str
    stream: str = "stdout"


class Framer:
    """Joins chunks of one file into lines. `feed` may be given any split of the same bytes."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._rest = bytearray()
        self._skipping = False
        self._parts: dict[bytes, bytearray] = {}
        self.malformed = 0
        self.unfinished_bytes = 0
        """Fed since the last moment at which no line was open: reading may resume there."""

    def reset(self, *, rotated: bool = False) -> None:
        """Forget unfinished lines: the file was cut or replaced.

        A container runtime rotates between records, so parts of a line go on in the next file.
        """
        self._rest.clear()
        if not rotated:
            self._parts.clear()
        self._skipping = False
        self.unfinished_bytes = 0

    def feed(self, chunk: bytes) -> Iterator[str]:
        """Every line that this chunk finishes."""
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            if self._skipping:
                self._skipping = False
            else:
                self._keep(chunk[start:end])
                yield from self._record(bytes(self._rest))
            self._rest.clear()
            self.unfinished_bytes += end + 1 - start
            if not any(self._parts.values()):
                self.unfinished_bytes = 0
            start = end + 1
        self.unfinished_bytes += len(chunk) - start
        if not self._skipping:
            self._keep(chunk[start:])
            if len(self._rest) >= LINE_BYTES_MAX:
                # The beginning is enough: what is looked for stands there, or is not trusted.
                yield from self._record(bytes(self._rest))
                self._rest.clear()
                self._skipping = True

    def _keep(self, data: bytes) -> None:
        self._rest += data[: LINE_BYTES_MAX - len(self._rest)]

    def _record(self, record: bytes) -> Iterator[str]:
        if self._shape == "plain":
            yield _text(record)
        elif self._shape == "cri":
            yield from self._cri(record)
        else:
            yield from self._docker(record)

    def _cri(self, record: bytes) -> Iterator[str]:
        head = record.split(b" ", _CRI_FIELDS)
        if len(head) <= _CRI_FIELDS or head[1] not in _STREAMS:
            self.malformed += 1
            return
        _, stream, tags, content = head
        yield from self._part(stream, content, last=not tags.startswith(b"P"))

    def _docker(self, record: bytes) -> Iterator[str]:
        try:
            decoded = msgspec.json.decode(record, type=_DockerRecord)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            self.malformed += 1
            return
        stream = b"stderr" if decoded.stream == "stderr" else b"stdout"
        content = decoded.log.encode("utf-8", "replace")
        yield from self._part(stream, content.removesuffix(b"\n"), last=content.endswith(b"\n"))

    def _part(self, stream: bytes, content: bytes, *, last: bool) -> Iterator[str]:
        parts = self._parts.setdefault(stream, bytearray())
        parts += content[: LINE_BYTES_MAX - len(parts)]
        if last:
            line = _text(bytes(parts))
            parts.clear()
            yield line


def _text(line: bytes) -> str:
    return line.removesuffix(b"\r").decode("utf-8", "replace")
