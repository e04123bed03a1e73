"""What the ranks of one server say of themselves, and the one value they agree on. Pure.

Hands off if one rank is hands off, else the safe value if one is safe, else the target: only where
every rank holds the same decision for it. A rank that knows nothing objects to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smgate_agent.launch import kernel_key, local_rule, shapes

if TYPE_CHECKING:
    from collections.abc import Sequence

Json = dict[str, Any]

TARGET, SAFE, NOTHING, HANDS_OFF = "target", "safe", "nothing", "hands_off"


def report(
    launch: Json,
    held: Json | None,
    alone: Json,
    unheard_s: float | None,
    *,
    disagreed: bool = False,
) -> Json:
    """What this rank says: how it stands, by which decision, and which value is safe here.

    Args:
        launch: what was read of it.
        held: the last verified directive.
        alone: what the local rule would do with this rank by itself.
        unheard_s: how long the controller was not heard.
        disagreed: whether the last launch of this kernel key here was ended because its ranks
            disagreed; then this rank takes no target.
    """
    target = local_rule.held_target(launch, held, unheard_s)
    standing, decision = _standing(held, alone), None
    if target is not None and held is not None and not disagreed:
        standing, decision = TARGET, f"{held['incarnation']}/{target['decided_at']}"
    return {
        "unit": kernel_key.unit_id("", launch),
        "rank": launch["node_rank"],
        "nnodes": launch["nnodes"],
        "standing": standing,
        "decision": decision,
        "safe": local_rule.safe_value(launch),
        "disagreed": disagreed,
    }


def _standing(held: Json | None, alone: Json) -> str:
    if alone["value"] is not None:
        return SAFE
    return NOTHING if held is None and alone["code"] == "local_untouched" else HANDS_OFF


def agree(reports: Sequence[Json], *, complete: bool) -> Json:
    """The one value for these ranks. Without all of them nobody takes the target."""
    standings = {one["standing"] for one in reports}
    if HANDS_OFF in standings:
        return local_rule.result("untouched", None, "ranks_hands_off")
    if standings == {NOTHING}:
        return local_rule.result("untouched", None, "local_untouched")
    if complete and standings == {TARGET} and len({one["decision"] for one in reports}) == 1:
        return local_rule.result("append", local_rule.TARGET, "ranks_agree")
    safe = {one["safe"] for one in reports}
    if safe == {local_rule.SAFE}:
        disagreed = any(one.get("disagreed") for one in reports)
        code = "unit_disagreed_here" if disagreed else "ranks_safe"
        return local_rule.result("append", local_rule.SAFE, code)
    return local_rule.result("untouched", None, "local_no_safe_value")


def may_follow(agreed: Json, own: Json) -> bool:
    """Whether a rank can do what was agreed: it takes no target that it does not hold itself."""
    if agreed["value"] is None:
        return True
    if agreed["value"] == local_rule.TARGET:
        return bool(own["standing"] == TARGET)
    return bool(own["safe"] == agreed["value"])


def is_report(value: object) -> bool:
    """Whether this is a rank's report."""
    return isinstance(value, dict) and bool(
        shapes.fits(shapes.NAME, value.get("unit"))
        and shapes.is_count(value.get("rank"))
        and shapes.is_count(value.get("nnodes"))
        and value.get("standing") in (TARGET, SAFE, NOTHING, HANDS_OFF)
        and (value.get("decision") is None or shapes.fits(shapes.NAME, value["decision"]))
        and value.get("safe") in (None, local_rule.SAFE)
        and value.get("disagreed", False) in (True, False)
    )


def is_agreed(value: object) -> bool:
    """Whether this is what ranks agreed on."""
    if not isinstance(value, dict) or not shapes.fits(shapes.CODE, value.get("code")):
        return False
    return (value.get("form"), value.get("value")) in (
        ("untouched", None),
        ("append", local_rule.SAFE),
        ("append", local_rule.TARGET),
    )
