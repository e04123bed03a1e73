"""Owns every metric of the controller: names, help, labels, in one place.

What is about the fleet is computed from the fold at each scrape, so a restart resets no counter.
Label sets stand at 0 before anything happens: a counter that is born at 1 never fires an alert.
There is no series per node, unit or build; agents export their own.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, get_args

import prometheus_client
import typing_extensions
from prometheus_client import registry

from smgate import metric_log
from smgate.domain import alarms, exposure, readings, state_rollouts, take_back
from smgate.domain.state import Fleet, Unit
from smgate.domain.state_evidence import Standing
from smgate.metric_families import Labels, Metric, counter, gauge, gauges, snake, zeros

PHASES: Final = ("imminent", "active", "crashed")
STANDINGS: Final[tuple[str, ...]] = get_args(Standing)
ROLLOUT_PHASES: Final[tuple[str, ...]] = get_args(state_rollouts.Phase)
VERDICTS: Final = ("running", "passed", "failed", "inconclusive")
UNCONTROLLED_REASONS: Final = ("no_gate", "explicit_choice", "no_grant")
STAGES: Final = ("decided", "told", "safe")
BATCH_RESULTS: Final = ("stored", "repeated", "refused")
ROLLOUTS_MAX: Final = 20
"""Rollouts with a series of their own: those not ended, then the newest."""
OTHER: Final = "other"
RUNNERS_KNOWN: Final = frozenset(
    {
        "auto",
        "marlin",
        "flashinfer_mxfp4",
        "triton",
        "triton_kernel",
        "deep_gemm",
        "flashinfer_trtllm",
    }
)
"""Runners with a label of their own; the rest are `other`, so that no node can make series."""
CODES_MAX: Final = 40

OfFleet = Callable[[Fleet], list[Metric]]
Families = Iterator[Metric]


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """What only this process knows."""

    version: str
    leading: bool
    leader_failures: int
    rounds_exhausted: int
    planned_position: int
    head_position: int
    view_position: int
    waiting: int
    undelivered_units: int
    taken_back: Mapping[str, take_back.Stages]
    beside: metric_log.Beside


class Requests:
    """Counters of HTTP requests, kept by this process."""

    def __init__(self, into: registry.CollectorRegistry) -> None:
        # Prometheus before 3.0 would store a `_created` series beside every counter.
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self.total: Final = prometheus_client.Counter(
            "smgate_http_requests",
            "HTTP requests by route and status class.",
            ("route", "status"),
            registry=into,
        )
        self.seconds: Final = prometheus_client.Histogram(
            "smgate_http_request_duration_seconds",
            "Time to answer, without the long-polls' waiting routes.",
            ("route",),
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
            registry=into,
        )
        self.facts: Final = prometheus_client.Counter(
            "smgate_facts_batches",
            "Batches of facts by result.",
            ("result",),
            registry=into,
        )
        for result in BATCH_RESULTS:
            self.facts.labels(result)


class FleetCollector(registry.Collector):
    """The fleet's metrics at each scrape. `read` runs its argument while the fleet stands still."""

    def __init__(
        self, read: Callable[[OfFleet], list[Metric]], process: Callable[[], Process]
    ) -> None:
        self._read: Final = read
        self._process: Final = process
        self._errors = 0

    @typing_extensions.override
    def collect(self) -> Iterable[Metric]:
        """All families; if they cannot be computed, an error is counted and only that is said."""
        started_s = time.perf_counter()
        found: list[Metric] = []
        try:
            found = self._read(lambda fleet: list(of_fleet(fleet)))
            found.extend(of_process(self._process()))
        except Exception:  # noqa: BLE001  a scrape must say that it failed, not fail
            self._errors += 1
        yield from found
        yield gauge(
            "smgate_collector_duration_seconds",
            "Time to compute the fleet's metrics.",
            time.perf_counter() - started_s,
        )
        yield counter("smgate_collector_errors", "Scrapes that failed.", (), {(): self._errors})

    def describe(self) -> Iterable[Metric]:
        """Nothing: registering must not fold the log."""
        return ()


def of_fleet(fleet: Fleet) -> Families:
    """Everything that follows from the log."""
    yield from _units(fleet)
    yield from _fallbacks(fleet)
    yield from _evidence(fleet)
    yield from _rollouts(fleet)
    yield from _state(fleet)
    yield counter(
        "smgate_events",
        "Events in the log.",
        ("type",),
        {(snake(name),): count for name, count in fleet.events_total.items()},
    )


def sms_of(fleet: Fleet) -> list[str]:
    """Every SM that a gate names or a node has."""
    named = {
        sm for gate in fleet.gates.values() for sm in (*gate.baseline_sms, *gate.candidate_sms)
    }
    return sorted(named | set(fleet.gpu_sms.values()))


