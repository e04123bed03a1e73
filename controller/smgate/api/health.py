"""Owns the routes for machines that watch: health, readiness, metrics, version."""

from __future__ import annotations

from typing import Annotated, Any, Final

import fastapi
import prometheus_client
from prometheus_client import exposition
from starlette import concurrency

from smgate.api import answers, auth
from smgate.log import open as log_open
from smgate.service import readiness, service as services
from smgate.wire import base

router: Final = fastapi.APIRouter()
Service = Annotated[services.Service, fastapi.Depends(auth.service_of)]


@router.get("/healthz")
async def healthz() -> fastapi.Response:
    """The process answers."""
    return answers.json({"status": "ok"})


@router.get("/readyz")
async def readyz(service: Service) -> fastapi.Response:
    """The database answers in the right shape, and somebody leads."""
    problems = await concurrency.run_in_threadpool(readiness.problems, service)
    body: dict[str, Any] = {"status": "unready" if problems else "ready", "problems": problems}
    return answers.json(body, status=503 if problems else 200)


@router.get("/metrics")
async def metrics(request: fastapi.Request) -> fastapi.Response:
    """Prometheus' text format."""
    registry: prometheus_client.CollectorRegistry = request.app.state.registry
    text = await concurrency.run_in_threadpool(prometheus_client.generate_latest, registry)
    return fastapi.Response(text, media_type=exposition.CONTENT_TYPE_PLAIN_0_0_4)


@router.get("/v1/version")
async def version(request: fastapi.Request) -> fastapi.Response:
    """What runs here."""
    found = {
        "apiVersion": "v1",
        "version": request.app.state.version,
        "wire_version": base.WIRE_VERSION,
        "schema_revision": await concurrency.run_in_threadpool(log_open.newest),
    }
    return answers.json(found)
