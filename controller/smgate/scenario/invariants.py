"""What must hold of every history, as pure functions of a fleet and the event that comes next.

Written apart from the rules they watch: they say what must never be, not how it is decided. The
simulated fleet and the property tests ask them of every event; the controller itself never does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

from smgate.domain import (
    decisions,
    exposure,
    outcome,
    readings,
    revocation,
    rules,
    rules_start,
    rulings,
    values,
    waits,
)
from smgate.domain.events import Event
from smgate.domain.policy import Gate
from smgate.domain.state import Fleet, Rank, Unit
from smgate.domain.state_restore import UNFINISHED_CODE
from smgate.log import codec
from smgate.scenario import drain_invariants

Standing = dict[str, tuple[tuple[str, ...], ...]]
"""Per unit the kernel keys of every grant that stands, the newest first."""

KEEP_RULES: Final = frozenset(
    {
        "pinned_off",
        "self_test_failed",
        "rolled_back_here",
        "build_failed",
        "unit_disagreed_here",
        "fault_in_service",
    }
)
"""All that may ever end a grant. No freeze, breaker, pause, halt, abort, completion or silence."""

GRANTS_MOVE: Final = (
    decisions.Granted,
    decisions.GrantEnded,
    rulings.AdoptionDecided,
    rulings.OverrideReleased,
    revocation.GrantRevoked,
)
"""The events by which grants come and go, each by name."""

ONLY_PEOPLE_END: Final = frozenset({"freeze", "breaker_open"})
"""Waits without a timer: no time that passes is a reason to widen."""


def _target(fleet: Fleet, unit: Unit) -> Gate | None:
    for rank in unit.ranks.values():
        model = fleet.model_of(rank.planned)
        gate = fleet.gate_of(model.architecture if model else None)
        if gate is not None:
            return gate
    return None


def _late_copy(fleet: Fleet, event: decisions.OverrideSet) -> bool:
    """True for the copy of a launch's decision that a rank gets which came after it."""
    launch = fleet.units[event.unit].launch
    return bool(event.launch_ids) and launch is not None and launch.decided is not None


def _told_for(fleet: Fleet, event: decisions.OverrideSet) -> Iterator[tuple[Rank, set[str | None]]]:
    """The ranks that a value was decided for, and the SMs of each."""
    for rank in fleet.units[event.unit].ranks.values():
        node = fleet.nodes.get(rank.node)
        unit = fleet.units[event.unit]
        launched = unit.launch is not None and rank in unit.launch.ranks.values()
        if launched or node is None or not node.retired:
            yield rank, {fleet.sm_of(uuid) for uuid in rank.gpu_uuids}


def within_the_gate(fleet: Fleet, event: decisions.OverrideSet) -> str | None:
    """The target is told only on the gate's own SMs, one per server, and with a2a `none`."""
    gate = _target(fleet, fleet.units[event.unit])
    if gate is None or event.value != gate.target or _late_copy(fleet, event):
        return None
    known = gate.baseline_sms + gate.candidate_sms
    all_sms: set[str | None] = set()
    for rank, sms in _told_for(fleet, event):
        all_sms |= sms
        if readings.rank_a2a(rank) != values.TARGET_A2A:
            return f"{event.unit} was told the target with a2a {readings.rank_a2a(rank)}"
    if len(all_sms) != 1 or not all_sms <= set(known):
        return f"{event.unit} was told the target on SM {sorted(map(str, all_sms))}"
    return None


def constructs(fleet: Fleet, event: decisions.OverrideSet) -> str | None:
    """No server is told a value that its SGLang would die of while it makes its experts."""
    if event.value is None or _late_copy(fleet, event):
        return None
    for rank, sms in _told_for(fleet, event):
        build = rank.planned.build
        for sm in sms:
            refusal = outcome.raises(
                runner=event.value,
                a2a=readings.rank_a2a(rank),
                sm=sm or "0.0",
                sglang_version=build.sglang_version or "",
                torch_cuda=readings.torch_cuda(build) or "13.0",  # unread is not old
            )
            if refusal is not None:
                return f"{event.unit} was told {event.value} on SM {sm}: {refusal}"
    return None


