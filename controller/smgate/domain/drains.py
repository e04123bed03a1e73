"""Taking back by restart: which running servers must come onto the safe value, and when.

A backend is a launch argument, so a decision alone changes nothing that runs. What must end here and
now (a pin, a failed check, a fault) is restarted unit by unit, never more of an SM at once than the
policy allows; what failed as a build waits for a person, since it is about every server of the key.
The kill switch and known issues take effect at the next start and restart nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from smgate.domain import (
    context,
    decisions,
    drain_asks,
    drain_budget,
    exposure,
    readings,
    rules_end,
)
from smgate.domain.events import Event
from smgate.domain.state import Fleet, Unit
from smgate.domain.state_drains import Drain

AT_ONCE: Final = ("self_test_failed", "unit_disagreed_here", "fault_in_service")
"""What went wrong on these very GPUs. `rolled_back_here` is not among them: it is what a person took
back, from the next start on (in logs of before, what a failed build left on GPUs)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Why a running server must be restarted onto the safe value."""

    code: str
    sentence: str
    kernel_key: str | None = None
    """The failed build's key, where a person must agree first; None where nobody is asked."""


def reason(ctx: context.Context) -> Need | None:
    """The rule that takes the unit back by restart, whatever other rule decides it."""
    for member in ctx.members:
        for found in (
            rules_end.pinned_off(ctx, member),
            rules_end.remembered(ctx, member, AT_ONCE),
        ):
            if isinstance(found, context.Answer):
                return Need(code=found.code, sentence=found.sentence)
    for member in ctx.members:
        found = rules_end.build_failed(ctx, member)
        if isinstance(found, context.Answer):
            return Need(code=found.code, sentence=found.sentence, kernel_key=member.kernel_key)
    return None


def need(fleet: Fleet, unit: Unit, now_us: int) -> Need | None:
    """Why this unit needs a restart; None if it needs none, or one would bring nothing.

    It must be attested on the target in its current launch, and that launch must not have been told
    the safe value already: then it would come back on the target.
    """
    launch = unit.launch
    told = None if launch is None else launch.decided
    if launch is None or told is None or told is unit.override or not unit.live:
        return None
    if exposure.is_safe_value(fleet, told) or not exposure.is_safe_value(fleet, unit.override):
        return None
    running = (i for i in unit.live_instances() if i.launch_id in launch.launch_ids)
    if not any(readings.on_target(fleet, instance) for instance in running):
        return None
    return reason(context.of_unit(fleet, unit, now_us))


def needs(fleet: Fleet, now_us: int) -> dict[str, Need]:
    """`need` of every unit that has one, by name."""
    found = ((name, need(fleet, fleet.units[name], now_us)) for name in sorted(fleet.units))
    return {name: one for name, one in found if one is not None}


def plan(fleet: Fleet, needs: Mapping[str, Need], now_us: int) -> list[Event]:
    """What to record of drains now: those that ended, else those to order.

    Args:
        fleet: the folded log.
        needs: `need` of every unit that has one.
        now_us: the leader's time.
    """
    ended = [
        event
        for name in sorted(fleet.drains)
        if (event := _ending(fleet, name, fleet.drains[name], now_us)) is not None
    ]
    return (
        ended or list(drain_asks.plan(fleet, _failed(needs))) or list(_orders(fleet, needs, now_us))
    )


def _failed(needs: Mapping[str, Need]) -> dict[str, list[str]]:
    """By failed kernel key, the units that need a restart because of it."""
    found: dict[str, list[str]] = {}
    for name, need_ in needs.items():
        if need_.kernel_key is not None:
            found.setdefault(need_.kernel_key, []).append(name)
    return found


def _agreed(fleet: Fleet, need_: Need) -> bool:
    """True if nobody is asked first, or a person agreed."""
    return need_.kernel_key is None or drain_asks.answer(fleet, need_.kernel_key) == "agreed"


def _orders(fleet: Fleet, needs: Mapping[str, Need], now_us: int) -> Iterator[Event]:
    queues: dict[str, list[str]] = {}
    for name in needs:
        unit = fleet.units[name]
        told = drain_budget.restarter(unit) == "hook" and not drain_budget.silent_nodes(fleet, unit)
        if told and name not in fleet.drains and _agreed(fleet, needs[name]):
            queues.setdefault(exposure.unit_sm(fleet, unit) or "unknown", []).append(name)
    for sm in sorted(queues):
        left = drain_budget.budget(fleet, sm)
        for name in sorted(queues[sm], key=lambda one: _turn(fleet, one, needs[one])):
            if left.stands(name) is None:
                left.take(name)
                yield _order(fleet, fleet.units[name], needs[name], now_us)


