"""Owns noticing that the log lost its end under a process that has seen it, and what is done then.

A standby that did not have the last commits is such a log: whole in itself, under the same name, and
without what nodes and people were told was written. It is another log from there on, as after a restore.
"""

from __future__ import annotations

import logging
from typing import Final

import typing_extensions

from smgate.log import port, sql
from smgate.service import restore

log = logging.getLogger(__name__)


class LogLostError(port.LogUnavailableError):
    """The log does not lead through what this process has seen of it."""

    def __init__(self, seen: port.Head, head: port.Head) -> None:
        self.seen: Final = seen
        super().__init__(
            "lost",
            f"this process has seen position {seen.position} of it, and the log the database has now, "
            f"at position {head.position}, does not lead through that. So what was written last is gone",
        )

    @property
    @typing_extensions.override
    def next_step(self) -> str:
        """What happens, and what to do if it does not."""
        return (
            "The controller begins another incarnation by itself within seconds, as after a restore; see "
            "ops/postgresql.md. If it does not, stop every controller and give smgate db restore-begin."
        )


def check(store: port.Store, head: port.Head, seen: port.Head | None) -> None:
    """Raise LogLostError if a log is not the one that was seen, though it has its name.

    Args:
        store: the log.
        head: its head now.
        seen: a head of it that this process has seen; None if it has seen none.
    """
    if seen is None or seen.incarnation != head.incarnation or seen.position < head.floor_position:
        return
    if head.position == seen.position:
        leads = head.chain == seen.chain
    else:
        leads = head.position > seen.position and store.chain_at(seen.position) == seen.chain
    if not leads:
        raise LogLostError(seen, head)


def begin_anew(store: sql.SqlStore, error: LogLostError, *, at_us: int) -> None:
    """Record that the log lost its end, as `restore.begin`: nothing widens until a person finishes that.

    Whoever leads is fenced by it, and stands again on what is left.
    """
    if store.head().incarnation != error.seen.incarnation:
        return  # Another process was first.
    reason = f"The database lost what followed its backup or standby; {error.seen.position} had been seen."
    incarnation = restore.begin(store, reason=reason, at_us=at_us, while_led=True)
    log.error("%s. The log goes on as incarnation %s.", error, incarnation)