def never_split(fleet: Fleet, event: decisions.OverrideSet) -> str | None:
    """All ranks of one launch are told one value, whenever they come."""
    launch = fleet.units[event.unit].launch
    decided = launch.decided if launch is not None else None
    if not event.launch_ids or decided is None:
        return None
    if (decided.form, decided.value) != (event.form, event.value):
        return f"{event.unit} was told {decided.value} and {event.value} in one launch"
    if not set(decided.launch_ids) < set(event.launch_ids):
        return f"{event.unit} was told twice for the same launches"
    return None


def stopping_ends_nothing(fleet: Fleet, event: decisions.OverrideSet) -> str | None:
    """What only refuses a start never takes the target from a server that is granted it.

    A grant that was never in effect may wait for its turn to restart: it begins later, not never.
    After a restore a start gets the safe value until every node of the unit has said what it held.
    """
    unit = fleet.units[event.unit]
    code = event.would.code if event.would is not None else event.code
    waits_its_turn = code == "max_in_flight" and not exposure.runs_target(fleet, unit)
    in_doubt = code == UNFINISHED_CODE and _may_have_been_taken_back(fleet, unit)
    if code in rules_start.ORDER and code != "target_raises" and not (waits_its_turn or in_doubt):
        grant = readings.grant_in_force(fleet, unit)
        if grant is not None and not _late_copy(fleet, event):
            return f"{event.unit} has a grant and was told {event.value}: {code}"
    return None


def _may_have_been_taken_back(fleet: Fleet, unit: Unit) -> bool:
    """True if the lost part of a restored log may have ended what this one says of the unit."""
    gate = _target(fleet, unit)
    stands = gate is not None and unit.override is not None and unit.override.value == gate.target
    return not stands or any(r.node in fleet.restore.waiting for r in unit.known_ranks.values())


def only_by_a_grant(fleet: Fleet, event: decisions.OverrideSet) -> str | None:
    """On a candidate SM the target is told by a grant in force or a person's pin, never without."""
    unit = fleet.units[event.unit]
    gate = _target(fleet, unit)
    if gate is None or (event.form, event.value) != ("append", gate.target):
        return None
    if event.given_for.sm not in gate.candidate_sms or _late_copy(fleet, event):
        return None
    pinned = unit.pin is not None and unit.pin.direction == "on"
    if not pinned and readings.grant_in_force(fleet, unit) is None:
        return f"{event.unit} was told the target with no grant and no pin"
    return None


def not_offered_again(fleet: Fleet, event: decisions.OverrideSet | decisions.Granted) -> str | None:
    """No unit is granted or told again a kernel key that failed on its GPUs, but by break-glass."""
    unit = fleet.units[event.unit]
    gate = _target(fleet, unit)
    if isinstance(event, decisions.OverrideSet):
        told = gate is not None and (event.form, event.value) == ("append", gate.target)
        if not told or _late_copy(fleet, event):
            return None
    glass = unit.pin is not None and unit.pin.direction == "on" and unit.pin.break_glass
    for rank in () if glass else unit.ranks.values():
        key = readings.rank_key(fleet, rank)
        for uuid in rank.gpu_uuids:
            memory = fleet.gpu_memory.get((uuid, key or ""))
            if memory is not None:
                return f"{event.unit} was offered {key} again, which {memory[0]} on {uuid}"
    return None


def nothing_opens_while_stopped(
    fleet: Fleet, event: decisions.Granted | decisions.WaveOpened | decisions.WaveJoined
) -> str | None:
    """Nothing opens while frozen or broken, or by a rollout that is paused, halted or ended."""
    what = f"{type(event).__name__} {getattr(event, 'unit', event.rollout)}"
    if fleet.freezes:
        return f"{what} during freeze {min(fleet.freezes)}"
    if fleet.breaker_position is not None:
        return f"{what} while the breaker is open"
    if event.rollout is not None and fleet.rollouts[event.rollout].phase != "running":
        return f"{what} while its rollout is {fleet.rollouts[event.rollout].phase}"
    return None


