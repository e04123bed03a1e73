"""What the log says of changes that wait for a person, folded."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from smgate.domain.events import Event
from smgate.domain.values import Difference

Kind = Literal["asked", "break_glass", "held"]
Ended = Literal["accepted", "withdrawn", "lapsed", "undone", "overtaken"]
Thing = tuple[str, ...]
"""What a ruling is about, such as ("mode", gate, SM): a later ruling on the same thing replaces it."""


@dataclass(slots=True, kw_only=True)
class Change:
    """One change that waits, or waited, for a person.

    `asked`: a person asked for a widening command; it takes effect when another accepts. `break_glass`:
    one person took it alone and it is in force until its time runs out. `held`: the controller's own
    plan, which goes on when a person accepts.
    """

    id: str
    """`c` and the position of the event that opened it."""
    kind: Kind
    position: int
    since_led_us: int
    timeout_s: int
    by: str | None
    """Who asked or broke the glass; None for the controller."""
    reason: str
    sentence: str
    code: str
    """Why it waits: the kind for a person's change, the kind of hold for the controller's."""
    subject: str
    """What it is about: the command's name, or what the controller names."""
    command: str | None = None
    body: dict[str, Any] = field(default_factory=dict)
    units: tuple[str, ...] = ()
    """Units a held plan is about."""
    would: str = ""
    """What it costs or does, as a sentence."""
    numbers: dict[str, float] = field(default_factory=dict)
    differences: tuple[Difference, ...] = ()
    """What a held plan would tell units."""
    undo: dict[Thing, Event] = field(default_factory=dict)
    """Of a break-glass: what puts back each thing that it changed and nobody has ruled on since."""
    own_until: int = 0
    """Position of the last event that the break-glass itself came to."""
    ended: Ended | None = None
    ended_position: int = 0
    accepted_by: str | None = None

    @property
    def open(self) -> bool:
        """True while it waits."""
        return self.ended is None


def held(changes: dict[str, Change], code: str, subject: str) -> Change | None:
    """The newest plan that the controller held for this reason about this, open or ended."""
    found = (
        change
        for change in changes.values()
        if change.kind == "held" and (change.code, change.subject) == (code, subject)
    )
    return max(found, key=lambda change: change.position, default=None)
