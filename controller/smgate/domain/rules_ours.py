"""Rules A: is it ours? Each answers for one member, or says what it looked at and passes on."""

from __future__ import annotations

from smgate.domain import readings
from smgate.domain.context import Answer, Context, Member, Passed, Rule

OURS = Passed("Nobody excluded or released this unit, and {node} is not retired.")
NOT_LOOKED = Passed("No launch gate looked at this server.")
IS_CUDA = Passed("It launches on CUDA.")
COVERED = Passed("The model is {architecture} with MXFP4 experts: {gate} covers it.")
A2A_NONE = Passed("The a2a backend is none.")
NO_CHOICE = Passed("The operator's own arguments name {asked}.")
FLAG_ADOPTED = Passed("The arguments name {asked}, and a person gave that flag to smgate.")
SILICON_KNOWN = Passed("All its GPUs are SM {sm}, which {gate} knows.")
GATED = Passed("It starts behind the launch gate on {node}.")


def excluded(ctx: Context, member: Member) -> Answer | Passed:
    """A person said hands off."""
    unit = ctx.unit
    if unit.released:
        return Answer(
            kind="untouched",
            code="released",
            sentence="A person gave this unit back; nothing is appended until it is included again.",
            facts=(unit.hands_off_position,),
        )
    if unit.excluded:
        return Answer(
            kind="keep",
            code="excluded",
            sentence="A person excluded this unit: hands off.",
            facts=(unit.hands_off_position,),
        )
    node = ctx.fleet.nodes.get(member.node)
    if node is not None and node.retired:
        return Answer(kind="keep", code="retired", sentence=f"Node {member.node} is retired.")
    return OURS


def not_cuda(ctx: Context, member: Member) -> Answer | Passed:
    """No NVIDIA GPU: nothing of this applies."""
    if member.rank is None:
        return NOT_LOOKED
    platform = member.rank.planned.platform
    if platform == "cuda":
        return IS_CUDA
    return Answer(
        kind="untouched",
        code="not_cuda",
        sentence="This launch has no CUDA GPU."
        if platform == "none"
        else f"This launch runs on {platform}, not CUDA.",
        facts=(member.position,),
    )


def model(ctx: Context, member: Member) -> Answer | Passed:
    """The gate's architecture in MXFP4, or none of our business."""
    if member.architecture is None:
        return Answer(
            kind="untouched",
            code="model_unknown",
            sentence="No config.json of this model was ever read, so nobody knows what it loads.",
            facts=(member.position,),
        )
    gate = ctx.fleet.gate_of(member.architecture)
    packed = (
        readings.mxfp4_layout(member.model) != "none"
        if member.model is not None
        else member.instance is None or member.instance.mxfp4 is not False
    )
    if gate is None or not packed:
        why = "no gate covers it" if gate is None else "its experts are not MXFP4"
        return Answer(
            kind="untouched",
            code="not_applicable",
            sentence=f"The model is {member.architecture}; {why}.",
            facts=(member.position,),
        )
    return COVERED


def layout(ctx: Context, member: Member) -> Answer | Passed:
    """Neither the target nor the safe value has a fused function for another a2a."""
    if member.a2a == "none":
        return A2A_NONE
    return Answer(
        kind="untouched",
        code="layout_not_covered",
        sentence=f"The a2a backend is {member.a2a}: the target and every safe value would stop "
        "this server at model construction.",
        facts=(member.position,),
    )


def choice(ctx: Context, member: Member) -> Answer | Passed:
    """What the operator wrote wins, unless a person gave the flag to smgate."""
    if member.rank is None:
        return NOT_LOOKED
    planned = member.rank.planned
    if not planned.argv_read:
        return Answer(
            kind="untouched",
            code="choice_unknown",
            sentence="The operator's own arguments could not be read, so their choice is unknown.",
            facts=(member.position,),
        )
    explicit = planned.asked_runner not in (None, "auto")
    if explicit and not ctx.unit.flag_adopted:
        return Answer(
            kind="untouched",
            code="explicit_choice",
            sentence=f"The launch names --moe-runner-backend {planned.asked_runner} "
            f"(in its {planned.asked_runner_in or 'argv'}); a person's choice is left alone.",
            facts=(member.position,),
        )
    if planned.sink == "file" and planned.asked_runner is not None:
        return Answer(
            kind="untouched",
            code="override_defeated",
            sentence="The override would be written to a file, and the flag in argv beats the file.",
            facts=(member.position,),
        )
    return FLAG_ADOPTED if explicit else NO_CHOICE


def silicon(ctx: Context, member: Member) -> Answer | Passed:
    """One known SM that the gate knows, over all GPUs of the unit."""
    if not member.sms or None in member.sms:
        return Answer(
            kind="keep",
            code="sm_unknown",
            sentence="The SM of a GPU of this unit was never known.",
            facts=(member.position,),
        )
    sms = ctx.sms
    if len(sms) > 1:
        return Answer(
            kind="safe",
            code="sm_mixed",
            sentence=f"The unit's GPUs are of different SMs: {', '.join(sms)}.",
            facts=(member.position,),
        )
    gate = ctx.gate
    if gate is not None and sms[0] not in gate.baseline_sms + gate.candidate_sms:
        safe = ctx.safe_value()
        return Answer(
            kind="safe",
            code="sm_unsupported",
            sentence=f"SM {sms[0]} is neither a baseline nor a candidate of gate {gate.id}"
            + (f"; {safe} keeps the weights packed." if safe else "; it has no safe value."),
            facts=(member.position,),
        )
    return SILICON_KNOWN


def steerable(ctx: Context, member: Member) -> Answer | Passed:
    """A server that came without a launch gate cannot be told anything."""
    if member.rank is not None:
        return GATED
    return Answer(
        kind="untouched",
        code="unit_unsteerable",
        sentence=f"The server on {member.node} was started without a launch gate.",
        facts=(member.position,),
    )


OF_THE_LAUNCH = (
    Rule(part="A", number=3, codes=("not_cuda",), ask=not_cuda),
    Rule(part="A", number=3, codes=("model_unknown", "not_applicable"), ask=model),
    Rule(part="A", number=4, codes=("layout_not_covered",), ask=layout),
    Rule(
        part="A",
        number=5,
        codes=("choice_unknown", "explicit_choice", "override_defeated"),
        ask=choice,
    ),
    Rule(part="A", number=6, codes=("sm_unknown", "sm_mixed", "sm_unsupported"), ask=silicon),
)
"""Those that rest on what the launch itself is."""

RULES = (
    Rule(part="A", number=2, codes=("released", "excluded", "retired"), ask=excluded),
    *OF_THE_LAUNCH,
    Rule(part="A", number=6, codes=("unit_unsteerable",), ask=steerable),
)
