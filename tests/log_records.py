"""Records for tests of the log: short to write, different where it matters."""

from __future__ import annotations

from smgate.log import port


def record(
    stream: str = "outbox-a", version: int = 1, data: bytes | str = b"{}", **changes: object
) -> port.NewRecord:
    """A record; every field but stream, version and data has a plain default."""
    fields: dict[str, object] = {
        "type": "node_reported",
        "schema_version": 1,
        "occurred_at_us": 1_764_480_000_000_000 + version,
        "actor": "node:n1",
        "counter_actor": None,
        "data": data.encode() if isinstance(data, str) else data,
    }
    return port.NewRecord(stream=stream, version=version, **(fields | changes))  # type: ignore[arg-type]


def run(stream: str, first: int, last: int, *, note: str = "") -> list[port.NewRecord]:
    """Records of one stream with versions `first` to `last`."""
    return [
        record(stream, version, f'{{"n":{version},"note":"{note}"}}')
        for version in range(first, last + 1)
    ]


def other(value: object) -> object:
    """A value of the same type that differs."""
    match value:
        case int():
            return value + 1
        case bytes():
            return bytes([value[0] ^ 1]) + value[1:]
        case str():
            return value + "x"
        case _:
            return "somebody"