def only_where_enforced(fleet: Fleet, event: decisions.Granted) -> str | None:
    """No grant where the gate is switched off or observes, or where a person keeps the unit out."""
    unit = fleet.units[event.unit]
    gate = _target(fleet, unit)
    for rank in unit.ranks.values():
        sm = readings.rank_sm(fleet, rank) or ""
        if (
            gate is None
            or (gate.id, sm) in fleet.disabled
            or fleet.mode_of(gate.id, sm) != "enforce"
        ):
            return f"{event.unit} was granted on SM {sm}, which is not enforced"
    if unit.excluded or unit.released or unit.adoption == "adopted":
        return f"{event.unit} was granted while a person keeps it out"
    return None


def evidence_first(fleet: Fleet, event: decisions.Granted) -> str | None:
    """A grant is for the keys that were launched; all are qualified, and every node was heard whole."""
    unit = fleet.units[event.unit]
    if not event.kernel_keys or set(event.kernel_keys) != readings.launch_keys(fleet, unit):
        return f"{event.unit} was granted other keys than it launched"
    for key in event.kernel_keys:
        evidence = fleet.keys.get(key)
        if evidence is None or evidence.standing != "qualified":
            return f"{event.unit} was granted {key}, which is not qualified"
    for rank in unit.ranks.values():
        node = fleet.nodes[rank.node]
        if node.silent or node.gaps:
            return f"{event.unit} was granted though {node.name} is silent or has a gap"
    return None


def by_a_rollout(fleet: Fleet, event: decisions.Granted) -> str | None:
    """A grant is of an opened wave that has the unit, or stands by a rollout that completed."""
    if event.rollout is None:
        done = any(rollout.phase == "completed" for rollout in fleet.rollouts.values())
        return None if done else f"{event.unit} was granted by nothing that completed"
    if any(event.unit in wave.members for wave in fleet.rollouts[event.rollout].waves):
        return None
    return f"{event.unit} was granted and is in no opened wave of {event.rollout}"


def within_the_limits(fleet: Fleet, event: decisions.Granted) -> str | None:
    """No grant takes the fleet above its exposure limit, or a rollout above what it has in flight."""
    unit = fleet.units[event.unit]
    limit = fleet.policy.exposure_limit_units
    sm = exposure.unit_sm(fleet, unit)
    if limit is not None and sm is not None:
        others = exposure.exposed_count(fleet, sm, except_unit=event.unit)
        if others >= limit:
            return f"{event.unit} is the {others + 1}th on SM {sm}; the limit is {limit}"
    rollout = fleet.rollouts.get(event.rollout or "")
    starting = unit.launch is not None and unit.launch.decided is None
    if rollout is not None and starting:
        flying = exposure.in_flight(fleet, rollout)
        if flying >= rollout.plan.max_in_flight:
            return f"{event.unit} is the {flying + 1}th in flight of {rollout.plan.id}"
    return None


def only_keep_rules_end(fleet: Fleet, event: decisions.GrantEnded) -> str | None:
    """A grant ends by a keep rule, and that rule has something to go by."""
    unit = fleet.units[event.unit]
    if event.code not in KEEP_RULES:
        return f"the grant of {event.unit} was ended by {event.code}"
    if event.code == "pinned_off":
        pinned_off = unit.pin is not None and unit.pin.direction == "off"
        return None if pinned_off else f"the grant of {event.unit} ended by a pin it has not"
    if event.code == "fault_in_service":
        return None
    failed = any(k in fleet.keys and fleet.keys[k].standing == "failed" for k in event.kernel_keys)
    remembered = any(
        (uuid, key) in fleet.gpu_memory for uuid in event.gpu_uuids for key in event.kernel_keys
    )
    if not (failed or remembered):
        return f"the grant of {event.unit} ended with {event.code}, and nothing failed"
    return None


