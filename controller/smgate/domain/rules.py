"""The decision for one unit: the table of rules, first that applies wins, most careful member wins.

Two questions, never one. "Must it end?" is asked always; "may it start?" only of a unit without a
grant. Pure: the same state and time give the same decision, byte for byte.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from smgate.domain import context, exposure, guard, restoring, rules_end, rules_ours, rules_start
from smgate.domain.context import Answer, Context, Member, Passed
from smgate.domain.decisions import OverrideSet
from smgate.domain.state import Fleet, Unit
from smgate.domain.values import Form, GivenFor, Verdict

RULES_VERSION: Final = "4"
"""Raised with any change after which the same state may give another decision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a unit should run, why, and whether that needs a grant to be recorded first."""

    event: OverrideSet
    starts: bool
    context: Context = field(repr=False)
    """What it was decided from."""
    raw: Answer
    """The answer of the table, before observe mode turned it into a `would`."""
    kept: Answer | None = None
    """What the change guard or a restore put in its place."""

    @property
    def refusals(self) -> tuple[tuple[str, str], ...]:
        """Every reason why the unit may not start the target now, whichever rule came first."""
        ctx = self.context
        return tuple(rules_start.refusals(ctx)) if ctx.gate is not None and ctx.candidate else ()


TABLE: Final = (*rules_ours.RULES, *rules_end.RULES, *rules_start.RULES)
"""Every rule that is asked of a member, in order; behind them all `rules_start.start`."""
_QUESTIONS: Final = tuple(rule.ask for rule in TABLE)


def answer_member(ctx: Context, member: Member) -> Answer:
    """Run the table for one member."""
    return _placed(ctx, member)[0]


def _placed(ctx: Context, member: Member) -> tuple[Answer, int]:
    """The first rule that applies to a member: what it says, and its place in the table."""
    for place, ask in enumerate(_QUESTIONS):
        found = ask(ctx, member)
        if not isinstance(found, Passed):
            return found, place
    return rules_start.start(ctx), len(_QUESTIONS)


def deciding(ctx: Context) -> tuple[Answer, int, Member]:
    """The most careful member's answer, its place in the table, and that member.

    Of equally careful ones the one whose rule comes first, then the first rank's: what must end
    is said before what may not start yet, whichever rank it is about.
    """
    placed = [(*_placed(ctx, member), member) for member in ctx.members]
    if len(placed) > 1:
        placed.sort(key=lambda one: (one[0].carefulness, one[1]))
    return placed[0]


def answer(ctx: Context) -> Answer:
    """One answer for all ranks: the most careful member's."""
    if not ctx.members:
        return Answer(
            kind="untouched", code="unit_unsteerable", sentence="No launch of this unit is known."
        )
    found = deciding(ctx)[0]
    if found.kind == "target" and ctx.gate is not None and ctx.raises(ctx.gate.target):
        return Answer(
            kind="safe",
            code="target_raises",
            sentence="SGLang of this build cannot start with the target here, whatever is granted.",
            facts=found.facts,
            also=(found.code,),
        )
    return found


def _observing(ctx: Context) -> bool:
    if ctx.gate is not None and ctx.sm is not None:
        return ctx.fleet.mode_of(ctx.gate.id, ctx.sm) == "observe"
    gates = [ctx.gate] if ctx.gate is not None else list(ctx.fleet.gates.values())
    return any(ctx.fleet.mode_of(gate.id, sm) == "observe" for gate in gates for sm in ctx.sms)


def _kept_value(ctx: Context) -> str | None:
    """What `keep` comes to: see `wire.directive.UnitOverride`."""
    unit, now = ctx.unit, ctx.given_for
    before, value = unit.appended_for, unit.appended_value
    if before is None or value is None or unit.released:
        return None
    if any(
        m.rank is None
        or (m.rank.planned.asked_runner not in (None, "auto") and not unit.flag_adopted)
        for m in ctx.members
    ):
        return None
    same = (before.architecture, before.model_digest, before.a2a, before.sm) == (
        now.architecture,
        now.model_digest,
        now.a2a,
        now.sm,
    )
    if not same:
        return None
    if before.kernel_key == now.kernel_key:
        return None if ctx.raises(value) else value
    return ctx.safe_value()


class Said(NamedTuple):
    """What an `override_set` says. When and from what it was made does not count."""

    form: Form
    value: str | None
    code: str
    would: Verdict | None
    no_safe_value: bool
    given_for: GivenFor
    lease_s: int | None
    nodes: tuple[str, ...]


