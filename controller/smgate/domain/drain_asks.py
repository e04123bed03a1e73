"""Asking a person before the servers of a failed build are restarted: it is about every one of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, Literal

from smgate.domain import decisions, drain_budget, exposure, rulings, state_changes
from smgate.domain.events import Event
from smgate.domain.state import Fleet, Unit
from smgate.domain.state_changes import Change

CODE: Final = "drain"
"""Of the held changes that ask for it; their subject is the kernel key."""

Answer = Literal["unasked", "asked", "agreed", "declined"]


def answer(fleet: Fleet, kernel_key: str) -> Answer:
    """Whether the servers of a failed key may be restarted."""
    if fleet.policy.drain_on_failed_build == "auto":
        return "agreed"
    change = of_key(fleet, kernel_key)
    if change is None:
        return "unasked"
    if change.open:
        return "asked"
    return "agreed" if change.ended == "accepted" else "declined"


def of_key(fleet: Fleet, kernel_key: str) -> Change | None:
    """The change about this failure of a key; one about an earlier failure says nothing."""
    change = state_changes.held(fleet.changes, CODE, kernel_key)
    evidence = fleet.keys.get(kernel_key)
    if change is None or evidence is None or change.position < evidence.suspect_position:
        return None
    return change


def plan(fleet: Fleet, failed: Mapping[str, list[str]]) -> Iterator[Event]:
    """Changes to hold, and those that nobody needs to answer any more.

    Args:
        fleet: the folded log.
        failed: by failed kernel key, the units that run the target on it.
    """
    for key, units in failed.items():
        if answer(fleet, key) == "unasked":
            yield _held(fleet, key, [fleet.units[name] for name in units])
    for change in fleet.waiting_changes():
        if change.code == CODE:
            moot = change.subject not in failed or answer(fleet, change.subject) == "agreed"
            if moot:
                yield rulings.ChangeWithdrawn(
                    change=change.id,
                    reason="No server waits for this answer any more.",
                    code="no_longer_needed",
                )


def _held(fleet: Fleet, key: str, units: list[Unit]) -> decisions.ChangeHeld:
    """What restarting them costs, in numbers."""
    policy = fleet.policy
    sm = fleet.keys[key].sm
    standing = drain_budget.budget(fleet, sm)
    gpus = {uuid for unit in units for rank in unit.ranks.values() for uuid in rank.gpu_uuids}
    owners = sum(drain_budget.restarter(unit) == "external" for unit in units)
    hooks = len(units) - owners
    hours = -(-hooks // policy.max_units_down) * policy.drain_timeout_s / 3600
    at_once = min(hooks, policy.max_units_down)
    serving = max(0, standing.live - len(standing.down) - at_once)
    share = serving / standing.live if standing.live else 0.0
    by_hooks = (
        f" {hooks} by their hooks, {at_once} at a time, in at most {hours:g} h, while {serving} of "
        f"{standing.live} go on serving."
    )
    by_owners = f" {owners} by their owners."
    return decisions.ChangeHeld(
        code=CODE,
        subject=key,
        units=tuple(unit.id for unit in units),
        sentence=f"Kernel key {key} failed, and servers of SM {sm} still run the target on it: "
        f"{len(units)}. They come onto the safe value at their next start; restarting them now needs a person.",
        would=f"Servers to restart: {len(units)}, with {len(gpus)} GPUs."
        + (by_hooks if hooks else "")
        + (by_owners if owners else ""),
        numbers={
            "units": float(len(units)),
            "gpus": float(len(gpus)),
            "restarts": float(len(units)),
            "restarts_by_owners": float(owners),
            "hours_at_most": hours,
            "serving_share_at_least": round(share, 4),
        },
        timeout_s=policy.change_timeout_s,
    )


def declined(fleet: Fleet, kernel_key: str, unit: Unit) -> drain_budget.Stands:
    """Why a unit of a failed key is not restarted though it runs the target."""
    change = of_key(fleet, kernel_key)
    assert change is not None
    sm = exposure.unit_sm(fleet, unit) or "unknown"
    return drain_budget.Stands(
        code="declined",
        owner="unit owner",
        sentence=f"{change.id}, which would restart the servers of this key on SM {sm}, was withdrawn.",
        next_step=f"Restart the server yourself, or smgate unit pin {unit.id} off restarts it.",
    )
