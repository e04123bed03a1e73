"""Rules B: must it end? Asked always; each also refuses a start."""

from __future__ import annotations

from smgate.domain import issues, readings, upstream
from smgate.domain.context import NO_GATE, Answer, Context, Member, Passed, Rule

MEMORY_SENTENCES = {
    "self_test_failed": "A self-test of this kernel key failed on these GPUs.",
    "rolled_back_here": "This kernel key was rolled back on these GPUs.",
    "unit_disagreed_here": "The last launch of this kernel key here had ranks that disagreed.",
    "fault_in_service": "The target faulted in service on these GPUs with this kernel key.",
}


NOT_DISABLED = Passed("The kill switch of {gate} is not thrown for SM {sm}.")
NOT_PINNED = Passed("It is {pinned}.")
GLASS_BROKEN = Passed("It is {pinned} by break-glass, which passes this rule.")
NO_ISSUE = Passed("None of {issues} blocking issues matches it.")
NO_KEY = Passed("Its kernel key is unknown, so nothing can be remembered of it.")
NOTHING_REMEMBERED = Passed("No such memory of kernel key {key} on these {gpus} GPUs.")
NOT_FAILED = Passed("Kernel key {key} is {standing}.")
NO_BASELINE = Passed("SM {sm} is no baseline of {gate}.")


def failed_sentence(key: str) -> str:
    """Says that a kernel key's failure is confirmed."""
    return f"Kernel key {key} failed its self-test in two chassis, or a person confirmed that."


def gate_disabled(ctx: Context, member: Member) -> Answer | Passed:
    """The kill switch."""
    if ctx.gate is None:
        return NO_GATE
    position = ctx.fleet.disabled.get((ctx.gate.id, ctx.sm or ""))
    if position is None:
        return NOT_DISABLED
    return Answer(
        kind="safe",
        code="gate_disabled",
        sentence=f"Gate {ctx.gate.id} is disabled on SM {ctx.sm} by the kill switch.",
        facts=(position,),
    )


def pinned_off(ctx: Context, member: Member) -> Answer | Passed:
    """A person pinned the unit to the safe value."""
    pin = ctx.unit.pin
    if pin is None or pin.direction != "off":
        return NOT_PINNED
    return Answer(
        kind="safe",
        code="pinned_off",
        sentence=f"Pinned to the safe value: {pin.reason}",
        facts=(ctx.unit.pin_position,),
    )


def _breaks_glass(ctx: Context) -> bool:
    pin = ctx.unit.pin
    return pin is not None and pin.direction == "on" and pin.break_glass


def known_issue(ctx: Context, member: Member) -> Answer | Passed:
    """A published issue matches this build and layout."""
    if _breaks_glass(ctx):
        return GLASS_BROKEN
    found = issues.blocking(ctx.fleet, member).matching
    if not found:
        return NO_ISSUE
    name = found[0]
    return Answer(
        kind="safe",
        code=f"known_issue:{name}",
        sentence=f"Known issue {name}: {ctx.fleet.issues[name].title}",
        facts=(member.position, ctx.fleet.issue_positions[name]),
    )


def remembered(ctx: Context, member: Member, codes: tuple[str, ...]) -> Answer | Passed:
    """What went wrong here with this kernel key, if it was one of these."""
    if _breaks_glass(ctx):
        return GLASS_BROKEN
    if member.kernel_key is None:
        return NO_KEY
    memories = ctx.fleet.gpu_memory
    for uuid in member.gpu_uuids if memories else ():
        memory = memories.get((uuid, member.kernel_key))
        if memory is not None and memory[0] in codes:
            return Answer(
                kind="safe",
                code=memory[0],
                sentence=MEMORY_SENTENCES[memory[0]],
                facts=(member.position, memory[1]),
            )
    return NOTHING_REMEMBERED


def failed_here(ctx: Context, member: Member) -> Answer | Passed:
    """What went wrong on these GPUs with this key is remembered by GPU UUID."""
    return remembered(ctx, member, ("self_test_failed", "rolled_back_here", "unit_disagreed_here"))


