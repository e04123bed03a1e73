"""After a restore: what nodes were told by the log that was lost stands where it is more careful.

Nothing widens until a person finishes the restore: not what the lost part of the log had ended, nor
what nobody can know of.
"""

from __future__ import annotations

from smgate.domain import decisions, guard
from smgate.domain.context import Answer, Context
from smgate.domain.events import Recorded
from smgate.domain.facts import DirectiveHeld, HeldUnit
from smgate.domain.state import Fleet, Unit
from smgate.domain.state_restore import HELD_CODE, UNFINISHED_CODE, Careful, Restore
from smgate.domain.values import Form


def begin(fleet: Fleet, recorded: Recorded, event: decisions.LogRestored) -> None:
    """The log was restored: from now on nothing widens."""
    nodes = {name for name, node in fleet.nodes.items() if not node.retired}
    fleet.restore = Restore(
        position=recorded.position,
        incarnation=event.incarnation,
        since_led_us=fleet.led_us(recorded.at_us),
        finished=False,
        nodes=len(nodes),
        waiting=nodes,
    )


def take_held(fleet: Fleet, recorded: Recorded, node: str, fact: DirectiveHeld) -> None:
    """A node says what it holds."""
    restore = fleet.restore
    if not restore.position or fact.restored_as != restore.incarnation:
        return  # said after an earlier restore, and sent again after this one
    restore.waiting.discard(node)
    differing: set[str] = set()
    for held in fact.units:
        unit = fleet.units.get(held.unit)
        told = unit.override if unit is not None and unit.live else None
        if told is not None and told.value != held.value:
            differing.add(held.unit)
        if _more_careful(fleet, held):
            restore.careful[held.unit] = Careful(
                value=held.value, node=node, code=held.code, position=recorded.position
            )
    if differing:
        restore.unsettled[node] = differing


def _more_careful(fleet: Fleet, held: HeldUnit) -> bool:
    """True if what a node holds is more careful than all that is known to stand for its unit."""
    unit, before = fleet.units.get(held.unit), fleet.restore.careful.get(held.unit)
    boldness = guard.boldness(fleet, held.value)
    if before is not None:
        return boldness < guard.boldness(fleet, before.value)
    if unit is None or not decided(unit):
        return boldness == guard.SAFE  # born after the backup: it stands against the target
    told = unit.override
    return told is not None and unit.live and boldness < guard.boldness(fleet, told.value)


def decided(unit: Unit) -> bool:
    """True if this log knows a launch of the unit and has decided it."""
    return unit.launch is not None and unit.override is not None


def settle(fleet: Fleet, event: decisions.OverrideSet) -> None:
    """The unit was decided with what its nodes hold in view."""
    unit, unsettled = event.unit, fleet.restore.unsettled
    careful = fleet.restore.careful.get(unit)
    same = careful is not None and event.value == careful.value
    if same and fleet.restore.finished and event.code != HELD_CODE:
        del fleet.restore.careful[unit]  # this log says the same by itself
    for node in [name for name, units in unsettled.items() if unit in units]:
        unsettled[node].discard(unit)
        if not unsettled[node]:
            del unsettled[node]


def to_confirm(fleet: Fleet, unit: Unit) -> bool:
    """True if a node holds another thing than the log says: it is decided anew, also if it is the same."""
    unsettled = fleet.restore.unsettled
    return bool(unsettled) and any(unit.id in units for units in unsettled.values())


def may_be_told(fleet: Fleet, node: str) -> bool:
    """False while a node may be told what is wider than what it holds: it has not said, or just now."""
    restore = fleet.restore
    unsettled = restore.unsettled.get(node, ())
    return node not in restore.waiting and not any(fleet.units[name].live for name in unsettled)


def in_doubt(fleet: Fleet, unit: Unit) -> bool:
    """True if a restore may change what a unit gets."""
    return not fleet.restore.finished or unit.id in fleet.restore.careful


def instead(
    ctx: Context, answer: Answer, value: str | None
) -> tuple[Answer, Form, str | None] | None:
    """What a unit gets in place of what the rules say while a restore leaves that in doubt."""
    fleet, unit = ctx.fleet, ctx.unit
    careful = fleet.restore.careful.get(unit.id)
    if careful is not None and guard.boldness(fleet, value) > guard.boldness(fleet, careful.value):
        return _careful_answer(ctx, answer, careful)
    if fleet.restore.finished or not guard.is_target(fleet, value):
        return None
    told = unit.override
    stands = told is not None and told.value == value
    starting = unit.launch is not None and unit.launch.decided is None
    if stands and not (starting and any(m.node in fleet.restore.waiting for m in ctx.members)):
        return None
    safe = ctx.safe_value()
    waiting = len(fleet.restore.waiting)
    doubted = Answer(
        kind="safe",
        code=UNFINISHED_CODE,
        sentence="The log was restored from a backup: nothing widens until that is finished "
        f"({waiting} of {fleet.restore.nodes} nodes have not said what they were told).",
        facts=(*answer.facts, fleet.restore.position),
        also=(answer.code, *answer.also),
    )
    return doubted, "untouched" if safe is None else "append", safe


def _careful_answer(
    ctx: Context, answer: Answer, careful: Careful
) -> tuple[Answer, Form, str | None]:
    stands = careful.value is None or not ctx.raises(careful.value)
    value = careful.value if stands else None
    said = "to append nothing" if careful.value is None else f"to append {careful.value}"
    kept = Answer(
        kind="untouched" if value is None else "safe",
        code=HELD_CODE,
        sentence=f"The log was restored from a backup. Before that {careful.node} had been told "
        f"{said} ({careful.code}), which is more careful than what this log says.",
        facts=(*answer.facts, careful.position),
        also=(answer.code, *answer.also),
    )
    return kept, "untouched" if value is None else "append", value
