"""The table of rules as a person reads it: every row in its order, whether it applies, and why not.

It asks the rules themselves and decides nothing: the row that applies is the one that decided.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from smgate.domain import exposure, rules, rules_start
from smgate.domain.context import Answer, Context, Member, Passed
from smgate.domain.state_restore import HELD_CODE, UNFINISHED_CODE
from smgate.domain.state_rollouts import Rollout

State = Literal["applies", "would_be_next", "outweighed", "does_not_apply"]
"""`would_be_next`: holds too, and comes later. `outweighed`: another rank needs more care."""
DAY_S: Final = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of the table for one unit."""

    part: str
    number: int
    codes: tuple[str, ...]
    """The one code if the row holds, else all that it may answer with."""
    state: State
    sentence: str
    nodes: tuple[str, ...] = ()
    """Those whose ranks it holds for."""


def rows(decision: rules.Decision) -> list[Row]:
    """Every rule for the unit of a decision, in the order of the table."""
    ctx = decision.context
    if not ctx.members:
        raw = decision.raw
        return [
            Row(part="A", number=6, codes=(raw.code,), state="applies", sentence=raw.sentence),
        ]
    found, place, member = rules.deciding(ctx)
    end = _End(
        place=place,
        held=decision.event.would is not None or decision.kept is not None,
        raises=decision.raw.code != found.code,
    )
    return [
        _observe(decision),
        *(_of_rule(ctx, at, member, end) for at in range(len(rules.TABLE))),
        *_of_start(ctx, end),
        *_of_value(decision, found, end),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _End:
    """Where the table came to an end."""

    place: int
    held: bool
    """Observe mode decided instead, or what the unit was told stands for now."""
    raises: bool
    """It was the target, and SGLang cannot start with it."""

    def state(self, at: int) -> State:
        """That of a row that holds."""
        if at < self.place or (at == self.place and self.raises):
            return "outweighed"
        return self.last if at == self.place else "would_be_next"

    @property
    def last(self) -> State:
        """That of the row which decides."""
        return "would_be_next" if self.held else "applies"


def _observe(decision: rules.Decision) -> Row:
    event = decision.event
    sms = ", ".join(decision.context.sms) or "unknown"
    if event.would is None:
        sentence = f"SM {sms} is in enforce mode."
        if not decision.context.sms:
            sentence = "No SM of it is known, so there is no mode."
        return Row(
            part="A", number=1, codes=("observe",), state="does_not_apply", sentence=sentence
        )
    sentence = f"SM {sms} is in observe mode: nothing is changed."
    return Row(part="A", number=1, codes=("observe",), state="applies", sentence=sentence)


def _of_rule(ctx: Context, at: int, deciding: Member, end: _End) -> Row:
    rule = rules.TABLE[at]
    asked = [(member, rule.ask(ctx, member)) for member in ctx.members]
    holding = [(member, one) for member, one in asked if isinstance(one, Answer)]
    if not holding:
        passed = next(one for member, one in asked if member is deciding)
        assert isinstance(passed, Passed)
        return Row(
            part=rule.part,
            number=rule.number,
            codes=rule.codes,
            state="does_not_apply",
            sentence=said(passed, ctx, deciding),
        )
    _, answer = next((one for one in holding if one[0] is deciding), holding[0])
    return Row(
        part=rule.part,
        number=rule.number,
        codes=(answer.code,),
        state=end.state(at),
        sentence=answer.sentence,
        nodes=tuple(sorted({member.node for member, _ in holding})),
    )


def said(passed: Passed, ctx: Context, member: Member) -> str:
    """The sentence of a rule that passed on, with its names."""
    pin, grant = ctx.unit.pin, ctx.unit.grant
    known = ctx.fleet.keys.get(member.kernel_key or "")
    asked = member.rank.planned.asked_runner if member.rank is not None else None
    return passed.sentence.format(
        node=member.node,
        sm=ctx.sm or "unknown",
        gate="any gate" if ctx.gate is None else f"gate {ctx.gate.id}",
        architecture=member.architecture,
        asked="no runner" if asked is None else f"--moe-runner-backend {asked}",
        pinned="not pinned" if pin is None else f"pinned {pin.direction}",
        issues=len(ctx.fleet.blocking.issues),
        key=member.kernel_key,
        gpus=len(member.gpu_uuids),
        standing="unknown" if known is None else known.standing,
        granted_keys=", ".join(grant.kernel_keys) if grant is not None else "-",
        launched_keys=", ".join(ctx.kernel_keys or ("an unknown one",)),
    )


def _of_start(ctx: Context, end: _End) -> Iterator[Row]:
    """Rules 15 (standing), 16 and 17."""
    if ctx.gate is None or not ctx.candidate:
        yield Row(
            part="D",
            number=16,
            codes=rules_start.ORDER,
            state="does_not_apply",
            sentence="A start is asked about only on a candidate SM of a gate that covers the model.",
        )
        return
    holds = end.state(len(rules.TABLE))
    answer = rules_start.start(ctx)
    done = rules_start.completed_for(ctx)
    standing = "No completed rollout lets it have this kernel key."
    if done is not None:
        standing = f"Rollout {done.plan.id} completed, and part D stands against a start."
    stands = answer.code == "standing"
    yield Row(
        part="C",
        number=15,
        codes=("standing",),
        state=holds if stands else "does_not_apply",
        sentence=answer.sentence if stands else standing,
    )
    refused = rules_start.refusals(ctx)
    for code in rules_start.ORDER:
        sentences = list(dict.fromkeys(sentence for name, sentence in refused if name == code))
        later: State = "would_be_next"
        yield Row(
            part="D",
            number=16,
            codes=(code,),
            state="does_not_apply" if not sentences else (holds if code == answer.code else later),
            sentence=" ".join(sentences) or LOOKED_AT[code](ctx),
        )
    starts = answer.code == "granted"
    yield Row(
        part="D",
        number=17,
        codes=("granted",),
        state=holds if starts else "does_not_apply",
        sentence=answer.sentence if starts else "Another rule of parts C and D speaks first.",
    )


def _of_value(decision: rules.Decision, found: Answer, end: _End) -> Iterator[Row]:
    """What SGLang can start with is asked last, of whatever was answered."""
    ctx = decision.context
    constructs = "Asked only where the answer is the target."
    if found.kind == "target" and ctx.gate is not None:
        constructs = f"SGLang of this build starts with {ctx.gate.target} here."
    yield Row(
        part="E",
        number=18,
        codes=("target_raises",),
        state=end.last if end.raises else "does_not_apply",
        sentence=decision.raw.sentence if end.raises else constructs,
    )
    safe = ctx.safe_value()
    missing = decision.event.no_safe_value
    yield Row(
        part="E",
        number=18,
        codes=("no_safe_value",),
        state=end.last if missing else "does_not_apply",
        sentence="The safe value is wanted and there is none for this SM, a2a and version: nothing "
        "is appended."
        if missing
        else f"The safe value here is {safe}."
        if safe
        else "There is no safe value here, and none is wanted.",
    )
    kept = decision.kept
    observes = decision.event.would is not None
    yield Row(
        part="E",
        number=19,
        codes=KEPT_CODES if kept is None else (kept.code,),
        state="does_not_apply" if kept is None else "would_be_next" if observes else "applies",
        sentence="No change of what it is told waits for a person."
        if kept is None
        else kept.sentence,
    )


KEPT_CODES: Final = ("change_held", HELD_CODE, UNFINISHED_CODE)
"""What the change guard and a restore put in place of what the table says."""

Looked = Callable[[Context], str]


def _of_rollout(ctx: Context) -> str:
    done = rules_start.completed_for(ctx)
    if done is not None:
        return f"Rollout {done.plan.id} completed: no open wave is needed."
    rollout = rules_start.rollout_of(ctx)
    return "No rollout speaks for it." if rollout is None else _phase(rollout)


def _phase(rollout: Rollout) -> str:
    return f"Rollout {rollout.plan.id} speaks for it and is {rollout.phase}."


def _of_wave(ctx: Context) -> str:
    rollout = rules_start.rollout_of(ctx)
    if rollout is None or rules_start.completed_for(ctx) is not None:
        return _of_rollout(ctx)
    name, unit = rollout.plan.id, ctx.unit.id
    waves = [wave.number for wave in rollout.waves if unit in wave.members]
    return f"It is in wave {waves[0]} of rollout {name}." if waves else _phase(rollout)


def _of_keys(ctx: Context) -> str:
    if ctx.kernel_keys is None:
        return "Its kernel key is unknown."
    standings = {key: ctx.fleet.keys.get(key) for key in ctx.kernel_keys}
    return " ".join(
        f"Kernel key {key} is {'unknown' if known is None else known.standing}."
        for key, known in standings.items()
    )


def _of_age(ctx: Context) -> str:
    ages = [
        (ctx.now_us - known.qualified_at_us) // (DAY_S * 1_000_000)
        for key in ctx.kernel_keys or ()
        if (known := ctx.fleet.keys.get(key)) is not None and known.standing == "qualified"
    ]
    if not ages:
        return f"{_of_keys(ctx)} Evidence grows old once a key is qualified."
    return f"{max(ages)} days old; it counts for {ctx.fleet.policy.evidence_max_age_s / DAY_S:g}."


def _of_nodes(ctx: Context) -> str:
    return ", ".join(sorted({member.node for member in ctx.members}))


def _of_ranks(ctx: Context) -> str:
    launch = ctx.unit.launch
    if launch is None:
        return "No launch gate reported a launch."
    return f"{len(ctx.unit.known_ranks)} of {launch.nnodes} ranks reported."


def _of_exposure(ctx: Context) -> str:
    limit = ctx.fleet.policy.exposure_limit_units
    if limit is None or ctx.sm is None:
        return "The policy sets no exposure_limit_units."
    count = exposure.exposed_count(ctx.fleet, ctx.sm, except_unit=ctx.unit.id)
    return f"{count} other units on SM {ctx.sm} may run the target; the limit is {limit}."


def _of_flights(ctx: Context) -> str:
    rollout = rules_start.rollout_of(ctx)
    if rollout is None:
        return _of_rollout(ctx)
    flying = exposure.in_flight(ctx.fleet, rollout)
    return (
        f"{flying} of at most {rollout.plan.max_in_flight} units of rollout {rollout.plan.id} "
        "restart or bake."
    )


LOOKED_AT: Final[dict[str, Looked]] = {
    "no_rollout": _of_rollout,
    "not_approved": _of_rollout,
    "rollout_paused": _of_rollout,
    "rollout_halted": _of_rollout,
    "wave_not_open": _of_wave,
    "freeze": lambda _ctx: "No freeze is in force.",
    "breaker_open": lambda _ctx: "The breaker is closed.",
    "change_held": lambda _ctx: "No change of it waits for a person.",
    "restore_unfinished": lambda _ctx: "No restore of the log is unfinished.",
    "build_not_qualified": _of_keys,
    "build_suspect": _of_keys,
    "evidence_old": _of_age,
    "known_issue_unevaluable": lambda ctx: (
        f"Every field that the {len(ctx.fleet.blocking.issues)} blocking issues name was read."
    ),
    "log_gap": lambda ctx: f"No facts of {_of_nodes(ctx)} are missing.",
    "silent": lambda ctx: f"{_of_nodes(ctx)}: heard.",
    "unit_incomplete": _of_ranks,
    "target_raises": lambda _ctx: "SGLang of this build starts with the target here.",
    "exposure_limit": _of_exposure,
    "max_in_flight": _of_flights,
}
"""What each refusal looked at where it does not hold; the refusal itself is `rules_start`'s."""
