"""The change guard: which changes of what units are told need a second look, and what holds meanwhile.

A change of a standing override is one of the value that the unit's next launch appends. One towards
the safe value is never held: it restarts nothing and is what we fall back to. All others are: to the
target, and to nothing.
"""

from __future__ import annotations

from smgate.domain.context import Answer, Context
from smgate.domain.decisions import ChangeHeld, OverrideSet
from smgate.domain.events import Recorded
from smgate.domain.state import Fleet
from smgate.domain.state_guard import Held
from smgate.domain.state_restore import HELD_CODE
from smgate.domain.values import Difference, Form

SECOND_US = 1_000_000
SAFE = 1
"""The boldness of a safe value."""
RESTORE = "restore"
"""Code of what is held since a restore."""
CHANGE_LIMIT = "change_limit"
"""Code of what is held because it is too much at once."""


def is_target(fleet: Fleet, value: str | None) -> bool:
    """True for the target of any gate."""
    return any(value == gate.target for gate in fleet.gates.values())


def boldness(fleet: Fleet, value: str | None) -> int:
    """Nothing, then a safe value, then the target: the higher, the less careful."""
    return 0 if value is None else SAFE + is_target(fleet, value)


def difference(fleet: Fleet, after: OverrideSet) -> Difference | None:
    """The change of a standing override that a decision makes; None if it needs no second look.

    A new launch that is told nothing has itself for a cause; one that is told the target is widening.
    To keep what was appended last changes nothing.
    """
    before = fleet.units[after.unit].override
    if before is None or before.value == after.value:
        return None
    if after.form == "keep" or after.code == HELD_CODE:
        return None
    widens = is_target(fleet, after.value)
    if not widens and (after.value is not None or after.launch_ids):
        return None
    return Difference(
        unit=after.unit,
        before=before.value,
        before_code=before.code,
        after=after.value,
        after_code=after.code,
    )


def take_override(fleet: Fleet, recorded: Recorded, event: OverrideSet) -> None:
    """Count a change, before it is folded."""
    unit, guard = fleet.units[event.unit], fleet.guard
    if unit.override is not None and unit.override.value != event.value:
        guard.let_through.discard(event.unit)
    if difference(fleet, event) is None:
        return
    led_us = fleet.led_us(recorded.at_us)
    since_us = led_us - fleet.policy.change_window_s * SECOND_US
    guard.made = [one for one in guard.made if one[0] > since_us]
    guard.made.append((led_us, event.unit))


def made(fleet: Fleet, now_us: int) -> int:
    """How many standing overrides were changed within the window."""
    since_us = fleet.led_us(now_us) - fleet.policy.change_window_s * SECOND_US
    return sum(at_us > since_us for at_us, _ in fleet.guard.made)


def take_held(fleet: Fleet, recorded: Recorded, event: ChangeHeld) -> None:
    """These changes wait for a person from now on."""
    for one in event.differences:
        fleet.guard.held[one.unit] = Held(
            change=f"c{recorded.position}",
            after=one.after,
            after_code=one.after_code,
            code=event.code,
        )


def release(fleet: Fleet, change: str, *, accepted: bool) -> None:
    """A held change waits no more."""
    guard = fleet.guard
    for unit in [name for name, held in guard.held.items() if held.change == change]:
        del guard.held[unit]
        if accepted:
            guard.let_through.add(unit)


def instead(
    ctx: Context, answer: Answer, value: str | None
) -> tuple[Answer, Form, str | None] | None:
    """What a unit whose change is held gets in place of what the rules say; None if that may pass.

    What it was told last, if that was for the same build and layout, else never the target. What the
    rules say now may pass if it is another thing than what is held and no target: something happened.
    """
    held, told = ctx.held, ctx.unit.override
    if held is None or told is None or value == told.value or answer.kind == "keep":
        return None
    widens = is_target(ctx.fleet, value)
    if held.code == RESTORE:
        if boldness(ctx.fleet, value) < boldness(ctx.fleet, told.value):
            return None
    elif not widens and (value, answer.code) != (held.after, held.after_code):
        return None
    also = ("change_held", *dict.fromkeys((answer.code, *answer.also)))
    if told.given_for == ctx.given_for and not (told.value and ctx.raises(told.value)):
        # Of a grant or a restore the reason stands; any other has been taken away, or is of rules
        # that are no more, and what it says to do would lead nowhere.
        over = held.code != RESTORE and not is_target(ctx.fleet, told.value)
        kept = Answer(
            kind=answer.kind,
            code="change_held" if over else told.code,
            sentence=f"Change {held.change} is held: until a person accepts it, this unit keeps "
            f"what it was told.{'' if over else f' {told.sentence}'}",
            facts=told.facts,
            also=also[1:] if over else also,
        )
        return kept, told.form, told.value
    if not widens:
        return None
    safe = ctx.safe_value()
    fallen = Answer(
        kind="safe",
        code="change_held",
        sentence=f"Change {held.change} is held: until a person accepts it, no launch of this unit "
        "gets the target anew.",
        facts=answer.facts,
        also=also[1:],
    )
    return (fallen, "untouched" if safe is None else "append", safe)
