"""What is exported fires: real exporters, scraped and judged by a real Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import prometheus_client
import pytest
from tests.prometheus import conftest

from smgate_agent import metrics as agent_metrics

pytestmark = pytest.mark.prometheus


class Exporter:
    """A registry behind a loopback port."""

    def __init__(self, registry: prometheus_client.CollectorRegistry) -> None:
        self._server, self._thread = prometheus_client.start_http_server(
            0, addr="127.0.0.1", registry=registry
        )
        self.address = f"127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def expose() -> Iterator[Callable[[prometheus_client.CollectorRegistry], str]]:
    """Serves a registry; gives its address."""
    made: list[Exporter] = []

    def serve(registry: prometheus_client.CollectorRegistry) -> str:
        made.append(Exporter(registry))
        return made[-1].address

    yield serve
    for exporter in made:
        exporter.close()


def test_a_counter_born_at_one_and_an_agents_own_series_fire_by_two_ways(
    expose: Callable[[prometheus_client.CollectorRegistry], str],
    start_prometheus: conftest.StartPrometheus,
) -> None:
    registry = prometheus_client.CollectorRegistry()
    leader = prometheus_client.Gauge("smgate_leader", "1 if it leads.", registry=registry)
    leader.set(1)
    fallbacks = prometheus_client.Counter(
        "smgate_memory_fallbacks", "Memory fallbacks.", ["sm", "phase"], registry=registry
    )
    agent = agent_metrics.Metrics(["k3"])
    prometheus = start_prometheus(
        {"smgate-controller": expose(registry), "smgate-agent": expose(agent.registry)}
    )
    conftest.wait_until(
        lambda: prometheus.value("count_over_time(smgate_leader[1m])") is not None, "it scrapes"
    )
    conftest.wait_until(
        lambda: prometheus.value("count(smgate_agent_memory_fallback_active == 0)") is not None,
        "the agent's series are there at 0",
    )
    assert prometheus.firing() == {}

    # No series of this name was there before: its increase() is 0 for ever.
    fallbacks.labels("10.7", "active").inc()
    agent.instance("k3", state="serving", phase="active")

    prometheus.wait_for_alert("SmgateMemoryFallback", sm="10.7", phase="active")
    prometheus.wait_for_alert("SmgateAgentMemoryFallback", phase="active")
    assert prometheus.value("max(increase(smgate_memory_fallbacks_total[10m]))") in (None, 0.0)