def _units(fleet: Fleet) -> Families:
    sms = sms_of(fleet)
    exposed = zeros(sms)
    uncontrolled = zeros(sms, UNCONTROLLED_REASONS)
    units: Counter[Labels] = Counter()
    safe: Counter[Labels] = Counter()
    adopted = zeros(sms)
    granted = zeros(sms)
    for unit in fleet.units.values():
        if not unit.live:
            continue
        sm = exposure.unit_sm(fleet, unit) or "unknown"
        units[(sm, _override_label(unit), _effective_label(unit))] += 1
        if unit.override is not None and _is_safe(fleet, unit):
            safe[(sm, unit.override.code)] += 1
        if (sm,) not in exposed:
            continue
        exposed[(sm,)] += exposure.exposed(fleet, unit)
        adopted[(sm,)] += unit.adoption == "adopted"
        granted[(sm,)] += unit.grant is not None
        if exposure.uncontrolled(fleet, unit):
            uncontrolled[(sm, _uncontrolled_reason(fleet, unit))] += 1
    yield gauges(
        "smgate_exposed_units", "Units on the target against the decision.", ("sm",), exposed
    )
    yield gauges(
        "smgate_uncontrolled_units",
        "Units that run or would run the target with no grant.",
        ("sm", "reason"),
        uncontrolled,
    )
    yield gauges(
        "smgate_adopted_units", "Units first seen on the target, not ruled on.", ("sm",), adopted
    )
    yield gauges("smgate_granted_units", "Units with a grant.", ("sm",), granted)
    yield gauges(
        "smgate_units",
        "Live units by decision and by what they run.",
        ("sm", "override", "effective"),
        units,
    )
    yield gauges(
        "smgate_safe_by_code_units",
        "Units on the safe value, by the rule that put them there.",
        ("sm", "code"),
        _most_common(safe),
    )


def _uncontrolled_reason(fleet: Fleet, unit: Unit) -> str:
    if exposure.asks_target(fleet, unit):
        return "explicit_choice"
    gated = [i for i in unit.live_instances() if i.launch_id in fleet.launch_units]
    return "no_grant" if gated else "no_gate"


def _override_label(unit: Unit) -> str:
    event = unit.override
    if event is None:
        return "none"
    if event.form != "append":
        return event.form
    return _runner_label(event.value)


def _effective_label(unit: Unit) -> str:
    attested = {i.effective.runner for i in unit.live_instances() if i.effective is not None}
    if not attested:
        return "none"
    return _runner_label(attested.pop()) if len(attested) == 1 else "mixed"


def _runner_label(runner: str | None) -> str:
    if runner is None:
        return "none"
    return runner if runner in RUNNERS_KNOWN else OTHER


def _is_safe(fleet: Fleet, unit: Unit) -> bool:
    event = unit.override
    targets = {gate.target for gate in fleet.gates.values()}
    return event is not None and event.form == "append" and event.value not in targets


def _most_common(counts: Counter[Labels]) -> dict[Labels, int]:
    """The most frequent codes; the rest of each SM under `other` (codes may name issues)."""
    kept: dict[Labels, int] = {}
    for number, ((sm, code), count) in enumerate(
        sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    ):
        name = code if number < CODES_MAX else OTHER
        kept[(sm, name)] = kept.get((sm, name), 0) + count
    return kept


def _fallbacks(fleet: Fleet) -> Families:
    sms = [*sms_of(fleet), "unknown"]
    total = zeros(sms, PHASES)
    active = zeros(sms, PHASES)
    excess = zeros(sms)
    for key, count in fleet.fallbacks_total.items():
        total[key] = count
    for instance in fleet.instances.values():
        if instance.fallback is None:
            continue
        sm = readings.instance_sm(fleet, instance) or "unknown"
        active[(sm, instance.fallback)] = active.get((sm, instance.fallback), 0) + 1
        excess[(sm,)] = excess.get((sm,), 0) + instance.fallback_excess_bytes
    yield counter(
        "smgate_memory_fallbacks",
        "Times that MXFP4 experts were seen to become BF16.",
        ("sm", "phase"),
        total,
    )
    yield gauges(
        "smgate_memory_fallback_active_instances",
        "Servers in that state now.",
        ("sm", "phase"),
        active,
    )
    yield gauges(
        "smgate_memory_fallback_excess_bytes",
        "Bytes above the packed size in those servers.",
        ("sm",),
        excess,
    )


