"""Rules B: must it end? Asked always; each also refuses a start."""

from __future__ import annotations

from smgate.domain import issues, readings, upstream
from smgate.domain.context import Answer, Context, Member

MEMORY_SENTENCES = {
    "self_test_failed": "A self-test of this kernel key failed on these GPUs.",
    "rolled_back_here": "This kernel key was rolled back on these GPUs.",
    "unit_disagreed_here": "The last launch of this kernel key here had ranks that disagreed.",
    "fault_in_service": "The target faulted in service on these GPUs with this kernel key.",
}


def failed_sentence(key: str) -> str:
    """Says that a kernel key's failure is confirmed."""
    return f"Kernel key {key} failed its self-test in two chassis, or a person confirmed that."


def gate_disabled(ctx: Context, member: Member) -> Answer | None:
    """The kill switch."""
    assert ctx.gate is not None
    position = ctx.fleet.disabled.get((ctx.gate.id, ctx.sm or ""))
    if position is None:
        return None
    return Answer(
        kind="safe",
        code="gate_disabled",
        sentence=f"Gate {ctx.gate.id} is disabled on SM {ctx.sm} by the kill switch.",
        facts=(position,),
    )


def pinned_off(ctx: Context, member: Member) -> Answer | None:
    """A person pinned the unit to the safe value."""
    pin = ctx.unit.pin
    if pin is None or pin.direction != "off":
        return None
    return Answer(
        kind="safe",
        code="pinned_off",
        sentence=f"Pinned to the safe value: {pin.reason}",
        facts=(ctx.unit.pin_position,),
    )


def _breaks_glass(ctx: Context) -> bool:
    pin = ctx.unit.pin
    return pin is not None and pin.direction == "on" and pin.break_glass


def known_issue(ctx: Context, member: Member) -> Answer | None:
    """A published issue matches this build and layout."""
    if _breaks_glass(ctx):
        return None
    found = issues.blocking(ctx.fleet, member).matching
    if not found:
        return None
    name = found[0]
    return Answer(
        kind="safe",
        code=f"known_issue:{name}",
        sentence=f"Known issue {name}: {ctx.fleet.issues[name].title}",
        facts=(member.position, ctx.fleet.issue_positions[name]),
    )


def remembered(ctx: Context, member: Member, codes: tuple[str, ...]) -> Answer | None:
    """What went wrong here with this kernel key, if it was one of these."""
    if _breaks_glass(ctx) or member.kernel_key is None:
        return None
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
    return None


def failed_here(ctx: Context, member: Member) -> Answer | None:
    """What went wrong on these GPUs with this key is remembered by GPU UUID."""
    return remembered(ctx, member, ("self_test_failed", "rolled_back_here", "unit_disagreed_here"))


def build_failed(ctx: Context, member: Member) -> Answer | None:
    """The key's failure is confirmed in two chassis."""
    if _breaks_glass(ctx) or member.kernel_key is None:
        return None
    evidence = ctx.fleet.keys.get(member.kernel_key)
    if evidence is None or evidence.standing != "failed":
        return None
    return Answer(
        kind="safe",
        code="build_failed",
        sentence=failed_sentence(member.kernel_key),
        facts=(member.position, evidence.suspect_position),
    )


def fault_in_service(ctx: Context, member: Member) -> Answer | None:
    """A crash loop or an Xid on the target."""
    return remembered(ctx, member, ("fault_in_service",))


def pinned_on(ctx: Context, member: Member) -> Answer | None:
    """A person pinned the unit to the target."""
    pin = ctx.unit.pin
    assert ctx.gate is not None
    if pin is None or pin.direction != "on":
        return None
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


def baseline_sm(ctx: Context, member: Member) -> Answer | None:
    """On a baseline SM SGLang chooses the target by itself, unless it cannot see or run it."""
    assert ctx.gate is not None
    if ctx.sm not in ctx.gate.baseline_sms:
        return None
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
    return Answer(
        kind="untouched",
        code="baseline_sm",
        sentence=f"SM {ctx.sm} is a baseline of gate {ctx.gate.id}: SGLang chooses the target "
        "by itself.",
        facts=(member.position,),
    )


RULES = (
    gate_disabled,
    pinned_off,
    known_issue,
    failed_here,
    build_failed,
    fault_in_service,
    pinned_on,
    baseline_sm,
)
