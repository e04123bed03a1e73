"""Rules C and D: does it stand, and if not, may it start?

Asked of the unit as a whole: a grant belongs to a unit, and its ranks start together.
"""

from __future__ import annotations

from collections.abc import Iterator

from smgate.domain import exposure, issues, keys as key_names, windows
from smgate.domain.context import Answer, Context, Member, Passed, Rule
from smgate.domain.evidence import is_old
from smgate.domain.policy import Selector
from smgate.domain.state import Grant
from smgate.domain.state_rollouts import Rollout

ALL_PERCENT = 100
PHASE_ORDER = ("running", "paused", "approved", "proposed", "halted")


def covers(rollout: Rollout, ctx: Context) -> bool:
    """True if a rollout's gate, SM and selector take this unit in."""
    plan = rollout.plan
    if ctx.gate is None or plan.gate != ctx.gate.id or plan.sm != ctx.sm:
        return False
    return selects(plan.select, rollout.covered, ctx)


def selects(select: Selector, units: frozenset[str], ctx: Context) -> bool:
    """True if every list of a selector that is not empty has this unit. `units` are its first."""
    if units and units.isdisjoint((ctx.unit.id, ctx.unit.id.rpartition(":")[0])):
        return False  # a unit of one node goes by its node's name too, as in every command
    if select.racks:
        racks = {
            node.reported.rack
            for node in (ctx.fleet.nodes.get(m.node) for m in ctx.members)
            if node is not None and node.reported is not None
        }
        if not racks or not racks <= set(select.racks):
            return False
    keys = ctx.kernel_keys
    return not select.kernel_keys or (keys is not None and set(keys) <= set(select.kernel_keys))


def rollout_of(ctx: Context) -> Rollout | None:
    """The rollout that speaks for this unit: the one furthest along, then the newest."""
    found = [r for r in ctx.fleet.rollouts.values() if r.phase in PHASE_ORDER and covers(r, ctx)]
    return min(found, key=lambda r: (PHASE_ORDER.index(r.phase), -r.position), default=None)


NO_GRANT = Passed("It holds no grant.")
OTHER_GRANT = Passed("Its grant is for kernel key {granted_keys}; it launches {launched_keys}.")
NOT_ADOPTED = Passed("It was not first seen on the target, or a person has ruled on it.")


def granted(ctx: Context, member: Member) -> Answer | Passed:
    """What was granted stands."""
    keys = ctx.kernel_keys
    grant = ctx.unit.grant_for(keys or ())
    if grant is None or keys is None:
        return NO_GRANT if ctx.unit.grant is None else OTHER_GRANT
    return _no_place(ctx, grant) or Answer(
        kind="target",
        code="granted",
        sentence=f"Granted {_granted_by(grant)} for kernel key {', '.join(keys)}.",
        facts=(grant.position,),
    )


def adopted(ctx: Context, member: Member) -> Answer | Passed:
    """First seen on the target, nobody has ruled on it: it stays as it is."""
    unit = ctx.unit
    if unit.adoption != "adopted":
        return NOT_ADOPTED
    return Answer(
        kind="keep",
        code="adopted",
        sentence="First seen already on the target with no grant, and nobody has ruled on it.",
        facts=(unit.adopted_position,),
    )


def _no_place(ctx: Context, grant: Grant) -> Answer | None:
    """The first start on a grant takes a place among those that restart or bake.

    While none is free such a launch gets the safe value, and the unit is told so until one is. Who
    waits for its owner's restart takes no place, and is told the target.
    """
    launch, rollout = ctx.unit.launch, ctx.fleet.rollouts.get(grant.rollout or "")
    if grant.launched or launch is None or rollout is None or rollout.phase == "completed":
        return None
    tried = launch.decided is None or launch.decided.code == "max_in_flight"
    if not tried or exposure.in_flight(ctx.fleet, rollout) < rollout.plan.max_in_flight:
        return None
    return Answer(
        kind="safe",
        code="max_in_flight",
        sentence=_flights(rollout),
        facts=(grant.position, *(m.position for m in ctx.members)),
    )


def _flights(rollout: Rollout) -> str:
    plan = rollout.plan
    return f"{plan.max_in_flight} units of rollout {plan.id} restart or bake already."


def _granted_by(grant: Grant) -> str:
    if grant.rollout is not None:
        return f"by rollout {grant.rollout}"
    return "after a completed rollout" if grant.standing else "by a person"


