"""Owns how everything but nodes and units looks from outside: evidence, rollouts, alarms, rules."""

from __future__ import annotations

from smgate.domain import announced as expansion, exposure
from smgate.domain.state import Fleet
from smgate.domain.state_alarms import Episode
from smgate.domain.state_evidence import KeyEvidence, SetEvidence
from smgate.domain.state_rollouts import Rollout, Wave
from smgate.views.shape import Row, iso, plain


def builds(fleet: Fleet) -> dict[str, Row]:
    """All kernel keys."""
    granted = granted_units(fleet)
    return {
        name: build(fleet, fleet.keys[name], granted_units=granted.get(name, 0))
        for name in sorted(fleet.keys)
    }


def granted_units(fleet: Fleet) -> dict[str, int]:
    """How many live units are granted each kernel key."""
    found: dict[str, int] = {}
    for unit in fleet.units.values():
        if unit.grant is not None and unit.live:
            for key in unit.grant.kernel_keys:
                found[key] = found.get(key, 0) + 1
    return found


def build(fleet: Fleet, one: KeyEvidence, *, granted_units: int) -> Row:
    """One kernel key and its evidence."""
    wanted = [w for w in fleet.wanted.values() if w.kernel_key == one.key and w.open]
    return {
        "key": one.key,
        "position": one.position,
        "sm": one.sm,
        "standing": one.standing,
        "accepted_like": one.accepted_like,
        "a2a": one.a2a,
        "build": plain(one.build),
        "layout": plain(one.layout),
        "qualified_at": iso(one.qualified_at_us or None),
        "suspect_position": one.suspect_position or None,
        "gpu_sets": [
            _gpu_set(gpus, one.sets[gpus], faulty=gpus in one.faulty_sets)
            for gpus in sorted(one.sets)
        ],
        "wanted": [
            {"node": w.node, "launch_id": w.launch_id, "checks": list(w.checks), "for": w.purpose}
            for w in sorted(wanted, key=lambda w: w.position)
        ],
        "granted_units": granted_units,
    }


def _gpu_set(gpus: tuple[str, ...], one: SetEvidence, *, faulty: bool) -> Row:
    return {
        "gpu_uuids": list(gpus),
        "node": one.node,
        "chassis": one.chassis,
        "rack": one.rack,
        "pool": one.pool,
        "node_fault": faulty,
        "flaky": sorted(one.flaky),
        "at": iso(one.at_us or None),
        "checks": {
            name: {
                "outcome": result.outcome,
                "reason": result.reason,
                "negative_control": result.negative_control,
                "probe_version": result.probe_version,
                "numbers": dict(result.numbers),
            }
            for name, result in sorted(one.worst.items())
        },
    }


def announced(fleet: Fleet) -> dict[str, Row]:
    """Images announced before any node ran them."""
    return {
        name: {
            "name": name,
            "position": 0,
            "packages": dict(fleet.announced[name].packages),
            "kernel_keys": [
                {"key": key, "standing": standing}
                for key, standing in expansion.kernel_keys(fleet, fleet.announced[name]).items()
            ],
            "reason": fleet.announced[name].reason,
        }
        for name in sorted(fleet.announced)
    }


def rollouts(fleet: Fleet) -> dict[str, Row]:
    """All rollouts."""
    return {name: rollout(fleet, fleet.rollouts[name]) for name in sorted(fleet.rollouts)}


def rollout(fleet: Fleet, one: Rollout) -> Row:
    """One rollout and where it stands."""
    plan = one.plan
    return {
        "id": plan.id,
        "position": one.phase_position or one.position,
        "phase": one.phase,
        "gate": plan.gate,
        "sm": plan.sm,
        "author": one.author,
        "approver": one.approver,
        "approvers": list(one.approvers),
        "halted_code": one.halted_code,
        "wave": one.waves[-1].number if one.waves else None,
        "waves_planned": len(plan.waves),
        "waves": [_wave(fleet, one, wave) for wave in one.waves],
        "in_flight": exposure.in_flight(fleet, one),
        "completed_keys": list(one.completed_keys),
        "plan": plain(plan),
    }


