"""Planning what is not done yet: what new rules would change, and what is too much at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from smgate.domain import decisions, guard, restoring, rules, rulings
from smgate.domain.events import Event
from smgate.domain.state import Fleet
from smgate.domain.state_changes import Change
from smgate.domain.values import Difference

NO_CAUSE = "no_cause"


def on_new_rules(fleet: Fleet, *, version: str, now_us: int) -> tuple[Event, ...]:
    """What a new leader records beside taking over: that its rules are new, and what that would change.

    Nothing if the leader before it had the same rules, or there was none. No command or fact is the
    cause of what is held: the same fleet was told otherwise by the rules before.
    """
    before = fleet.guard.rules_version
    if before in ("", version):
        return ()
    changed = decisions.RulesChanged(before=before, after=version)
    found = differences(fleet, sorted(fleet.units), now_us)
    if not found:
        return (changed,)
    held = _held(
        fleet,
        NO_CAUSE,
        subject=f"rules {version}",
        found=found,
        sentence=f"Rules {version} would tell {_units(len(found))} something else than rules "
        f"{before} did, though nothing happened there.",
    )
    return changed, held


def differences(fleet: Fleet, names: Iterable[str], now_us: int) -> list[Difference]:
    """What the rules alone would change now and may not without a second look."""
    found = []
    for name in names:
        unit = fleet.units.get(name)
        if unit is None or not unit.live or unit.override is None:
            continue
        decided = rules.decide_unit(fleet, name, now_us, unheld=True).event
        if unit.launch is None or unit.launch.decided is not None:
            decided = replace(decided, launch_ids=())  # it is about the next launch
        one = guard.difference(fleet, decided)
        if one is not None:
            found.append(one)
    return found


def waiting(fleet: Fleet, units: Iterable[str], now_us: int) -> list[Event]:
    """Plans that come to wait for a person, and those that nobody needs to answer any more."""
    return [*_no_longer(fleet, units), *_after_restore(fleet, now_us)]


def _no_longer(fleet: Fleet, units: Iterable[str]) -> list[Event]:
    """What was too much at once and is not planned any more; unlike new rules, it had a cause."""
    limited = [change for change in fleet.waiting_changes() if change.code == guard.CHANGE_LIMIT]
    looked_at = set(units) if limited else set()
    return [
        rulings.ChangeWithdrawn(
            change=change.id, reason="None of it is planned any more.", code="no_longer_needed"
        )
        for change in limited
        if not looked_at.isdisjoint(change.units) and not still_planned(fleet, change)
    ]


def _after_restore(fleet: Fleet, now_us: int) -> list[Event]:
    """Once a restore is finished: the units that were told something more careful wait for a person."""
    if not fleet.restore.finished:
        return []
    units = (fleet.units.get(name) for name in sorted(fleet.restore.careful))
    # One that this log does not know yet waits once it has launched.
    found = [_of_restore(fleet, u.id, now_us) for u in units if u and restoring.decided(u)]
    return [_held_more_carefully(fleet, found)] if found else []


def _held_more_carefully(fleet: Fleet, found: Sequence[Difference]) -> Event:
    return _held(
        fleet,
        guard.RESTORE,
        subject=f"log {fleet.restore.incarnation}",
        found=found,
        sentence=f"Before the restore {_units(len(found))} had been told something more careful than "
        "this log says; that stands.",
    )


def _of_restore(fleet: Fleet, name: str, now_us: int) -> Difference:
    careful = fleet.restore.careful[name]
    after = rules.decide_unit(fleet, name, now_us, unheld=True).event
    return Difference(
        unit=name,
        before=careful.value,
        before_code=careful.code,
        after=after.value,
        after_code=after.code,
    )


def limited(fleet: Fleet, events: Sequence[Event], now_us: int) -> list[Event]:
    """The same events, or those that may pass and the plan that is held, if they change too much."""
    changing = {one.unit: one for one in (_change(fleet, event) for event in events) if one}
    if not changing:
        return list(events)
    window_s, limit = fleet.policy.change_window_s, fleet.policy.change_limit_units
    already = guard.made(fleet, now_us)
    if already + len(changing) <= limit:
        return list(events)
    found = [changing[name] for name in sorted(changing)]
    made = f" after {already} already" if already else ""
    held = _held(
        fleet,
        guard.CHANGE_LIMIT,
        subject="fleet",
        found=found,
        sentence=f"One plan would change {_units(len(found))}{made} within {window_s} s; the policy "
        f"allows {limit}.",
    )
    return [held, *(event for event in events if getattr(event, "unit", None) not in changing)]


def _change(fleet: Fleet, event: Event) -> Difference | None:
    if isinstance(event, decisions.OverrideSet):
        one = guard.difference(fleet, event)
    elif isinstance(event, decisions.Granted):
        one = _of_grant(fleet, event)
    else:
        return None
    passes = one is None or one.unit in fleet.guard.let_through or one.unit in fleet.guard.held
    return None if passes else one


def _of_grant(fleet: Fleet, event: decisions.Granted) -> Difference | None:
    """A grant widens what its unit is told in the next breath."""
    before = fleet.units[event.unit].override
    gate = None if before is None else fleet.gate_of(before.given_for.architecture)
    if before is None or gate is None or before.value == gate.target:
        return None
    return Difference(
        unit=event.unit,
        before=before.value,
        before_code=before.code,
        after=gate.target,
        after_code=event.code,
    )


def _held(
    fleet: Fleet, code: str, *, subject: str, found: Sequence[Difference], sentence: str
) -> decisions.ChangeHeld:
    widen = sum(guard.is_target(fleet, one.after) for one in found)
    away = sum(one.after is None for one in found)
    effects = {"get the target": widen, "be left to SGLang": away}
    effects["get the safe value"] = len(found) - widen - away
    told = ", ".join(f"{_units(n)} would {what}" for what, n in effects.items() if n)
    return decisions.ChangeHeld(
        code=code,
        subject=subject,
        units=tuple(one.unit for one in found),
        sentence=sentence,
        would=f"At the next start {told}.",
        numbers={"units": float(len(found)), "to_target": float(widen)},
        timeout_s=fleet.policy.change_timeout_s,
        differences=tuple(found),
    )


def _units(count: int) -> str:
    return "1 unit" if count == 1 else f"{count} units"


def still_planned(fleet: Fleet, change: Change) -> list[Difference]:
    """What of a held plan the rules would do again at once if it were withdrawn."""
    names = [one.unit for one in change.differences if one.unit in fleet.guard.held]
    return differences(fleet, names, fleet.now_us)