def completed_for(ctx: Context) -> Rollout | None:
    """A completed rollout by which this unit may have its key: it ran it, or trusts the pool."""
    keys, done = ctx.kernel_keys, _completed(ctx)
    if keys is None or not done:
        return None
    for rollout in done:
        if set(keys) <= set(rollout.completed_keys):
            return rollout
    newest = done[0]
    return newest if newest.plan.on_new_build == "trust_pool" and not _later(ctx, newest) else None


def _completed(ctx: Context) -> list[Rollout]:
    """Completed rollouts that took this unit in, by their whole selector or by name: newest first."""
    found = [
        rollout
        for rollout in ctx.fleet.rollouts.values()
        if rollout.phase == "completed"
        and covers(rollout, ctx)
        and (
            rollout.plan.waves[-1].percent == ALL_PERCENT
            or any(ctx.unit.id in wave.members for wave in rollout.waves)
        )
    ]
    return sorted(found, key=lambda rollout: -rollout.position)


def _later(ctx: Context, than: Rollout) -> bool:
    """True if a rollout was begun for this unit since: then its canaries decide, not the pool."""
    return any(
        rollout.phase in ("running", "paused", "halted")
        and rollout.position > than.position
        and covers(rollout, ctx)
        for rollout in ctx.fleet.rollouts.values()
    )


def _rollout_refusals(ctx: Context, rollout: Rollout | None) -> Iterator[tuple[str, str]]:
    if rollout is None:
        yield "no_rollout", _nobody_speaks(ctx)
        return
    name = rollout.plan.id
    if rollout.phase == "proposed":
        needed = rollout.plan.approvals
        others = "another person" if needed == 1 else f"{needed} people other than its author"
        yield "not_approved", f"Rollout {name} waits for approval by {others}."
    elif rollout.phase == "approved":
        yield "wave_not_open", f"Rollout {name} is approved and was not started."
    elif rollout.phase == "paused":
        yield "rollout_paused", f"Rollout {name} is paused."
    elif rollout.phase == "halted":
        yield "rollout_halted", f"Rollout {name} was halted ({rollout.halted_code})."
    elif not any(ctx.unit.id in wave.members for wave in rollout.waves):
        yield "wave_not_open", _no_wave_yet(rollout)
    elif exposure.in_flight(ctx.fleet, rollout) >= rollout.plan.max_in_flight:
        yield "max_in_flight", _flights(rollout)


def frozen_sentence(rollout: Rollout, now_us: int) -> str | None:
    """That a window of its plan holds, and when it ends; None if none does."""
    held = windows.frozen(rollout.plan.freeze_windows, now_us)
    if held is None or rollout.phase in ("halted", "aborted"):
        return None
    return (
        f"Rollout {rollout.plan.id} is frozen until {windows.iso(held.end_us)} by its plan "
        f"({held.window.words})."
    )


def _no_wave_yet(rollout: Rollout) -> str:
    name, opened = rollout.plan.id, len(rollout.waves)
    if not opened:
        return f"The first wave of rollout {name} is not open yet."
    if opened < len(rollout.plan.waves):
        return f"The wave of rollout {name} that has this unit is not open yet."
    return f"The last wave of rollout {name} had taken its members before this unit could join."


def _nobody_speaks(ctx: Context) -> str:
    done = _completed(ctx)
    if done and done[0].plan.on_new_build == "hold":
        return f"Rollout {done[0].plan.id} completed without this kernel key and holds new builds."
    return "No rollout covers this unit and its kernel key."


def _fleet_refusals(ctx: Context) -> Iterator[tuple[str, str]]:
    fleet = ctx.fleet
    if ctx.held is not None:
        yield "change_held", f"Change {ctx.held.change} waits for a person."
    if not fleet.restore.finished:
        yield "restore_unfinished", "The log was restored from a backup; that is not finished."
    for freeze in sorted(fleet.freezes):
        yield "freeze", f"Freeze {freeze}: {fleet.freeze_reasons[freeze]}"
    if fleet.breaker_position is not None:
        yield "breaker_open", f"The breaker is open: {len(fleet.breaker_units)} units went bad."


