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
        if unit is None or not unit.live or unit.override is None:
            continue
        if unit.override.value == held.value:
            continue
        differing.add(held.unit)
        told, before = unit.override.value, restore.careful.get(held.unit)
        least = told if before is None else before.value
        if guard.boldness(fleet, held.value) < guard.boldness(fleet, least):
            restore.careful[held.unit] = _careful(node, held, recorded)
    if differing:
        restore.unsettled[node] = differing


def _careful(node: str, held: HeldUnit, recorded: Recorded) -> Careful:
    return Careful(value=held.value, node=node, code=held.code, position=recorded.position)


def settle(fleet: Fleet, unit: str) -> None:
    """The unit was decided with what its nodes hold in view."""
    unsettled = fleet.restore.unsettled
    for node in [name for name, units in unsettled.items() if unit in units]:
        unsettled[node].discard(unit)
        if not unsettled[node]:
            del unsettled[node]


def to_confirm(fleet: Fleet, unit: Unit) -> bool:
    """True if a node holds another thing than the log says: it is decided anew, also if it is the same."""
    return any(unit.id in units for units in fleet.restore.unsettled.values())


def may_be_told(fleet: Fleet, node: str) -> bool:
    """False while a node may be told what is wider than what it holds: it has not said, or just now."""
    restore = fleet.restore
    unsettled = restore.unsettled.get(node, ())
    return node not in restore.waiting and not any(fleet.units[name].live for name in unsettled)


def in_doubt(fleet: Fleet) -> bool:
    """True if a restore may change what some unit gets."""
    return bool(fleet.restore.careful) or not fleet.restore.finished


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
