"""Two rollouts beside each other: whom each takes when, what else differs, and what it costs."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from smgate.domain import plan_ahead, plan_check, rollout_commands
from smgate.domain.policy import RolloutPlan
from smgate.domain.state import Fleet

SIDE_BY_SIDE: Final = (
    "eligible_units",
    "eligible_gpus",
    "restarts",
    "worst_exposed_units",
    "least_duration_s",
)


def diff(
    fleet: Fleet, other: Fleet, before: str, after: str | RolloutPlan, now_us: int
) -> dict[str, Any]:
    """A rollout of the fleet beside another one, or beside a plan that nobody proposed.

    Args:
        fleet: a copy; it is changed here.
        other: another one.
        before: a rollout of the fleet.
        after: another, or a plan.
        now_us: the moment in question.

    Raises:
        RejectedError: `unknown_rollout`, or the plan is not valid.
    """
    old_plan = rollout_commands.find_rollout(fleet, before).plan
    if isinstance(after, RolloutPlan):
        plan_check.validate(after, fleet.gates)
    new_plan = (
        after
        if isinstance(after, RolloutPlan)
        else rollout_commands.find_rollout(fleet, after).plan
    )
    old = plan_ahead.course(fleet, fleet.rollouts[before], now_us)
    new = (
        plan_ahead.foresee(other, after, now_us)
        if isinstance(after, RolloutPlan)
        else plan_ahead.course(other, other.rollouts[after], now_us)
    )
    return {
        "before": old_plan.id,
        "after": new_plan.id,
        "as_of_position": old["as_of_position"],
        "now": old["now"],
        "same_cohorts": old_plan.id == new_plan.id,
        "changed": _changed(old_plan, new_plan),
        "waves": _waves(_members(old), _members(new)),
        "numbers": {name: {"before": old[name], "after": new[name]} for name in SIDE_BY_SIDE},
    }


def _changed(before: RolloutPlan, after: RolloutPlan) -> list[dict[str, Any]]:
    """Fields of the plans that differ, but for their ids."""
    fields = (field.name for field in dataclasses.fields(before) if field.name != "id")
    return [
        {"field": name, "before": _plain(old), "after": _plain(new)}
        for name in fields
        if (old := getattr(before, name)) != (new := getattr(after, name))
    ]


def _plain(value: object) -> Any:  # noqa: ANN401  JSON
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return [_plain(one) for one in value] if isinstance(value, tuple) else value


def _members(shown: dict[str, Any]) -> list[list[str]]:
    return [row["units"] for row in shown["waves"]]


def _waves(before: list[list[str]], after: list[list[str]]) -> list[dict[str, Any]]:
    """Per wave, who enters it on one side alone, and who on the other side enters another."""
    was = {unit: number for number, units in enumerate(before) for unit in units}
    is_ = {unit: number for number, units in enumerate(after) for unit in units}
    rows = []
    for number in range(max(len(before), len(after))):
        old = before[number] if number < len(before) else []
        new = after[number] if number < len(after) else []
        rows.append(
            {
                "wave": number,
                "before_units": len(old),
                "after_units": len(new),
                "gained": [unit for unit in new if unit not in was],
                "lost": [unit for unit in old if unit not in is_],
                "moved": [
                    {"unit": unit, "from_wave": was[unit]}
                    for unit in new
                    if was.get(unit, number) != number
                ],
            }
        )
    return rows