def build_failed(ctx: Context, member: Member) -> Answer | Passed:
    """The key's failure is confirmed in two chassis."""
    if _breaks_glass(ctx):
        return GLASS_BROKEN
    if member.kernel_key is None:
        return NO_KEY
    evidence = ctx.fleet.keys.get(member.kernel_key)
    if evidence is None or evidence.standing != "failed":
        return NOT_FAILED
    return Answer(
        kind="safe",
        code="build_failed",
        sentence=failed_sentence(member.kernel_key),
        facts=(member.position, evidence.suspect_position),
    )


def fault_in_service(ctx: Context, member: Member) -> Answer | Passed:
    """A crash loop or an Xid on the target."""
    return remembered(ctx, member, ("fault_in_service",))


def pinned_on(ctx: Context, member: Member) -> Answer | Passed:
    """A person pinned the unit to the target."""
    pin = ctx.unit.pin
    if ctx.gate is None:
        return NO_GATE
    if pin is None or pin.direction != "on":
        return NOT_PINNED
    return Answer(
        kind="target",
        code="pinned_on",
        sentence=f"Pinned to the target: {pin.reason}",
        facts=(ctx.unit.pin_position,),
    )


def left_alone(member: Member) -> upstream.Resolution | None:
    """What SGLang would resolve by itself for this member; None if too little is known."""
    if member.rank is None or member.model is None or not member.sms or None in member.sms:
        return None
    return readings.left_alone(member.rank.planned, member.model, str(member.sms[0]))


def baseline_sm(ctx: Context, member: Member) -> Answer | Passed:
    """On a baseline SM SGLang chooses the target by itself, unless it cannot see or run it."""
    if ctx.gate is None:
        return NO_GATE
    if ctx.sm not in ctx.gate.baseline_sms:
        return NO_BASELINE
    alone = left_alone(member)
    if alone is not None and alone.code == "torch_cuda_too_old":
        return Answer(
            kind="safe",
            code="baseline_sm",
            sentence=f"SM {ctx.sm} is a baseline, but this torch's CUDA cannot run the target.",
            facts=(member.position,),
        )
    if alone is not None and alone.code == "format_not_seen":
        return Answer(
            kind="target",
            code="baseline_sm",
            sentence=f"SM {ctx.sm} is a baseline; SGLang would leave auto unresolved because the "
            "weight format stands only at top level.",
            facts=(member.position,),
        )
    if alone is not None and alone.code == "sm_not_selected":
        return _not_selected(ctx, member)
    return Answer(
        kind="untouched",
        code="baseline_sm",
        sentence=f"SM {ctx.sm} is a baseline of gate {ctx.gate.id}: SGLang chooses the target "
        "by itself.",
        facts=(member.position,),
    )


def _not_selected(ctx: Context, member: Member) -> Answer:
    """A graduated SM that this SGLang is older than: left alone it would make BF16 of the experts."""
    granted = ctx.unit.grant_for(ctx.kernel_keys or ()) is not None
    return Answer(
        kind="target" if granted else "safe",
        code="baseline_sm",
        sentence=f"SM {ctx.sm} is a baseline, but this SGLang selects no packed runner there"
        + (", and this unit was granted the target." if granted else "."),
        facts=(member.position,),
    )


RULES = (
    Rule(part="B", number=7, codes=("gate_disabled",), ask=gate_disabled),
    Rule(part="B", number=8, codes=("pinned_off",), ask=pinned_off),
    Rule(part="B", number=9, codes=("known_issue",), ask=known_issue),
    Rule(
        part="B",
        number=10,
        codes=("self_test_failed", "rolled_back_here", "unit_disagreed_here"),
        ask=failed_here,
    ),
    Rule(part="B", number=11, codes=("build_failed",), ask=build_failed),
    Rule(part="B", number=12, codes=("fault_in_service",), ask=fault_in_service),
    Rule(part="B", number=13, codes=("pinned_on",), ask=pinned_on),
    Rule(part="B", number=14, codes=("baseline_sm",), ask=baseline_sm),
)
