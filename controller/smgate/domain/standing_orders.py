"""What stops all widening until a person ends it. `make` makes one wait.

Freezes and the breaker have no timer; they are listed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from smgate.domain.state import Fleet

W = TypeVar("W")


def of(fleet: Fleet, make: Callable[..., W]) -> Iterator[W]:
    """The restore that is not finished, the open breaker, the freezes."""
    restore = fleet.restore
    if not restore.finished:
        missing = sorted(restore.waiting)
        yield make(
            code="restore",
            subject=restore.incarnation,
            owner="approver",
            since_led_us=restore.since_led_us,
            position=restore.position,
            timeout_s=fleet.policy.confirm_timeout_s,
            sentence="The log was restored from a backup: nothing widens. "
            + (
                f"{len(missing)} of {restore.nodes} nodes have not said what they held: "
                f"{', '.join(missing[:3])}."
                if missing
                else "Every node has said what it held."
            ),
            next_step="smgate db restore-finish, once the nodes that matter are back",
        )
    if fleet.breaker_position is not None:
        yield make(
            code="breaker_open",
            subject="breaker",
            owner="approver",
            since_led_us=fleet.breaker_led_us,
            position=fleet.breaker_position,
            timeout_s=None,
            sentence="Too much went bad at once; nothing widens.",
            next_step="smgate breaker show, then smgate breaker reset",
        )
    for name, position in sorted(fleet.freezes.items()):
        yield make(
            code="freeze",
            subject=name,
            owner="approver",
            since_led_us=fleet.freeze_led_us[name],
            position=position,
            timeout_s=None,
            due_us=fleet.freeze_ends.get(name),
            sentence=f"Freeze {name}: {fleet.freeze_reasons[name]}",
            next_step=f"smgate freeze lift {name}",
        )
