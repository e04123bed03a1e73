"""Owns which stored forms a log may hold: those of the level that a person finalized it at.

A release reads every form up to its own level, and writes those above the log's level only once
`smgate db finalize` raised it. Until then the release before can be put back: it finds nothing that
it cannot read. A log begun by this release begins at this release's level.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from smgate.log import port

Form = tuple[str, int]
"""Stored name of an event, and its schema version."""

LEVEL: Final = 2
"""The newest level this release knows. Raised with the first new form of a release."""

SINCE: Final[Mapping[Form, int]] = {
    ("fact_redacted", 1): 2,
    ("grant_revoked", 1): 2,
    ("opening_recorded", 1): 2,
}
"""The level with which a form came; every other form is of level 1. Entries are only ever added."""


def above(level: int, since: Mapping[Form, int] = SINCE) -> frozenset[Form]:
    """What must not be written into a log of this level."""
    return frozenset(form for form, came in since.items() if came > level)


def check(forms: Iterable[Form], above: frozenset[Form]) -> None:
    """Refuse what must not be written yet.

    Raises:
        NotFinalizedError: one of the forms is in `above`.
    """
    for form in forms:
        if form in above:
            raise NotFinalizedError(form)


class NotFinalizedError(port.LogError):
    """A record is of a form that the release before cannot read; nothing was written."""

    code = "not_finalized"
    next_step: Final = (
        "Once you will not go back to the release before, run `smgate db finalize --database URL` with "
        "the controllers' database, and start the controllers again."
    )

    def __init__(self, form: Form) -> None:
        self.form = form
        self.sentence = (
            f"{form[0]!r} version {form[1]} is not written into this log yet: the release before "
            "could not read it."
        )
        super().__init__(f"{self.sentence} {self.next_step}")
