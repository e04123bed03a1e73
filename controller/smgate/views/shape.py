"""Owns the plain shapes that all rows are made of: times as ISO-8601 UTC, tuples as lists."""

from __future__ import annotations

import dataclasses
import datetime
from typing import Any

Row = dict[str, Any]

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def iso(at_us: int | None) -> str | None:
    """An instant as ISO-8601 UTC with microseconds; None stays None."""
    if at_us is None:
        return None
    moment = _EPOCH + datetime.timedelta(microseconds=at_us)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def plain(value: object) -> Any:  # noqa: ANN401  JSON
    """A frozen dataclass of the domain as JSON would have it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(plain(item) for item in value)
    return value
