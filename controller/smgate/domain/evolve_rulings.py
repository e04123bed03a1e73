"""Fold of what people decided."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from smgate.domain import (
    clones,
    evolve_checks,
    graduation,
    matching,
    revocation,
    revoking,
    rulings,
    takeover,
    windows,
)
from smgate.domain.events import Recorded
from smgate.domain.evolve_launches import unit_of
from smgate.domain.state import IN_SERVICE, Fleet, Grant
from smgate.domain.state_nodes import Node
from smgate.domain.state_rollouts import Phase, Rollout

Handler = Callable[[Fleet, Recorded, Any], None]


def _node_enrolled(fleet: Fleet, recorded: Recorded, event: rulings.NodeEnrolled) -> None:
    node = fleet.nodes.setdefault(event.node, Node(name=event.node, position=recorded.position))
    node.machine_id = event.machine_id
    node.retired = False
    clones.forget(fleet, node)
    fleet.inventory.without_agent.pop(event.node, None)
    node.last_contact_us = max(node.last_contact_us, recorded.at_us)


def _node_retired(fleet: Fleet, recorded: Recorded, event: rulings.NodeRetired) -> None:
    node = fleet.nodes.get(event.node)
    if node is None:
        return
    node.retired = True
    node.silent = False
    clones.forget(fleet, node)
    fleet.inventory.unreachable.pop(event.node, None)
    fleet.restore.waiting.discard(event.node)
    if event.node in fleet.inventory.expected:
        fleet.inventory.without_agent[event.node] = fleet.inventory.expected[event.node]
    for name in fleet.node_units.get(event.node, ()):
        unit = fleet.units[name]
        nodes = {rank.node for rank in unit.known_ranks.values()}
        gone = all(n not in fleet.nodes or fleet.nodes[n].retired for n in nodes)
        if gone and not unit.live_instances():
            unit.superseded = True


def _fleet_expected(fleet: Fleet, recorded: Recorded, event: rulings.FleetExpected) -> None:
    fleet.inventory.position = recorded.position
    fleet.inventory.expected = {node.name: node.sm for node in event.nodes}
    fleet.inventory.without_agent = {
        name: sm
        for name, sm in fleet.inventory.expected.items()
        if name not in fleet.nodes or fleet.nodes[name].retired
    }


def _restore_finished(fleet: Fleet, recorded: Recorded, event: rulings.RestoreFinished) -> None:
    fleet.restore.finished = True


def _gate_published(fleet: Fleet, recorded: Recorded, event: rulings.GatePublished) -> None:
    fleet.take_gate(event.gate)
    for sm in event.gate.candidate_sms:  # published as a candidate again: it is one
        fleet.graduated.pop((event.gate.id, sm), None)
    evolve_checks.release(fleet)


def _gate_mode_set(fleet: Fleet, recorded: Recorded, event: rulings.GateModeSet) -> None:
    fleet.modes[(event.gate, event.sm)] = event.mode


def _gate_disabled(fleet: Fleet, recorded: Recorded, event: rulings.GateDisabled) -> None:
    for sm in event.sms:
        fleet.disabled.setdefault((event.gate, sm), recorded.position)


def _gate_enabled(fleet: Fleet, recorded: Recorded, event: rulings.GateEnabled) -> None:
    for sm in event.sms:
        fleet.disabled.pop((event.gate, sm), None)


def _gate_graduated(fleet: Fleet, recorded: Recorded, event: rulings.GateGraduated) -> None:
    gate = fleet.gates[event.gate]
    fleet.take_gate(graduation.graduated(gate, event.sm))
    fleet.graduated[(event.gate, event.sm)] = recorded.position
    evolve_checks.release(fleet)


def _policy_published(fleet: Fleet, recorded: Recorded, event: rulings.PolicyPublished) -> None:
    fleet.policy = event.policy
    evolve_checks.release(fleet)


def _issue_published(fleet: Fleet, recorded: Recorded, event: rulings.IssuePublished) -> None:
    fleet.issues[event.issue.id] = event.issue
    fleet.issue_positions[event.issue.id] = recorded.position
    fleet.blocking = matching.blocking(fleet.issues.values())


def _issue_withdrawn(fleet: Fleet, recorded: Recorded, event: rulings.IssueWithdrawn) -> None:
    fleet.issues.pop(event.issue_id, None)
    fleet.issue_positions.pop(event.issue_id, None)
    fleet.blocking = matching.blocking(fleet.issues.values())


def _build_announced(fleet: Fleet, recorded: Recorded, event: rulings.BuildAnnounced) -> None:
    fleet.announced[event.name] = event


def _unit_excluded(fleet: Fleet, recorded: Recorded, event: rulings.UnitExcluded) -> None:
    unit = unit_of(fleet, event.unit, recorded.position)
    unit.excluded = True
    unit.hands_off_position = recorded.position


def _unit_included(fleet: Fleet, recorded: Recorded, event: rulings.UnitIncluded) -> None:
    unit = unit_of(fleet, event.unit, recorded.position)
    unit.excluded = False
    unit.released = False


def _pin_set(fleet: Fleet, recorded: Recorded, event: rulings.PinSet) -> None:
    unit = unit_of(fleet, event.unit, recorded.position)
    unit.pin, unit.pin_position = event, recorded.position


def _pin_removed(fleet: Fleet, recorded: Recorded, event: rulings.PinRemoved) -> None:
    unit_of(fleet, event.unit, recorded.position).pin = None


def _flag_adopted(fleet: Fleet, recorded: Recorded, event: rulings.FlagAdopted) -> None:
    unit_of(fleet, event.unit, recorded.position).flag_adopted = True


def _memory_cleared(fleet: Fleet, recorded: Recorded, event: rulings.MemoryCleared) -> None:
    for uuid in event.gpu_uuids:
        for key in event.kernel_keys:
            memory = fleet.gpu_memory.get((uuid, key))
            if memory is not None and memory[0] in IN_SERVICE:
                del fleet.gpu_memory[(uuid, key)]
    for key in event.kernel_keys:
        fleet.failed_exits.pop((event.unit, key), None)


def _adoption_decided(fleet: Fleet, recorded: Recorded, event: rulings.AdoptionDecided) -> None:
    unit = unit_of(fleet, event.unit, recorded.position)
    unit.adoption = event.ruling
    if event.ruling == "taken_back":
        unit.drop_grants()
    elif event.kernel_key is not None:
        unit.take_grant(
            Grant(
                kernel_keys=(event.kernel_key,),
                rollout=None,
                wave=None,
                position=recorded.position,
                since_led_us=fleet.led_us(recorded.at_us),
                launched=True,
            )
        )


def _override_released(fleet: Fleet, recorded: Recorded, event: rulings.OverrideReleased) -> None:
    unit = unit_of(fleet, event.unit, recorded.position)
    unit.released = True
    unit.hands_off_position = recorded.position
    unit.drop_grants()
    unit.appended_value = None
    unit.appended_for = None


def _freeze_declared(fleet: Fleet, recorded: Recorded, event: rulings.FreezeDeclared) -> None:
    fleet.freezes[event.id] = recorded.position
    fleet.freeze_led_us[event.id] = fleet.led_us(recorded.at_us)
    fleet.freeze_reasons[event.id] = event.reason
    if event.until is not None:
        fleet.freeze_ends[event.id] = windows.instant_us(event.until)


def _freeze_lifted(fleet: Fleet, recorded: Recorded, event: rulings.FreezeLifted) -> None:
    fleet.freezes.pop(event.id, None)
    fleet.freeze_led_us.pop(event.id, None)
    fleet.freeze_reasons.pop(event.id, None)
    fleet.freeze_ends.pop(event.id, None)


def _breaker_reset(fleet: Fleet, recorded: Recorded, event: rulings.BreakerReset) -> None:
    fleet.breaker_position = None
    fleet.breaker_units = ()
    fleet.bad_signs.clear()


def _rollout_proposed(fleet: Fleet, recorded: Recorded, event: rulings.RolloutProposed) -> None:
    fleet.rollouts[event.plan.id] = Rollout(
        plan=event.plan,
        author=event.author,
        position=recorded.position,
        since_led_us=fleet.led_us(recorded.at_us),
        phase_position=recorded.position,
    )


def _set_phase(fleet: Fleet, recorded: Recorded, rollout: str, phase: Phase) -> Rollout:
    found = fleet.rollouts[rollout]
    found.phase = phase
    found.phase_position = recorded.position
    return found


def _rollout_approved(fleet: Fleet, recorded: Recorded, event: rulings.RolloutApproved) -> None:
    rollout = fleet.rollouts[event.rollout]
    if event.approver not in rollout.approvers:
        rollout.approvers.append(event.approver)
    if len(rollout.approvers) >= rollout.plan.approvals:
        _set_phase(fleet, recorded, event.rollout, "approved")


def _rollout_started(fleet: Fleet, recorded: Recorded, event: rulings.RolloutStarted) -> None:
    rollout = _set_phase(fleet, recorded, event.rollout, "running")
    rollout.since_led_us = fleet.led_us(recorded.at_us)
    rollout.judged_by = fleet.policy
    before = fleet.rollouts.get(rollout.plan.supersedes or "")
    if before is not None and before.halted_code == "superseded":
        takeover.carry_over(fleet, before, rollout, baked=event.carried_keys)


def _rollout_paused(fleet: Fleet, recorded: Recorded, event: rulings.RolloutPaused) -> None:
    _set_phase(fleet, recorded, event.rollout, "paused")


def _rollout_resumed(fleet: Fleet, recorded: Recorded, event: rulings.RolloutResumed) -> None:
    rollout = _set_phase(fleet, recorded, event.rollout, "running")
    if rollout.waves and rollout.waves[-1].verdict in (None, "inconclusive"):
        wave = rollout.waves[-1]
        wave.verdict = None
        wave.since_led_us = fleet.led_us(recorded.at_us)
        wave.position = recorded.position


def _rollout_halted(fleet: Fleet, recorded: Recorded, event: rulings.RolloutHalted) -> None:
    _set_phase(fleet, recorded, event.rollout, "halted").halted_code = event.code


def _rollout_aborted(fleet: Fleet, recorded: Recorded, event: rulings.RolloutAborted) -> None:
    aborted = _set_phase(fleet, recorded, event.rollout, "aborted")
    if event.code != "by_person":
        aborted.halted_code = event.code


HANDLERS: dict[type, Handler] = {
    rulings.NodeEnrolled: _node_enrolled,
    rulings.NodeRetired: _node_retired,
    rulings.FleetExpected: _fleet_expected,
    rulings.RestoreFinished: _restore_finished,
    rulings.GatePublished: _gate_published,
    rulings.GateModeSet: _gate_mode_set,
    rulings.GateDisabled: _gate_disabled,
    rulings.GateEnabled: _gate_enabled,
    rulings.GateGraduated: _gate_graduated,
    rulings.PolicyPublished: _policy_published,
    rulings.IssuePublished: _issue_published,
    rulings.IssueWithdrawn: _issue_withdrawn,
    rulings.BuildAnnounced: _build_announced,
    rulings.CheckRuled: evolve_checks.take_ruling,
    rulings.BuildAccepted: evolve_checks.take_acceptance,
    rulings.UnitExcluded: _unit_excluded,
    rulings.UnitIncluded: _unit_included,
    rulings.PinSet: _pin_set,
    rulings.PinRemoved: _pin_removed,
    rulings.FlagAdopted: _flag_adopted,
    rulings.MemoryCleared: _memory_cleared,
    rulings.AdoptionDecided: _adoption_decided,
    rulings.OverrideReleased: _override_released,
    rulings.FreezeDeclared: _freeze_declared,
    rulings.FreezeLifted: _freeze_lifted,
    rulings.BreakerReset: _breaker_reset,
    rulings.RolloutProposed: _rollout_proposed,
    rulings.RolloutApproved: _rollout_approved,
    rulings.RolloutStarted: _rollout_started,
    rulings.RolloutPaused: _rollout_paused,
    rulings.RolloutResumed: _rollout_resumed,
    rulings.RolloutHalted: _rollout_halted,
    rulings.RolloutAborted: _rollout_aborted,
    revocation.GrantRevoked: revoking.take,
}