def _evidence_refusals(ctx: Context) -> Iterator[tuple[str, str]]:
    keys = ctx.kernel_keys
    if keys is None:
        missing = sorted(
            {
                name
                for m in ctx.members
                if m.rank is not None
                for name in key_names.missing_essentials(m.rank.planned.build)
            }
        )
        yield (
            "build_not_qualified",
            f"No kernel key: the launch did not report {', '.join(missing) or 'an SM'}.",
        )
        return
    for key in keys:
        evidence = ctx.fleet.keys.get(key)
        if evidence is not None and evidence.standing == "suspect":
            yield "build_suspect", f"A self-test of kernel key {key} failed; it is being confirmed."
        elif evidence is None or evidence.standing != "qualified":
            yield "build_not_qualified", f"Kernel key {key} is not qualified."
        elif is_old(ctx.fleet, evidence, ctx.now_us):
            yield "evidence_old", f"The evidence for kernel key {key} is too old."


def _member_refusals(ctx: Context) -> Iterator[tuple[str, str]]:
    fleet = ctx.fleet
    for member in ctx.members:
        for name in issues.blocking(fleet, member).unknown:
            yield (
                "known_issue_unevaluable",
                f"Known issue {name} needs a field that {member.node} did not report.",
            )
        node = fleet.nodes.get(member.node)
        if node is not None and node.gaps:
            yield "log_gap", f"Facts of node {member.node} were lost and not yet reported anew."
        if node is None or node.silent:
            yield "silent", f"Node {member.node} is silent."
    launch = ctx.unit.launch
    if launch is not None and len(ctx.unit.known_ranks) < launch.nnodes:
        yield (
            "unit_incomplete",
            f"{len(ctx.unit.known_ranks)} of {launch.nnodes} ranks ever reported.",
        )


def _limit_refusals(ctx: Context) -> Iterator[tuple[str, str]]:
    limit = ctx.fleet.policy.exposure_limit_units
    if ctx.gate is not None and ctx.raises(ctx.gate.target):
        yield "target_raises", "SGLang of this build cannot start with the target here."
    if limit is not None and ctx.sm is not None:
        count = exposure.exposed_count(ctx.fleet, ctx.sm, except_unit=ctx.unit.id)
        if count >= limit:
            yield (
                "exposure_limit",
                f"{count} units on SM {ctx.sm} may run the target; the limit is {limit}.",
            )


def refusals(ctx: Context) -> list[tuple[str, str]]:
    """Every reason why this unit may not start the target now, in the order of the table."""
    rollout = completed_for(ctx)
    found: list[tuple[str, str]] = []
    if rollout is None:
        rollout = rollout_of(ctx)
        found.extend(_rollout_refusals(ctx, rollout))
    if rollout is not None and rollout.plan.freeze_windows:
        frozen = frozen_sentence(rollout, ctx.now_us)
        found.extend([("freeze", frozen)] if frozen is not None else ())
    for part in (_fleet_refusals, _evidence_refusals, _member_refusals, _limit_refusals):
        found.extend(part(ctx))
    if len(found) > 1:
        found.sort(key=lambda item: ORDER.index(item[0]))
    return found


ORDER = (
    "no_rollout",
    "not_approved",
    "rollout_paused",
    "rollout_halted",
    "wave_not_open",
    "freeze",
    "breaker_open",
    "change_held",
    "restore_unfinished",
    "build_not_qualified",
    "build_suspect",
    "evidence_old",
    "known_issue_unevaluable",
    "log_gap",
    "silent",
    "unit_incomplete",
    "target_raises",
    "exposure_limit",
    "max_in_flight",
)
"""The table's order of rule 16; the first that holds is the unit's code, `also` has the rest."""


def _stands_by(ctx: Context, done: Rollout) -> str:
    if set(ctx.kernel_keys or ()) <= set(done.completed_keys):
        return f"Rollout {done.plan.id} completed with this kernel key."
    return f"Rollout {done.plan.id} completed and trusts the pool, which qualified this kernel key."


def start(ctx: Context) -> Answer:
    """Rules 15 (standing), 16 and 17: a candidate SM without a grant."""
    found = refusals(ctx)
    positions = tuple(m.position for m in ctx.members)
    if found:
        return Answer(
            kind="safe",
            code=found[0][0],
            sentence=found[0][1],
            facts=positions,
            also=tuple(dict.fromkeys(code for code, _ in found[1:])),
        )
    done = completed_for(ctx)
    return Answer(
        kind="target",
        code="standing" if done is not None else "granted",
        sentence=_stands_by(ctx, done)
        if done is not None
        else "Its wave is open and nothing stands against it.",
        facts=positions,
        starts=True,
    )


RULES = (
    Rule(part="C", number=15, codes=("granted", "max_in_flight"), ask=granted),
    Rule(part="C", number=15, codes=("adopted",), ask=adopted),
)
"""Rules C: what stands stays."""