def _evidence(fleet: Fleet) -> Families:
    keys = zeros(sms_of(fleet), STANDINGS)
    for key in fleet.keys.values():
        keys[(key.sm, key.standing)] = keys.get((key.sm, key.standing), 0) + 1
    yield gauges("smgate_kernel_keys", "Kernel keys by standing.", ("sm", "standing"), keys)


def _rollouts(fleet: Fleet) -> Families:
    phases = zeros(ROLLOUT_PHASES)
    verdicts = zeros(VERDICTS)
    for rollout in fleet.rollouts.values():
        phases[(rollout.phase,)] += 1
        for wave in rollout.waves:
            verdicts[(wave.verdict or "running",)] += 1
    yield gauges("smgate_rollouts", "Rollouts by phase.", ("phase",), phases)
    yield gauges("smgate_waves", "Opened waves by verdict.", ("verdict",), verdicts)
    newest = sorted(fleet.rollouts.values(), key=lambda one: (one.ended, -one.position))
    yield gauges(
        "smgate_rollout_wave",
        "Number of the last opened wave, from 1; 0 before the first.",
        ("rollout", "phase"),
        {(one.plan.id, one.phase): len(one.waves) for one in newest[:ROLLOUTS_MAX]},
    )


def _state(fleet: Fleet) -> Families:
    candidates = sorted({sm for gate in fleet.gates.values() for sm in gate.candidate_sms})
    episodes = Counter(zeros(candidates, alarms.SENTENCES))
    for episode in fleet.episodes.values():
        if episode.closed_us is None:
            episodes[(episode.sm, episode.cause)] += 1
    yield gauges("smgate_episodes_open", "Alarms that are open.", ("sm", "cause"), episodes)
    changes = zeros(("asked", "break_glass", "held"))
    for change in fleet.waiting_changes():
        changes[(change.kind,)] += 1
    yield gauges("smgate_changes_open", "Changes waiting for a person.", ("kind",), changes)
    missing = zeros(sms_of(fleet)) | {(sm,): 0 for sm in fleet.inventory.expected.values()}
    for sm in fleet.inventory.without_agent.values():
        missing[(sm,)] += 1
    yield gauges(
        "smgate_expected_nodes_without_agent",
        "Machines that should exist and have no agent.",
        ("sm",),
        missing,
    )
    live = [node for node in fleet.nodes.values() if not node.retired]
    for name, documentation, value in (
        ("nodes", "Nodes that are not retired.", len(live)),
        ("silent_nodes", "Nodes not heard for too long.", sum(n.silent for n in live)),
        ("log_gap_nodes", "Nodes that lost facts.", sum(bool(n.gaps) for n in live)),
        ("breaker_open", "1 while the breaker is open.", fleet.breaker_position is not None),
        (
            "restore_unfinished",
            "1 after a restore until a person ends it.",
            not fleet.restore.finished,
        ),
        ("freezes", "Freezes in force.", len(fleet.freezes)),
        ("checks_wanted", "Self-tests not answered.", sum(w.open for w in fleet.wanted.values())),
        ("known_issues", "Known issues in force.", len(fleet.issues)),
        ("epoch", "Epoch of the last leader in the log.", fleet.epoch),
        ("log_position", "Position folded.", fleet.position),
    ):
        yield gauge(f"smgate_{name}", documentation, value)


def of_process(process: Process) -> Families:
    """Everything that only this process knows."""
    yield gauges("smgate_build_info", "1, with the version.", ("version",), {(process.version,): 1})
    yield gauge("smgate_leader", "1 if this process leads.", process.leading)
    yield counter(
        "smgate_leader_failures", "Times that leading failed.", (), {(): process.leader_failures}
    )
    yield counter(
        "smgate_leader_rounds_exhausted",
        "Turns that ended before everything was planned.",
        (),
        {(): process.rounds_exhausted},
    )
    lag = max(0, process.head_position - process.planned_position) if process.leading else 0
    yield gauge("smgate_decision_lag_events", "Events not planned on yet.", lag)
    yield gauges(
        "smgate_projection_lag_events",
        "Events that a view does not have yet; it catches up when it is read.",
        ("projection",),
        {("views",): max(0, process.head_position - process.view_position)},
    )
    yield gauge(
        "smgate_undelivered_units",
        "Units whose nodes do not all hold the standing decision.",
        process.undelivered_units,
    )
    yield gauges(
        "smgate_take_back_units",
        "Units taken back while they ran the target: decided, told, attested safe.",
        ("sm", "stage"),
        {(sm, s): getattr(one, s) for sm, one in process.taken_back.items() for s in STAGES},
    )
    yield from metric_log.of_log(process.beside)
    yield gauge("smgate_long_polls", "Long-polls waiting in this process.", process.waiting)
