"""What is remembered of a log that was restored from a backup, folded."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

HELD_CODE: Final = "held_before_restore"
UNFINISHED_CODE: Final = "restore_unfinished"


@dataclass(frozen=True, slots=True, kw_only=True)
class Careful:
    """What a node was told by the log that was lost, and that is more careful than the restored one."""

    value: str | None
    node: str
    code: str
    position: int


@dataclass(slots=True, kw_only=True)
class Restore:
    """The last restore; `position` is 0 if there never was one."""

    position: int = 0
    incarnation: str = ""
    since_led_us: int = 0
    finished: bool = True
    nodes: int = 0
    """Nodes that were known then."""
    waiting: set[str] = field(default_factory=set)
    """Those that have not said yet what they hold."""
    careful: dict[str, Careful] = field(default_factory=dict)
    """By unit, until a plan that needs a person has taken it up."""
    unsettled: dict[str, set[str]] = field(default_factory=dict)
    """Node -> units of which it holds another thing than the log says, and that were not decided since."""
