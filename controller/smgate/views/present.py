"""Owns how nodes and units look from outside: pure functions from the fleet to rows.

Keys are stable, times are ISO-8601 UTC, durations seconds, sizes bytes. A row depends on the log
alone, so a view that is dropped and rebuilt comes out equal; what only heartbeats know is laid over
it when it is served (`with_contact`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from smgate.domain import delivered, exposure, readings, take_back
from smgate.domain.state import Fleet, Grant, Rank, Unit, UnitLaunch
from smgate.domain.state_nodes import Instance, Node
from smgate.views.shape import Row, iso, plain


def nodes(fleet: Fleet) -> dict[str, Row]:
    """All nodes."""
    return {name: node(fleet, fleet.nodes[name]) for name in sorted(fleet.nodes)}


def node(fleet: Fleet, one: Node) -> Row:
    """One machine."""
    reported = one.reported
    gpus = reported.gpus if reported else ()
    sms = {fleet.sm_of(gpu.uuid) for gpu in gpus}
    return {
        "node": one.name,
        "position": one.position,
        "state": _node_state(one, cloned=one.name in fleet.inventory.cloned),
        "enrolled": one.machine_id is not None,
        "silent": one.silent,
        "retired": one.retired,
        "last_fact_at": iso(one.last_contact_us or None),
        "sms": sorted(sm for sm in sms if sm is not None),
        "gpus": [
            {
                "uuid": gpu.uuid,
                "sm": fleet.sm_of(gpu.uuid),
                "name": gpu.name,
                "memory_bytes": gpu.memory_bytes,
            }
            for gpu in gpus
        ],
        "driver_version": reported.driver_version if reported else None,
        "agent_version": reported.agent_version if reported else None,
        "rack": reported.rack if reported else None,
        "chassis": reported.chassis if reported else None,
        "pool": bool(reported and reported.pool),
        "ephemeral": bool(reported and reported.ephemeral),
        "log_gaps": sorted(one.gaps),
        "units": sorted(_units_on(fleet, one.name)),
    }


def _units_on(fleet: Fleet, node: str) -> Iterator[str]:
    for name in fleet.node_units.get(node, ()):
        found = fleet.units[name]
        if found.live and node in unit_nodes(found):
            yield name


def _node_state(one: Node, *, cloned: bool) -> str:
    if one.retired:
        return "retired"
    if one.silent:
        return "silent"
    if cloned:
        return "cloned"
    return "reporting" if one.reported is not None else "enrolled"


def units(fleet: Fleet) -> dict[str, Row]:
    """All units that are or were."""
    return {name: unit_row(fleet, fleet.units[name]) for name in sorted(fleet.units)}


def unit_row(fleet: Fleet, one: Unit) -> Row:
    """One server as it is kept."""
    return with_held(unit(fleet, one), {})


def unit(fleet: Fleet, one: Unit) -> Row:
    """One server: all its ranks."""
    running = one.live_instances()
    fallbacks = {i.fallback for i in one.instances.values() if i.fallback is not None}
    return {
        "id": one.id,
        "position": max(
            [one.position, one.override_position, *(i.position for i in one.instances.values())]
        ),
        "live": one.live,
        "nodes": unit_nodes(one),
        "sm": exposure.unit_sm(fleet, one),
        "gate": _gate(fleet, one),
        "override": override(one),
        "delivery": plain(delivered.of_unit(one)),
        "held_generations": take_back.held_by_facts(one),
        "told_nodes": list(one.override.nodes) if one.override else [],
        "told": False,
        "effective": [
            {
                "rank": i.node_rank,
                "node": i.node,
                "runner": i.effective.runner if i.effective else None,
                "a2a": i.effective.a2a if i.effective else None,
            }
            for i in running
        ],
        "on_target": exposure.runs_target(fleet, one),
        "states": sorted({i.state for i in one.instances.values()}),
        "instances": [instance(fleet, i) for _, i in sorted(one.instances.items())],
        "launch": _launch(fleet, one.launch),
        "grant": _grant(one.grant),
        "pin": plain(one.pin) if one.pin else None,
        "excluded": one.excluded,
        "released": one.released,
        "flag_adopted": one.flag_adopted,
        "adoption": one.adoption,
        "fallback": min(fallbacks) if fallbacks else None,
        "exposed": exposure.exposed(fleet, one),
        "uncontrolled": exposure.uncontrolled(fleet, one),
    }


def unit_nodes(one: Unit) -> list[str]:
    """The nodes a unit's ranks and servers are on."""
    ranks = one.launch.ranks.values() if one.launch else ()
    return sorted({*(r.node for r in ranks), *(i.node for i in one.live_instances())})


