"""What a rollout waits for: people, the end of a freeze window, its open wave. `make` makes one wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from smgate.domain import windows
from smgate.domain.state import Fleet
from smgate.domain.state_rollouts import Rollout

W = TypeVar("W")


def of(fleet: Fleet, rollout: Rollout, now_us: int, make: Callable[..., W]) -> Iterator[W]:
    """What one rollout waits for."""
    plan = rollout.plan
    owners = {"proposed": "approver", "approved": "approver", "paused": "approver"}
    steps = {
        "proposed": f"smgate rollout approve {plan.id} (another person than "
        f"{', '.join([rollout.author, *rollout.approvers])})",
        "approved": f"smgate rollout start {plan.id}",
        "paused": f"smgate rollout resume {plan.id}, or smgate rollout abort {plan.id}",
    }
    if not rollout.ended:
        yield make(
            code="rollout",
            subject=plan.id,
            owner=owners.get(rollout.phase, "controller"),
            since_led_us=rollout.since_led_us,
            position=rollout.position,
            timeout_s=plan.rollout_timeout_s,
            sentence=f"Rollout {plan.id} is {rollout.phase}."
            if rollout.phase != "proposed"
            else f"Rollout {plan.id} is proposed; {rollout.agreed}.",
            next_step=steps.get(rollout.phase, f"smgate rollout why {plan.id}"),
        )
    held = windows.frozen(plan.freeze_windows, now_us)
    if held is not None and rollout.phase == "running":
        yield make(
            code="freeze_window",
            subject=plan.id,
            owner="controller",
            since_led_us=fleet.led_us(held.start_us),
            position=rollout.position,
            timeout_s=-((held.start_us - held.end_us) // windows.SECOND_US),
            sentence=f"Rollout {plan.id} starts nothing until {windows.iso(held.end_us)}, by its "
            f"plan ({held.window.words}).",
            next_step="Nothing: it goes on by itself.",
        )
    wave = rollout.open_wave
    if wave is not None and rollout.phase == "running":
        yield make(
            code="wave",
            subject=f"{plan.id}/{wave.number}",
            owner="unit owner",
            since_led_us=wave.since_led_us,
            position=wave.position,
            timeout_s=plan.wave_timeout_s,
            sentence=f"Wave {wave.number} of rollout {plan.id} is open and not judged.",
            next_step=f"smgate rollout why {plan.id}",
        )
