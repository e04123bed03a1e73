"""Times in which a rollout starts nothing: between two instants, or the same hours every week.

A weekly window is at a fixed offset from UTC. No table of time zones is asked: it comes with the
machine and changes with it, and one log must give the same decisions wherever it is read.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal

SECOND_US: Final = 1_000_000
DAY_US: Final = 86_400 * SECOND_US
WEEK_US: Final = 7 * DAY_US
DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
MONDAY_US: Final = -3 * DAY_US
"""A Monday, 00:00 UTC: the epoch was a Thursday."""
JOINED_MAX: Final = 64
"""Windows that touch are one; of more than this many the rest is seen when these are over."""

EPOCH: Final = datetime.fromisoformat("1970-01-01T00:00:00Z")
TIME_OF_DAY: Final = re.compile(r"([01]\d|2[0-3]):[0-5]\d", re.ASCII)
OFFSET: Final = re.compile(r"[+-](0\d|1[0-4]):[0-5]\d", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class FreezeWindow:
    """A time in which a rollout opens no wave and grants nothing. It ends nothing.

    Without `days`, instants with their time zone: `2026-12-24T18:00:00+01:00`. With `days`, times of
    the day, `18:00` at `utc_offset`, for a window that begins on each of these days; where `ends` is
    not after `starts` it ends on the day that follows. The end itself is no longer in it.
    """

    starts: str
    ends: str
    days: tuple[Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"], ...] = ()
    utc_offset: str = "+00:00"

    @property
    def words(self) -> str:
        """As a person would say it."""
        if not self.days:
            return f"{self.starts} to {self.ends}"
        return f"{', '.join(self.days)} {self.starts} to {self.ends} UTC{self.utc_offset}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    """A freeze that holds: by which window, and from when to when with those that touch it."""

    window: FreezeWindow
    start_us: int
    end_us: int


def iso(at_us: int) -> str:
    """An instant as ISO-8601 in UTC, to the second."""
    return (EPOCH + timedelta(microseconds=at_us)).strftime("%Y-%m-%dT%H:%M:%SZ")


def problem(windows: Sequence[FreezeWindow]) -> tuple[str, str] | None:
    """What is wrong with windows that a person wrote, and the next step; None if nothing is."""
    for window in windows:
        found = _problem(window)
        if found is not None:
            return (
                f"The freeze window from {window.starts!r} to {window.ends!r}: {found[0]}",
                found[1],
            )
    if _whole_week(windows):
        return "The freeze windows leave no hour of the week.", "Leave some time to start in."
    return None


def _problem(window: FreezeWindow) -> tuple[str, str] | None:
    if not OFFSET.fullmatch(window.utc_offset):
        return "its utc_offset is not +HH:MM.", "Write the offset from UTC, such as +02:00."
    times = (window.starts, window.ends)
    if not window.days:
        return _instants_problem(window, times)
    if not all(TIME_OF_DAY.fullmatch(one) for one in times):
        return "with days these are times of the day.", 'Write "18:00", in quotes.'
    return None


def _instants_problem(window: FreezeWindow, times: tuple[str, str]) -> tuple[str, str] | None:
    if window.utc_offset != "+00:00":
        return "without days the instants have their own offset.", "Leave utc_offset away."
    wrong = instant_problem(times[0]) or instant_problem(times[1])
    if wrong is not None:
        return f"{wrong}.", "Write 2026-12-24T18:00:00+01:00, or give days."
    if instant_us(times[1]) <= instant_us(times[0]):
        return "it ends before it begins.", "Exchange them."
    return None


def _whole_week(windows: Sequence[FreezeWindow]) -> bool:
    """True if weekly windows leave nothing: each of them ends within another."""
    weekly = [span for window in windows if window.days for span in _weekly(window)]
    ends = [(begin + length) % WEEK_US for begin, length in weekly]
    return bool(ends) and all(
        any(
            begin <= end + week < begin + length
            for begin, length in weekly
            for week in (0, WEEK_US)
        )
        for end in ends
    )


def instant_problem(text: str) -> str | None:
    """What keeps a text from being an instant; None if nothing does."""
    try:
        return None if datetime.fromisoformat(text).tzinfo is not None else "it has no time zone"
    except ValueError:
        return "it is no instant"


@functools.lru_cache(maxsize=256)
def instant_us(text: str) -> int:
    """An instant with its time zone, in microseconds."""
    return (datetime.fromisoformat(text) - EPOCH) // timedelta(microseconds=1)


def _once(window: FreezeWindow) -> tuple[int, int]:
    return instant_us(window.starts), instant_us(window.ends)


@functools.lru_cache(maxsize=256)
def _weekly(window: FreezeWindow) -> tuple[tuple[int, int], ...]:
    """(begin in the week of UTC, length), one for each day."""
    begin_us, end_us = _minutes(window.starts), _minutes(window.ends)
    length_us = end_us - begin_us if end_us > begin_us else end_us - begin_us + DAY_US
    sign = -1 if window.utc_offset[0] == "-" else 1
    offset_us = sign * _minutes(window.utc_offset[1:])
    return tuple(
        ((DAYS.index(day) * DAY_US + begin_us - offset_us) % WEEK_US, length_us)
        for day in window.days
    )


def _minutes(text: str) -> int:
    hours, minutes = text.split(":")
    return (int(hours) * 60 + int(minutes)) * 60 * SECOND_US


def _spans(window: FreezeWindow, at_us: int) -> Iterator[tuple[int, int]]:
    """The window's times around a moment: the last that began, and the next."""
    if not window.days:
        yield _once(window)
        return
    for begin_us, length_us in _weekly(window):
        first = MONDAY_US + begin_us
        began = first + (at_us - first) // WEEK_US * WEEK_US
        yield began, began + length_us
        yield began + WEEK_US, began + WEEK_US + length_us


def length_s(window: FreezeWindow) -> int:
    """How long a window lasts each time."""
    starts_us, ends_us = next(_spans(window, 0))
    return (ends_us - starts_us) // SECOND_US


def frozen(windows: Sequence[FreezeWindow], now_us: int) -> Frozen | None:
    """The window that holds now, and when the last of those that follow without a gap is over."""
    first: Frozen | None = None
    end_us = now_us
    for _ in range(JOINED_MAX if windows else 0):
        holding = [
            (until, since, window)
            for window in windows
            for since, until in _spans(window, end_us)
            if since <= end_us < until
        ]
        if not holding:
            break
        until, since, window = max(holding, key=lambda one: one[:2])
        first = first or Frozen(window=window, start_us=since, end_us=until)
        end_us = until
    return first and Frozen(window=first.window, start_us=first.start_us, end_us=end_us)


def next_edge_us(windows: Sequence[FreezeWindow], now_us: int) -> int | None:
    """When a window begins or ends next."""
    edges = (edge for window in windows for span in _spans(window, now_us) for edge in span)
    return min((edge for edge in edges if edge > now_us), default=None)