def _wave(fleet: Fleet, rollout: Rollout, one: Wave) -> Row:
    members = []
    for name in one.units:
        unit = fleet.units[name]
        granted = unit.grant is not None and unit.grant.rollout == rollout.plan.id
        members.append(
            {
                "unit": name,
                "granted": granted,
                "launched": bool(granted and unit.grant and unit.grant.launched),
                "bake_s": unit.grant.bake_s if granted and unit.grant else 0,
                "golden_mismatches": unit.grant.golden_mismatches
                if granted and unit.grant
                else None,
                "good": exposure.good(fleet, unit, rollout),
                "bad": name in one.bad,
            }
        )
    return {
        "wave": one.number,
        "verdict": one.verdict or "running",
        "position": one.position,
        "eligible": one.eligible,
        "members": members,
    }


def alarms(fleet: Fleet) -> dict[str, Row]:
    """All episodes, open and closed."""
    return {name: alarm(fleet.episodes[name]) for name in sorted(fleet.episodes)}


def alarm(one: Episode) -> Row:
    """One episode."""
    return {
        "id": one.id,
        "position": one.position,
        "open": one.closed_us is None,
        "cause": one.cause,
        "gate": one.gate,
        "sm": one.sm,
        "sentence": one.sentence,
        "units": list(one.units),
        "unit_count": len(one.units),
        "opened_at": iso(one.opened_us),
        "closed_at": iso(one.closed_us),
        "quiet": one.absent_led_us is not None and one.closed_us is None,
    }


def gates(fleet: Fleet) -> dict[str, Row]:
    """All gates, with the mode of each of their SMs."""
    found: dict[str, Row] = {}
    for name in sorted(fleet.gates):
        gate = fleet.gates[name]
        named = {sm for gate_id, sm in fleet.modes if gate_id == name}
        sms = sorted({*gate.baseline_sms, *gate.candidate_sms, *named})
        found[name] = plain(gate) | {
            "position": 0,
            "modes": {sm: fleet.mode_of(name, sm) for sm in sms},
            "disabled_sms": sorted(sm for gate_id, sm in fleet.disabled if gate_id == name),
            "graduated_sms": sorted(sm for gate_id, sm in fleet.graduated if gate_id == name),
        }
    return found


def policy(fleet: Fleet) -> dict[str, Row]:
    """The policy in force: one row."""
    return {"policy": {"position": 0, **plain(fleet.policy)}}


def issues(fleet: Fleet) -> dict[str, Row]:
    """Known issues in force."""
    return {
        name: plain(fleet.issues[name]) | {"position": fleet.issue_positions.get(name, 0)}
        for name in sorted(fleet.issues)
    }


def freezes(fleet: Fleet) -> dict[str, Row]:
    """Freezes in force."""
    return {
        name: {
            "id": name,
            "position": fleet.freezes[name],
            "reason": fleet.freeze_reasons.get(name, ""),
            "until": iso(fleet.freeze_ends.get(name)),
        }
        for name in sorted(fleet.freezes)
    }


def expected(fleet: Fleet) -> dict[str, Row]:
    """Machines that should exist, and whether they have an agent."""
    inventory = fleet.inventory
    return {
        name: {
            "node": name,
            "sm": sm,
            "agent": name not in inventory.without_agent,
            "position": inventory.position,
        }
        for name, sm in sorted(inventory.expected.items())
    }


def breaker(fleet: Fleet) -> dict[str, Row]:
    """The breaker: one row."""
    return {
        "breaker": {
            "open": fleet.breaker_position is not None,
            "position": fleet.breaker_position or 0,
            "units": list(fleet.breaker_units),
        }
    }