def _turn(fleet: Fleet, name: str, need_: Need) -> tuple[bool, int, str]:
    """First what went wrong on the unit's own GPUs or a person pinned, then who waits longest."""
    taken_back = fleet.units[name].taken_back
    since = 0 if taken_back is None else taken_back.position
    return need_.kernel_key is not None, since, name


def _order(fleet: Fleet, unit: Unit, need_: Need, now_us: int) -> decisions.DrainOrdered:
    assert unit.launch is not None
    assert unit.override is not None
    timeout_s = fleet.policy.drain_timeout_s
    instances: dict[str, dict[str, int]] = {}
    for one in unit.live_instances():
        if one.launch_id in unit.launch.launch_ids:
            instances.setdefault(one.node, {})[one.id] = one.restarts
    return decisions.DrainOrdered(
        unit=unit.id,
        code=need_.code,
        sentence=need_.sentence,
        launch_ids=unit.launch.launch_ids,
        nodes=unit.override.nodes,
        timeout_s=timeout_s,
        deadline_us=now_us + timeout_s * 1_000_000,
        instances=instances,
    )


def stands(
    fleet: Fleet, unit: Unit, need_: Need, budgets: dict[str, drain_budget.Budget]
) -> drain_budget.Stands | None:
    """What stands before the order; None if it is ordered, or its change is listed by itself.

    Args:
        fleet: the folded log.
        unit: it has a need.
        need_: that need.
        budgets: by SM, filled here as they are looked at.
    """
    if unit.id in fleet.drains:
        return None
    if not _agreed(fleet, need_):
        key = need_.kernel_key or ""
        asked = drain_asks.answer(fleet, key) != "declined"
        return None if asked else drain_asks.declined(fleet, key, unit)
    if drain_budget.restarter(unit) == "external":
        return drain_budget.Stands(
            code="external",
            owner="unit owner",
            sentence="its owner restarts it.",
            next_step="Restart the server; it starts on the safe value.",
        )
    silent = drain_budget.silent_nodes(fleet, unit)
    if silent:
        return drain_budget.Stands(
            code="silent",
            owner="operator",
            sentence=f"{', '.join(silent)} cannot be told.",
            next_step="Look at smgate-agent status there, or restart the server by hand.",
        )
    sm = exposure.unit_sm(fleet, unit) or "unknown"
    if sm not in budgets:
        budgets[sm] = drain_budget.budget(fleet, sm)
    return budgets[sm].stands(unit.id)


def _ending(fleet: Fleet, name: str, drain: Drain, now_us: int) -> Event | None:
    """How an order ends now; None if it goes on."""
    unit = fleet.units[name]
    if drain_budget.serves_safely(fleet, unit):
        return decisions.DrainFinished(unit=name, order=drain.order, code="safe")
    if not unit.live or all(fleet.nodes[n].retired for n in drain.nodes if n in fleet.nodes):
        return decisions.DrainFinished(unit=name, order=drain.order, code="gone")
    safe = exposure.is_safe_value(fleet, unit.override)
    if not safe or reason(context.of_unit(fleet, unit, now_us)) is None:
        return decisions.DrainFinished(unit=name, order=drain.order, code="reason_lifted")
    failure = None if drain.failed is not None else _failure(fleet, unit, drain, now_us)
    if failure is None:
        return None
    code, sentence = failure
    return decisions.DrainFailed(unit=name, order=drain.order, code=code, sentence=sentence)


HOOK_SENTENCES: Final = {
    "failed": "The drain hook failed with exit code {exit_code}.",
    "timeout": "The drain hook did not end in its time and was killed.",
    "interrupted": "The agent ended while the drain hook ran: nobody knows what it did.",
    "no_hook": "Its launch says that a hook restarts it, and its agent has none.",
}


def _failure(fleet: Fleet, unit: Unit, drain: Drain, now_us: int) -> tuple[str, str] | None:
    launch_ids = unit.launch.launch_ids if unit.launch is not None else ()
    restarted = not set(launch_ids).intersection(drain.launch_ids)
    if restarted and any(
        readings.on_target(fleet, one)
        for one in unit.live_instances()
        if one.launch_id in launch_ids
    ):
        return "still_on_target", (
            "It was restarted and runs the target again: it was not told, or something overrules "
            "what it is told."
        )
    if drain.hook in HOOK_SENTENCES and not restarted:
        sentence = HOOK_SENTENCES[drain.hook].format(exit_code=drain.hook_exit_code)
        return f"hook_{drain.hook}", sentence
    if fleet.led_us(now_us) - drain.since_led_us < drain.timeout_s * 1_000_000:
        return None
    if restarted:
        return "timed_out", f"It was restarted and does not serve after {drain.timeout_s} s."
    if drain.hook == "succeeded":
        return "timed_out", f"The hook succeeded, and nothing was restarted in {drain.timeout_s} s."
    return "timed_out", f"No agent ran the drain hook in {drain.timeout_s} s."
