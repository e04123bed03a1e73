"""Owns saying what a command would change, before it is given: decided anew on a copy of the fleet.

Of a known issue it says besides what it matches, which is not the same: an issue that informs changes
nothing, and a unit may be on the safe value already.
"""

from __future__ import annotations

import dataclasses
import itertools
import pickle
from collections.abc import Sequence
from typing import Any, Final

from smgate.domain import evolve, issues, plan_ahead, plan_diff, rules, rulings
from smgate.domain.events import Event, Recorded
from smgate.domain.policy import KnownIssue, RolloutPlan
from smgate.domain.state import Fleet
from smgate.service import records

CHANGES_SHOWN_MAX: Final = 200
NAMES_SHOWN_MAX: Final = 200
BUILDS_SHOWN_MAX: Final = 50


def snapshot(fleet: Fleet) -> bytes:
    """The fleet, to be looked at later without holding it still. Much cheaper than a deep copy."""
    return pickle.dumps(fleet, protocol=pickle.HIGHEST_PROTOCOL)


def of_events(taken: bytes, events: Sequence[Event], *, by: str, now_us: int) -> dict[str, Any]:
    """Units whose decision would be another, at their next start, if these events stood.

    What a started rollout goes on to grant later is not in it: that waits for evidence and waves.
    """
    fleet: Fleet = pickle.loads(taken)  # noqa: S301  made by `snapshot` a moment ago
    units = [name for name in sorted(fleet.units) if fleet.units[name].live]
    before = {name: _decided(fleet, name, now_us) for name in units}
    matched = [_matched(fleet, issue, now_us) for issue in _issues(fleet, events)]
    for version, event in enumerate(events, start=1):
        evolve.evolve(
            fleet,
            Recorded(
                position=fleet.position + 1,
                at_us=now_us,
                occurred_at_us=now_us,
                stream=records.OPERATORS,
                version=version,
                actor=records.operator_actor(by),
                event=event,
            ),
        )
    after = {name: _decided(fleet, name, now_us) for name in units}
    changes = [
        {"unit": name, "before": before[name], "after": after[name]}
        for name in units
        if before[name] != after[name]
    ]
    shown: dict[str, Any] = {
        "units": len(units),
        "changed_units": len(changes),
        "changes": changes[:CHANGES_SHOWN_MAX],
    }
    return {**shown, "issues": matched} if matched else shown


def of_plan(taken: bytes, plan: RolloutPlan, *, now_us: int) -> dict[str, Any]:
    """What a rollout plan would do: see `plan_ahead.foresee`.

    Raises:
        RejectedError: the plan is not valid.
    """
    fleet: Fleet = pickle.loads(taken)  # noqa: S301  made by `snapshot` a moment ago
    return plan_ahead.foresee(fleet, plan, now_us)


def of_two(taken: bytes, before: str, after: str | RolloutPlan, *, now_us: int) -> dict[str, Any]:
    """A rollout beside another, or beside a plan: see `plan_diff.diff`.

    Raises:
        RejectedError: a rollout is unknown, or the plan is not valid.
    """
    fleet, other = (pickle.loads(taken) for _ in range(2))  # noqa: S301  made a moment ago
    return plan_diff.diff(fleet, other, before, after, now_us)


def _issues(fleet: Fleet, events: Sequence[Event]) -> list[KnownIssue]:
    """The issues that these events publish or withdraw."""
    found = [event.issue for event in events if isinstance(event, rulings.IssuePublished)]
    gone = [event.issue_id for event in events if isinstance(event, rulings.IssueWithdrawn)]
    return [*found, *(fleet.issues[name] for name in gone if name in fleet.issues)]


def _matched(fleet: Fleet, issue: KnownIssue, now_us: int) -> dict[str, Any]:
    found = issues.reach(fleet, issue, now_us=now_us)
    return {
        "id": issue.id,
        "severity": issue.severity,
        "matched_units": len(found.units),
        "unit_names": list(found.units[:NAMES_SHOWN_MAX]),
        "unknown_units": len(found.unknown_units),
        "unknown_unit_names": list(found.unknown_units[:NAMES_SHOWN_MAX]),
        "matched_builds": len(found.builds),
        "builds": [
            {
                **dataclasses.asdict(build),
                "matched_units": len(units),
                "unit_names": list(units[:NAMES_SHOWN_MAX]),
            }
            for build, units in itertools.islice(found.builds.items(), BUILDS_SHOWN_MAX)
        ],
    }


def _decided(fleet: Fleet, unit: str, now_us: int) -> dict[str, str | None]:
    event = rules.decide_unit(fleet, unit, now_us).event
    return {"form": event.form, "value": event.value, "code": event.code}
