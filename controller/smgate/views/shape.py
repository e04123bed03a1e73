"""Owns the plain shapes that all rows are made of: times as ISO-8601 UTC, tuples as lists."""

from __future__ import annotations

import dataclasses
import datetime
import functools
from typing import Any, Final

Row = dict[str, Any]

_EPOCH = datetime.datetime(1970, 1, 1)  # noqa: DTZ001  its text is what is wanted
_PLAIN: Final = frozenset({str, int, float, bool, type(None)})
INSTANTS_KEPT: Final = 4_096
"""Instants whose text is remembered: what was reported or decided together is shown together."""


@functools.lru_cache(maxsize=INSTANTS_KEPT)
def iso(at_us: int | None) -> str | None:
    """An instant as ISO-8601 UTC with microseconds; None stays None."""
    if at_us is None:
        return None
    moment = _EPOCH + datetime.timedelta(microseconds=at_us)
    return moment.isoformat(timespec="microseconds") + "Z"


def plain(value: object) -> Any:  # noqa: ANN401  JSON
    """A frozen dataclass of the domain as JSON would have it."""
    kind: Any = type(value)  # mypy calls no class hashable
    if kind in _PLAIN:
        return value
    if names := _fields(kind):
        return {name: plain(getattr(value, name)) for name in names}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(plain(item) for item in value)
    return value


@functools.cache
def _fields(kind: type) -> tuple[str, ...]:
    """Of a class of the domain; none of any other."""
    if not dataclasses.is_dataclass(kind):
        return ()
    return tuple(one.name for one in dataclasses.fields(kind))