def two_people(fleet: Fleet, event: rulings.RolloutApproved | rulings.ChangeAccepted) -> str | None:
    """Nobody approves or accepts what they themselves asked for."""
    if isinstance(event, rulings.RolloutApproved):
        author, second = fleet.rollouts[event.rollout].author, event.approver
    else:
        author, second = fleet.changes[event.change].by or "", event.accepted_by
    return f"{second} agreed to what they asked for themselves" if author == second else None


Check = Callable[[Fleet, Any], str | None]

OF_EVENTS: Final[tuple[tuple[Check, tuple[type, ...]], ...]] = (
    (within_the_gate, (decisions.OverrideSet,)),
    (constructs, (decisions.OverrideSet,)),
    (never_split, (decisions.OverrideSet,)),
    (stopping_ends_nothing, (decisions.OverrideSet,)),
    (only_by_a_grant, (decisions.OverrideSet,)),
    (not_offered_again, (decisions.OverrideSet, decisions.Granted)),
    (
        nothing_opens_while_stopped,
        (decisions.Granted, decisions.WaveOpened, decisions.WaveJoined),
    ),
    (only_where_enforced, (decisions.Granted,)),
    (evidence_first, (decisions.Granted,)),
    (by_a_rollout, (decisions.Granted,)),
    (within_the_limits, (decisions.Granted,)),
    (only_keep_rules_end, (decisions.GrantEnded,)),
    (drain_invariants.drained_onto_the_safe_value, (decisions.DrainOrdered,)),
    (drain_invariants.drains_within_the_budget, (decisions.DrainOrdered,)),
    (two_people, (rulings.RolloutApproved, rulings.ChangeAccepted)),
)
"""Each with the events it speaks of. The fleet is as it was before the event."""


def of_event(fleet: Fleet, event: Event) -> Iterator[tuple[str, str | None]]:
    """Every invariant that speaks of an event, and how it does not hold."""
    for check, kinds in OF_EVENTS:
        if isinstance(event, kinds):
            yield check.__name__, check(fleet, event)


def standing(fleet: Fleet) -> Standing:
    """Every grant that stands."""
    return {
        name: tuple(grant.kernel_keys for grant in unit.grants)
        for name, unit in fleet.units.items()
        if unit.grant is not None
    }


def grants_end_only_by_name(before: Standing, fleet: Fleet, event: Event) -> str | None:
    """No event but a grant's own end takes a grant away; `fleet` is as it is after the event."""
    if isinstance(event, GRANTS_MOVE):
        return None
    after = standing(fleet)
    lost = sorted(name for name in before if after.get(name) != before[name])
    return f"{type(event).__name__} changed the grants of {', '.join(lost)}" if lost else None


def recomputes(fleet: Fleet, event: decisions.OverrideSet) -> str | None:
    """A decision is byte for byte what the rules give at its own position, time and version."""
    if (event.as_of_position, event.rules_version) != (fleet.position, rules.RULES_VERSION):
        return f"{event.unit} was decided as of {event.as_of_position}, not {fleet.position}"
    again = rules.decide_unit(fleet, event.unit, event.now_us).event
    launch = fleet.units[event.unit].launch
    if _late_copy(fleet, event) and launch is not None and launch.decided is not None:
        names = ("form", "value", "code", "sentence", "would", "given_for", "no_safe_value")
        same = all(getattr(event, n) == getattr(launch.decided, n) for n in names)
        return None if same else f"{event.unit}: the copy for a late rank differs"
    if not event.launch_ids:
        again = replace(again, launch_ids=())
    if codec.encode(again) != codec.encode(event):
        return f"{event.unit} was told {event.code}; the rules give {again.code}"
    return None


def waits_are_kept(fleet: Fleet, now_us: int) -> str | None:
    """Every wait has an owner, a next step and a timer; of one that ran out it is recorded."""
    for wait in waits.collect(fleet, now_us):
        if not (wait.owner and wait.sentence and wait.next_step):
            return f"{wait.id} has no owner, sentence or next step"
        if wait.remaining_us is None:
            if wait.code not in ONLY_PEOPLE_END:
                return f"{wait.id} has no timer"
        elif wait.remaining_us <= 0 and wait.id not in fleet.timed_out:
            return f"{wait.id} ran out and nothing was recorded"
    return None
