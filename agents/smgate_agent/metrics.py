"""The agent's own metrics, over HTTP. Series exist at 0 before anything happens."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Final, get_args

import prometheus_client

from smgate_agent import fallback

PHASES: Final = get_args(fallback.Phase)
STATES: Final = ("starting", "serving", "unhealthy", "exited", "unknown")
SOURCES: Final = ("server_info", "model_info", "health", "log", "metrics")
REASONS: Final = ("malformed", "timeout", "too_large")


class Metrics:
    """Every metric of the agent, in one registry of its own."""

    def __init__(self, instances: Iterable[str]) -> None:
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = prometheus_client.CollectorRegistry()
        self.memory_fallback = prometheus_client.Gauge(
            "smgate_agent_memory_fallback_active",
            "1 while MXFP4 experts of this instance are (or are about to be, or were) BF16.",
            ["instance", "phase"],
            registry=self.registry,
        )
        self.state = prometheus_client.Gauge(
            "smgate_agent_instance_state",
            "1 for the state an instance is in; unknown is a state.",
            ["instance", "state"],
            registry=self.registry,
        )
        self.failures = prometheus_client.Counter(
            "smgate_agent_parse_failures",
            "Readings of a server or its log that could not be used.",
            ["instance", "source", "reason"],
            registry=self.registry,
        )
        self.outbox_depth = self._gauge("outbox_depth", "Facts that are not acknowledged yet.")
        self.outbox_dropped = self._gauge("outbox_dropped_facts", "Facts that found no room.")
        self.last_acknowledged = self._gauge(
            "last_acknowledged_timestamp_seconds", "When the controller last acknowledged facts."
        )
        self.reachable = self._gauge("controller_reachable", "1 if the controller answers.")
        self.enrolled = self._gauge("enrolled", "1 if this node has a credential.")
        self.generation = self._gauge("directive_generation", "Generation of the held directive.")
        self.gpus = self._gauge("gpus", "GPUs that the driver shows.")
        for name in instances:
            self.add(name)

    def add(self, name: str) -> None:
        """Show an instance's series from now on; more than once is fine."""
        for phase in PHASES:
            self.memory_fallback.labels(name, phase)
        for state in STATES:
            self.state.labels(name, state)
        for source in SOURCES:
            for reason in REASONS:
                self.failures.labels(name, source, reason)

    def serve(self, port: int, *, host: str) -> threading.Thread:
        """Serve at this address, in a daemon thread."""
        _, thread = prometheus_client.start_http_server(port, addr=host, registry=self.registry)
        return thread

    def instance(self, name: str, *, state: str | None, phase: str | None) -> None:
        """Show what one instance is doing."""
        for known in STATES:
            self.state.labels(name, known).set(known == (state or "unknown"))
        for known in PHASES:
            self.memory_fallback.labels(name, known).set(known == phase)

    def _gauge(self, name: str, text: str) -> prometheus_client.Gauge:
        return prometheus_client.Gauge(f"smgate_agent_{name}", text, registry=self.registry)