said: Final[Callable[[OverrideSet], tuple[object, ...]]] = operator.attrgetter(*Said._fields)
"""What this one says, to be compared with a `Said`."""


def says(fleet: Fleet, unit: Unit, now_us: int) -> Said:
    """What the rules say of a unit now."""
    ctx = context.of_unit(fleet, unit, now_us)
    found = answer(ctx)
    return _said(ctx, found, _instead(ctx, found))


Kept = tuple[Answer, Form, str | None]
"""What is said in place of what the table says."""


def _instead(ctx: Context, found: Answer) -> Kept | None:
    """What the change guard or a restore puts in place of the answer."""
    if ctx.held is None and not restoring.in_doubt(ctx.fleet, ctx.unit):
        return None
    value = _value(ctx, found)[1]
    return guard.instead(ctx, found, value) or restoring.instead(ctx, found, value)


def _said(ctx: Context, found: Answer, kept: Kept | None) -> Said:
    form, value, missing = _value(ctx, found)
    code, would = found.code, None
    if kept is not None:
        code, form, value = kept[0].code, kept[1], kept[2]
        missing = missing or (kept[0].kind == "safe" and form == "untouched")
    if _observing(ctx):
        would = Verdict(form=form, value=value, code=code)
        form, value, code = "keep", _kept_value(ctx), "observe"
    return Said(
        form=form,
        value=value,
        code=code,
        would=would,
        no_safe_value=missing,
        given_for=ctx.given_for,
        nodes=tuple(sorted({m.node for m in ctx.members})),
        lease_s=_lease_s(ctx) if (form, code) == ("append", "granted") else None,
    )


def _value(ctx: Context, found: Answer) -> tuple[Form, str | None, bool]:
    """Form, value, and whether a safe value was wanted and there is none."""
    if found.kind == "untouched":
        return "untouched", None, False
    if found.kind == "keep":
        return "keep", _kept_value(ctx), False
    if found.kind == "target" and ctx.gate is not None:
        return "append", ctx.gate.target, False
    safe = ctx.safe_value()
    return ("untouched", None, True) if safe is None else ("append", safe, False)


def _lease_s(ctx: Context) -> int | None:
    """For how long a target that has not baked holds without us. One that has holds for good."""
    if ctx.fleet.policy.bake_lease_s is None:
        return None
    grant = ctx.unit.grant_for(ctx.kernel_keys or ())
    rollout = ctx.fleet.rollouts.get(grant.rollout or "") if grant is not None else None
    if grant is None or rollout is None or exposure.verified(grant, rollout.plan):
        return None
    return ctx.fleet.policy.bake_lease_s


def decide_unit(fleet: Fleet, unit_id: str, now_us: int, *, unheld: bool = False) -> Decision:
    """Decide one unit at one moment.

    Args:
        fleet: the folded log.
        unit_id: an id in `fleet.units`.
        now_us: the leader's time, microseconds; used for the age of evidence only.
        unheld: as if no change of it were held: what waits for a person.
    """
    ctx = context.of_unit(fleet, fleet.units[unit_id], now_us)
    if unheld:
        ctx = ctx._replace(held=None)
    found = answer(ctx)
    kept = None if unheld else _instead(ctx, found)
    what = _said(ctx, found, kept)
    shown = found if kept is None else kept[0]
    sentence, also = shown.sentence, shown.also
    if what.would is not None:
        sentence = (
            f"SM {', '.join(ctx.sms)} is in observe mode: nothing is changed. "
            f"It would be: {sentence}"
        )
        also = (shown.code, *also)
    launch = ctx.unit.launch
    event = OverrideSet(
        unit=unit_id,
        form=what.form,
        value=what.value,
        code=what.code,
        sentence=sentence,
        would=what.would,
        also=also,
        facts=tuple(sorted(set(shown.facts))),
        launch_ids=launch.launch_ids if launch is not None else (),
        given_for=what.given_for,
        nodes=what.nodes,
        no_safe_value=what.no_safe_value,
        as_of_position=fleet.position,
        now_us=now_us,
        rules_version=RULES_VERSION,
        lease_s=what.lease_s,
    )
    return Decision(
        event=event,
        starts=shown.starts and what.would is None and what.form == "append",
        context=ctx,
        raw=found,
        kept=None if kept is None else kept[0],
    )