def _gate(fleet: Fleet, one: Unit) -> str | None:
    for rank in one.launch.ranks.values() if one.launch else ():
        model = fleet.model_of(rank.planned)
        gate = fleet.gate_of(model.architecture if model else None)
        if gate is not None:
            return gate.id
    for running in one.live_instances():
        gate = fleet.gate_of(readings.architecture_of(fleet, running))
        if gate is not None:
            return gate.id
    return None


def override(one: Unit) -> Row | None:
    """The standing decision, as the log has it."""
    event = one.override
    if event is None:
        return None
    return {
        "form": event.form,
        "value": event.value,
        "code": event.code,
        "sentence": event.sentence,
        "would": plain(event.would),
        "also": list(event.also),
        "facts": list(event.facts),
        "no_safe_value": event.no_safe_value,
        "lease_s": event.lease_s,
        "given_for": plain(event.given_for),
        "position": one.override_position,
        "decided_at": iso(event.now_us),
        "as_of_position": event.as_of_position,
        "rules_version": event.rules_version,
    }


def instance(fleet: Fleet, one: Instance) -> Row:
    """One running server process tree."""
    return {
        "id": one.id,
        "node": one.node,
        "rank": one.node_rank,
        "state": one.state,
        "launch_id": one.launch_id,
        "gpu_uuids": list(one.gpu_uuids),
        "sm": readings.instance_sm(fleet, one),
        "restarts": one.restarts,
        "effective": plain(one.effective) if one.effective else None,
        "on_target": readings.on_target(fleet, one),
        "architecture": one.architecture,
        "sglang_version": one.sglang_version,
        "weight_bytes": one.weight_bytes,
        "fallback": one.fallback,
        "fallback_excess_bytes": one.fallback_excess_bytes,
        "tokens_per_s": one.tokens_per_s,
    }


def _launch(fleet: Fleet, one: UnitLaunch | None) -> Row | None:
    if one is None:
        return None
    return {
        "nnodes": one.nnodes,
        "position": one.opened_position,
        "launch_ids": list(one.launch_ids),
        "complete": one.complete,
        "decided": one.decided is not None,
        "ranks": [_rank(fleet, number, one.ranks[number]) for number in sorted(one.ranks)],
    }


def _rank(fleet: Fleet, number: int, one: Rank) -> Row:
    planned = one.planned
    model = fleet.model_of(planned)
    return {
        "rank": number,
        "node": one.node,
        "position": one.position,
        "launch_id": planned.launch_id,
        "sm": readings.rank_sm(fleet, one),
        "kernel_key": readings.rank_key(fleet, one),
        "architecture": model.architecture if model else None,
        "asked_runner": planned.asked_runner,
        "asked_a2a": planned.asked_a2a,
        "dry_resolved": plain(planned.dry_resolved) if planned.dry_resolved else None,
        "sglang_version": planned.build.sglang_version,
        "flashinfer_version": planned.build.flashinfer_version,
        "restarter": planned.restarter,
        "applied": None
        if one.applied is None
        else {
            "form": one.applied.form,
            "value": one.applied.value,
            "source": one.applied.source,
            "code": one.applied.code,
            "generation": one.applied.generation,
        },
    }


def _grant(one: Grant | None) -> Row | None:
    if one is None:
        return None
    return {
        "kernel_keys": list(one.kernel_keys),
        "rollout": one.rollout,
        "wave": one.wave,
        "position": one.position,
        "launched": one.launched,
        "bake_s": one.bake_s,
    }


def with_contact(row: Row, *, last_seen_us: int | None, held_generation: int | None) -> Row:
    """A node's row with what only its heartbeats know."""
    return row | {"last_seen_at": iso(last_seen_us), "held_generation": held_generation}


def with_held(row: Row, held: Mapping[str, int]) -> Row:
    """A unit's row with the directives that its nodes said they hold."""
    given = row["override"]
    if given is None:
        return row
    known = row["held_generations"]
    held_by = {name: max(known.get(name, 0), held.get(name, 0)) for name in row["told_nodes"]}
    told_all = bool(held_by) and all(value >= given["position"] for value in held_by.values())
    return row | {"held_generations": held_by, "told": told_all}
