"""Owns the application: routes, the shape of errors, limits, metrics, start and stop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import fastapi
import prometheus_client

from smgate import metric_families, metric_log, metrics
from smgate.api import agent, answers, health, middleware, operator
from smgate.domain import take_back
from smgate.service import service as services, snapshots


def create(service: services.Service, *, version: str) -> fastapi.FastAPI:
    """The application of one process. What runs beside it is started by whoever serves it."""

    @contextlib.asynccontextmanager
    async def lifespan(_: fastapi.FastAPI) -> AsyncIterator[None]:
        service.waiters.bind(asyncio.get_running_loop())
        yield
        service.waiters.close()

    app = fastapi.FastAPI(
        title="smgate",
        version=version,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,  # Bodies are decoded by `wire` and `service.strict`, not by FastAPI.
        redirect_slashes=False,
    )
    registry = prometheus_client.CollectorRegistry()
    requests = metrics.Requests(registry)
    registry.register(_collector(service, version=version))
    app.state.service = service
    app.state.version = version
    app.state.registry = registry
    app.state.requests = requests
    answers.install(app)
    app.include_router(health.router)
    app.include_router(agent.router)
    app.include_router(operator.router)
    app.add_middleware(middleware.LastResort)
    app.add_middleware(middleware.BodyLimit)
    app.add_middleware(middleware.Counting, requests=requests)
    return app


def _collector(service: services.Service, *, version: str) -> metrics.FleetCollector:
    def process() -> metrics.Process:
        leading = service.leader.status
        with service.folder.now() as fleet:
            undelivered = service.queries.undelivered(fleet)
            taken_back = service.queries.taken_back(fleet)
            sms = metrics.sms_of(fleet)
            head = fleet.position
        return metrics.Process(
            version=version,
            leading=leading.leading,
            leader_failures=leading.failures,
            rounds_exhausted=leading.rounds_exhausted,
            planned_position=leading.planned_position,
            head_position=head,
            view_position=service.views.position(),
            waiting=service.waiters.count,
            undelivered_units=undelivered,
            beside=metric_log.Beside(
                position=snapshots.newest(service.store),
                failures=service.folder.snapshot_failures,
                nodes_ahead=len(service.directives.ahead),
            ),
            taken_back={sm: taken_back.get(sm, take_back.Stages()) for sm in sms},
        )

    def read(of_fleet: metrics.OfFleet) -> list[metric_families.Metric]:
        with service.folder.at_head() as fleet:
            return of_fleet(fleet)

    return metrics.FleetCollector(read, process)
