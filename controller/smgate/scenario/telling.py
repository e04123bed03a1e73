"""Events as sentences of an incident report, for people who were not there."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Final

from smgate.domain import bodies, decisions as d, facts as f, rulings as r
from smgate.domain.events import Event, Recorded
from smgate.domain.keys import driver_branch

NAMES_MAX: Final = 4
"""Names written out in one line; of more, the number is said."""


def names(found: Sequence[str]) -> str:
    """A list of names, short."""
    more = len(found) - NAMES_MAX
    return ", ".join(found[:NAMES_MAX]) + (f" and {more} more" if more > 0 else "")


def _reported(e: f.NodeReported) -> str:
    sms = sorted({gpu.sm or "?" for gpu in e.gpus})
    kind = f"{len(e.gpus)} GPU{'s' * (len(e.gpus) != 1)} of SM {', '.join(sms)}"
    return ", ".join(
        [f"reports {kind}", *([e.rack] if e.rack else []), *(["pool"] if e.pool else [])]
    )


def _launch(e: f.LaunchPlanned) -> str:
    build = e.build
    driver = f", driver {driver_branch(build.driver_version)}" if build.driver_version else ""
    said = [
        f"launches {e.launch_id} with SGLang {build.sglang_version or '?'}, "
        f"FlashInfer {build.flashinfer_version or '?'}{driver}"
    ]
    if e.nnodes > 1:
        said.append(
            f"rank {e.node_rank} of {e.nnodes} of {e.unit_name or e.workload or e.rendezvous}"
        )
    if e.asked_runner is not None:
        said.append(f"asks for {e.asked_runner}")
    if e.asked_a2a not in (None, "none"):
        said.append(f"asks for a2a {e.asked_a2a}")
    if e.config_file in ("ignored", "unreadable"):
        said.append(f"its --config file is {e.config_file}")
    if not e.argv_read:
        said.append("its arguments could not be read")
    return "; ".join(said)


def _instance(e: f.InstanceChanged) -> str:
    code = "" if e.exit_code is None else f" with code {e.exit_code}"
    return f"server {e.instance_id} {'exited' if e.state == 'exited' else f'is {e.state}'}{code}"


def _check(e: f.CheckFinished) -> str:
    bad = "" if e.outcome == "passed" else f" ({e.reason})"
    return f"check {e.check} {e.outcome}{bad} on {names(e.gpu_uuids)}"


def _bake(e: f.BakeInterval) -> str:
    failed = f", {e.failures} of them failed" if e.failures else ""
    return f"server {e.instance_id} answered {e.requests} requests in {e.interval_s} s{failed}"


def _fallback(e: f.MemoryFallbackSeen) -> str:
    more = f", {e.excess_bytes / 1e9:.0f} GB too much" if e.excess_bytes else ""
    return f"the experts of server {e.instance_id} become BF16: {e.phase}{more}"


def _applied(e: f.OverrideApplied) -> str:
    by = "" if e.source == "directive" else " by the gate's own rule, with no word from smgate"
    return f"launch {e.launch_id} starts with {e.value or 'nothing appended'}{by}"


def _a2a(e: f.EffectiveSeen) -> str:
    return f"server {e.instance_id} runs {e.runner}" + (f", a2a {e.a2a}" if e.a2a != "none" else "")


FACTS: Final[dict[type, Callable[[Any], str]]] = {
    f.NodeReported: _reported,
    f.LaunchPlanned: _launch,
    f.CheckFinished: _check,
    f.InstanceChanged: _instance,
    f.EffectiveSeen: _a2a,
    f.MemoryFallbackSeen: _fallback,
    f.MemoryFallbackCleared: lambda e: f"the experts of server {e.instance_id} are packed",
    f.GpuFaultSeen: lambda e: f"Xid {e.xid} on {e.gpu_uuid}",
    f.BakeInterval: _bake,
    f.OverrideApplied: _applied,
}

NEWS: Final[dict[type, Callable[[Any], str]]] = {
    d.BuildQualified: lambda e: f"key {e.kernel_key} is QUALIFIED on {len(e.gpu_sets)} GPU sets",
    d.BuildSuspected: lambda e: (
        f"key {e.kernel_key} is SUSPECT: {e.check} failed on {names(e.gpu_uuids)} ({e.reason})"
    ),
    d.FleetUnreachable: lambda e: (
        f"{len(e.nodes)} of {e.known_nodes} nodes went silent at once: {names(e.nodes)}"
    ),
    d.FleetReachable: lambda e: (
        f"{names(e.nodes)} returned; {e.unreachable_nodes} are still silent"
    ),
    d.BuildFailed: lambda e: f"key {e.kernel_key} has FAILED, in {names(e.chassis)}",
    d.BuildCleared: lambda e: (
        f"key {e.kernel_key} is cleared: the failure was {names(e.node_fault_gpu_uuids)}'s own"
    ),
    d.GrantEnded: lambda e: f"{e.unit} loses its grant: {e.sentence}",
    d.WaveOpened: lambda e: (
        f"wave {e.wave} of {e.rollout} opens with {len(e.units)} of {e.eligible}: {names(e.units)}"
    ),
    d.WaveJoined: lambda e: f"{names(e.units)} joins wave {e.wave} of {e.rollout}",
    d.WaveJudged: lambda e: f"wave {e.wave} of {e.rollout} {e.verdict.upper()}: {e.sentence}",
    d.RolloutCompleted: lambda e: f"{e.rollout} is COMPLETE with key {names(e.kernel_keys)}",
    d.BreakerTripped: lambda e: (
        f"the BREAKER opens: {len(e.units)} units went bad within {e.window_s} s: {names(e.units)}"
    ),
    d.EpisodeOpened: lambda e: f"ALARM {e.cause} on SM {e.sm}: {names(e.units)}: {e.sentence}",
    d.EpisodeClosed: lambda e: f"alarm {e.episode.partition('/')[0]} is over",
    d.WaitTimedOut: lambda e: f"TIME IS UP ({e.code}, {e.owner}): {e.sentence}",
    d.Adopted: lambda e: f"{e.unit} was found on the target: adopted until a person rules",
    d.TargetFaulted: lambda e: f"{e.unit} faulted on the target: {e.sentence}",
    d.UnitDisagreed: lambda e: (
        f"the ranks of {e.unit} DISAGREE: {', '.join(pair.runner for pair in e.pairs)}"
    ),
    d.ChangeHeld: lambda e: f"HELD for a person ({e.code} {e.subject}): {e.sentence}",
    d.DrainOrdered: lambda e: f"RESTART {e.unit} onto the safe value: {e.sentence}",
    d.DrainFinished: lambda e: f"the restart of {e.unit} is done: {e.code}",
    d.DrainFailed: lambda e: f"the restart of {e.unit} FAILED: {e.sentence}",
    r.RolloutHalted: lambda e: f"{e.rollout} HALTS ({e.code}): {e.reason}",
    r.RolloutPaused: lambda e: f"{e.rollout} is PAUSED ({e.code}): {e.reason}",
}
"""Decisions that are news by themselves."""

GROUPED: Final[dict[type, tuple[str, str]]] = {
    d.Granted: ("unit", "grants the target to {}"),
    d.NodeWentSilent: ("node", "{} went SILENT"),
    d.NodeReturned: ("node", "{} returned"),
}
"""Decisions of which many come at once: one line for all of them."""

_WORDS: Final[dict[type, Callable[[Any], str]]] = {
    **FACTS,
    **NEWS,
    r.ChangeAsked: lambda e: f'asks for: {bodies.describe(e.command, e.body)}: "{e.reason}"',
    r.BreakGlassUsed: lambda e: (
        f"BREAKS THE GLASS for {e.expires_s} s: {bodies.describe(e.command, e.body)}: "
        f'"{e.reason}"; then {e.undo}'
    ),
    d.SelfTestWanted: lambda e: f"asks {e.node} to {e.purpose} key {e.kernel_key}",
    d.OverrideSet: lambda e: f"tells {e.unit}: {e.value or e.form} ({e.code})",
}


def says(event: Event) -> str:
    """One event in words."""
    if type(event) in _WORDS:
        return _WORDS[type(event)](event)
    if type(event) in GROUPED:
        field, words = GROUPED[type(event)]
        return words.format(getattr(event, field))
    kind = "".join(f" {c.lower()}" if c.isupper() else c for c in type(event).__name__).strip()
    reason = getattr(event, "reason", None) or getattr(event, "sentence", None)
    told = [kind, *_values(event)]
    return " ".join(told) + (f': "{reason}"' if reason else "")


def _values(event: Event) -> list[str]:
    """What an event without words of its own is about, in the order of its fields."""
    found = []
    for field in dataclasses.fields(event):
        value = getattr(event, field.name)
        if field.name in ("reason", "sentence", "by", "author", "approver", "accepted_by", "code"):
            continue
        if isinstance(value, str) and value:
            found.append(value)
        elif isinstance(value, tuple) and value and all(isinstance(one, str) for one in value):
            found.append(names(value))
        elif value is True:
            found.append(field.name)
        elif hasattr(value, "id"):
            found.append(value.id)
    return found


def report(recorded: Sequence[Recorded]) -> list[str]:
    """The news of some events in a row: who, and what. Facts of nodes are no news by themselves."""
    told: list[str] = []
    groups: dict[type, list[str]] = {}
    for one in recorded:
        kind = type(one.event)
        if kind in GROUPED:
            groups.setdefault(kind, []).append(getattr(one.event, GROUPED[kind][0]))
        elif kind in NEWS or one.actor.startswith("operator:"):
            told.append(f"{one.actor.rpartition(':')[2]}: {says(one.event)}")
    told += [f"controller: {GROUPED[kind][1].format(names(of))}" for kind, of in groups.items()]
    return told
