"""Waiting as a value: what waits, for whom, since when, until when, and what to do about it."""

from __future__ import annotations

import functools
import heapq
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from smgate.domain import (
    decisions,
    drain_waits,
    drains,
    evidence_waits,
    exposure,
    readings,
    rollout_waits,
    standing_orders,
)
from smgate.domain.state import Fleet, Unit, UnitLaunch

SECOND_US = 1_000_000
QUEUE_SLACK = 1_024
"""Timers passed over that may stay in a queue, beside a few for each that is waited for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """One waiting state. `remaining_us` is on the led clock; None means that only a person ends it."""

    id: str
    code: str
    subject: str
    owner: str
    since_led_us: int
    due_led_us: int | None
    remaining_us: int | None
    sentence: str
    next_step: str


class Timers:
    """When the waits of units run out: kept as units are looked at anew."""

    def __init__(self) -> None:
        self._of_unit: dict[str, frozenset[int]] = {}
        self._queue: list[tuple[int, str]] = []
        """A heap of (led instant, unit). One that the unit no longer waits for is passed over."""

    def look(self, fleet: Fleet, units: Iterable[Unit], now_us: int) -> list[Wait]:
        """What these units wait for now; their timers are noted."""
        found: list[Wait] = []
        led_us = fleet.led_us(now_us)
        for unit in units:
            name, waiting = unit.id, list(of_unit(fleet, unit, now_us))
            before = self._of_unit.pop(name, frozenset())
            if not waiting:
                continue
            ends = (wait.due_led_us for wait in waiting)
            due = frozenset(at_us for at_us in ends if at_us is not None and at_us > led_us)
            if due:
                self._of_unit[name] = due
            for at_us in due - before:
                heapq.heappush(self._queue, (at_us, name))
            found += waiting
        if len(self._queue) > QUEUE_SLACK + 4 * len(self._of_unit):
            self._queue = [(at_us, name) for name, due in self._of_unit.items() for at_us in due]
            heapq.heapify(self._queue)
        return found

    def take_due(self, led_us: int) -> set[str]:
        """Units with a timer that has run out since this was asked last."""
        found = set()
        while self._queue and self._queue[0][0] <= led_us:
            at_us, name = heapq.heappop(self._queue)
            if at_us in self._of_unit.get(name, ()):
                found.add(name)
        return found

    def next_led_us(self) -> int | None:
        """When the next timer runs out."""
        while self._queue and self._queue[0][0] not in self._of_unit.get(self._queue[0][1], ()):
            heapq.heappop(self._queue)
        return self._queue[0][0] if self._queue else None


def _wait(  # noqa: PLR0913  one keyword per field of the value
    fleet: Fleet,
    now_us: int,
    *,
    code: str,
    subject: str,
    owner: str,
    since_led_us: int,
    position: int,
    timeout_s: int | None,
    sentence: str,
    next_step: str,
    due_us: int | None = None,
) -> Wait:
    due = None if due_us is None else fleet.led_us(due_us)
    due = due if timeout_s is None else since_led_us + timeout_s * SECOND_US
    return Wait(
        id=f"{code}/{subject}@{position}",
        code=code,
        subject=subject,
        owner=owner,
        since_led_us=since_led_us,
        due_led_us=due,
        remaining_us=None if due is None else due - max(since_led_us, fleet.led_us(now_us)),
        sentence=sentence,
        next_step=next_step,
    )


def _hanging(fleet: Fleet, unit: Unit, now_us: int) -> Iterator[Wait]:
    for instance in readings.hanging(fleet, unit):
        assert instance.unhealthy_led_us is not None
        _, hang_after_s = readings.fault_bounds(fleet, readings.grant_in_force(fleet, unit))
        yield _wait(
            fleet,
            now_us,
            code="unhealthy",
            subject=unit.id,
            owner="unit owner",
            since_led_us=instance.unhealthy_led_us,
            position=instance.position,
            timeout_s=hang_after_s,
            sentence=f"{instance.id} on {instance.node} is unhealthy on the target.",
            next_step="Look at its log; it counts as a hang when the time is over.",
        )


def _decided_within_s(fleet: Fleet, launch: UnitLaunch) -> int:
    """The gather deadline, or that of the last check asked of this launch: it is decided after both."""
    asked = (one for name in launch.launch_ids for one in fleet.launch_wants.get(name, ()))
    since_us = max((one.since_led_us for one in asked if one.open), default=None)
    if since_us is None:
        return fleet.policy.gather_s
    asked_after_s = -((launch.opened_led_us - since_us) // SECOND_US)
    return max(fleet.policy.gather_s, asked_after_s + fleet.policy.check_timeout_s)


def of_unit(fleet: Fleet, unit: Unit, now_us: int) -> Iterator[Wait]:
    """What one unit waits for. One that is gone waits for nothing."""
    if not unit.live:
        return
    policy = fleet.policy
    launch = unit.launch
    if launch is not None and launch.decided is None:
        yield _wait(
            fleet,
            now_us,
            code="unit_launch",
            subject=unit.id,
            owner="controller",
            since_led_us=launch.opened_led_us,
            position=launch.opened_position,
            timeout_s=_decided_within_s(fleet, launch),
            sentence="Every rank has reported this launch; it is decided after the checks asked of it."
            if launch.complete
            else f"{len(launch.ranks)} of {launch.nnodes} ranks have reported this launch.",
            next_step="Nothing: it is decided by itself, at the deadline with what is known.",
        )
    if unit.adoption == "adopted":
        yield _wait(
            fleet,
            now_us,
            code="adopted",
            subject=unit.id,
            owner="approver",
            since_led_us=unit.adopted_led_us,
            position=unit.adopted_position,
            timeout_s=policy.adoption_timeout_s,
            sentence="First seen already on the target; nobody has ruled on it.",
            next_step=f"smgate unit accept {unit.id}, or smgate unit take-back {unit.id}",
        )
    if readings.unhealthy(unit):
        yield from _hanging(fleet, unit, now_us)
    if unit.grant is None:
        return
    grant = readings.grant_in_force(fleet, unit)
    if grant is not None and not exposure.runs_target(fleet, unit):
        yield _wait(
            fleet,
            now_us,
            code="grant",
            subject=unit.id,
            owner="unit owner",
            since_led_us=grant.since_led_us,
            position=grant.position,
            timeout_s=policy.grant_timeout_s,
            sentence="Granted and not in effect yet: it takes effect at the next start.",
            next_step="Restart the server when it suits its owner.",
        )


def collect(fleet: Fleet, now_us: int) -> list[Wait]:
    """Every waiting state, in a stable order."""
    of_units = [
        w for name in sorted(fleet.units) for w in of_unit(fleet, fleet.units[name], now_us)
    ]
    return [*of_units, *of_world(fleet, drains.needs(fleet, now_us), now_us)]


def of_world(fleet: Fleet, needs: Mapping[str, drains.Need], now_us: int) -> list[Wait]:
    """What waits for more than its own unit: rollouts, kernel keys, checks, standing orders, drains."""
    found: list[Wait] = []
    policy, make = fleet.policy, functools.partial(_wait, fleet, now_us)
    for name in sorted(fleet.rollouts):
        found.extend(rollout_waits.of(fleet, fleet.rollouts[name], now_us, make))
    for key in sorted(fleet.keys):
        evidence = fleet.keys[key]
        if evidence.standing == "suspect":
            found.append(
                _wait(
                    fleet,
                    now_us,
                    code="suspect",
                    subject=key,
                    owner="operator",
                    since_led_us=evidence.suspect_led_us,
                    position=evidence.suspect_position,
                    timeout_s=policy.confirm_timeout_s,
                    sentence=f"Kernel key {key} failed once and waits for confirmation.",
                    next_step=f"smgate build why {key}; run the check on other pool nodes.",
                )
            )
        found.extend(evidence_waits.flaky(fleet, evidence, make))
    found.extend(evidence_waits.unproven(fleet, make))
    found.extend(
        _wait(
            fleet,
            now_us,
            code="wanted_check",
            subject=f"{wanted.kernel_key}/{wanted.launch_id}",
            owner="node",
            since_led_us=wanted.since_led_us,
            position=wanted.position,
            timeout_s=policy.check_timeout_s,
            sentence=f"Checks {', '.join(wanted.checks)} are asked of {wanted.node}.",
            next_step="Nothing: a check that does not answer counts for nothing.",
        )
        for wanted in (fleet.wanted[name] for name in sorted(fleet.wanted))
        if wanted.open
    )
    found.extend(of_changes(fleet, now_us))
    found.extend(drain_waits.ordered(fleet, make))
    found.extend(drain_waits.before(fleet, needs, make))
    found.extend(standing_orders.of(fleet, make))
    return found


def of_changes(fleet: Fleet, now_us: int) -> Iterator[Wait]:
    """Changes that wait for a person."""
    for change in fleet.waiting_changes():
        other = f" (another person than {change.by})" if change.by else ""
        yield _wait(
            fleet,
            now_us,
            code="change_held" if change.kind == "held" else change.code,
            subject=change.id,
            owner="approver",
            since_led_us=change.since_led_us,
            position=change.position,
            timeout_s=change.timeout_s,
            sentence=change.sentence,
            next_step=f"smgate change accept {change.id}{other}, "
            f"or smgate change withdraw {change.id}",
        )


QUIET = ("unit_launch", "wave", "unhealthy", "drain", "freeze")
"""Waits whose end is an event of its own, not a time-out: `override_set`, `wave_judged`,
`grant_ended`, `drain_failed`, `freeze_lifted`."""


def timed_out(fleet: Fleet, found: Iterable[Wait]) -> list[decisions.WaitTimedOut]:
    """One event for every wait whose timer has run out and was not recorded yet."""
    return [
        decisions.WaitTimedOut(
            wait=wait.id,
            code=wait.code,
            subject=wait.subject,
            owner=wait.owner,
            sentence=f"{wait.sentence} Its time has run out.",
        )
        for wait in found
        if wait.remaining_us is not None
        and wait.remaining_us <= 0
        and wait.code not in QUIET
        and wait.id not in fleet.timed_out
    ]
