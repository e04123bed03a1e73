"""Owns the routes for nodes: enrol, facts, launch, directive. Bodies are decoded strictly by `wire`."""

from __future__ import annotations

import math
from typing import Annotated, Final

import fastapi
from starlette import concurrency

from smgate import metrics
from smgate.api import answers, auth
from smgate.service import book, credentials, refusal, service as services
from smgate.wire import base, directive, facts

router: Final = fastapi.APIRouter(prefix="/v1/agent")

Node = Annotated[credentials.Credential, fastapi.Depends(auth.node)]
Joining = Annotated[credentials.Credential, fastapi.Depends(auth.joining)]
Service = Annotated[services.Service, fastapi.Depends(auth.service_of)]
Generation = Annotated[int, fastapi.Query(ge=0, le=1 << 53)]
Incarnation = Annotated[str | None, fastapi.Query(max_length=120)]
WaitS = Annotated[float, fastapi.Query(ge=0, le=3600, allow_inf_nan=False)]

NOTHING_NEW: Final = 204


@router.post("/enroll")
async def enroll(request: fastapi.Request, who: Joining, service: Service) -> fastapi.Response:
    """Become a node."""
    asked = base.decode(await request.body(), directive.EnrollRequest)
    answer = await concurrency.run_in_threadpool(service.enrolment.enrol, asked, by=who)
    return answers.message(answer)


@router.post("/facts")
async def take_facts(request: fastapi.Request, who: Node, service: Service) -> fastapi.Response:
    """Store a batch of facts; the answer comes when they are durable."""
    counted: metrics.Requests = request.app.state.requests
    try:
        batch = base.decode(await request.body(), facts.FactsBatch)
        answer = await concurrency.run_in_threadpool(service.ingest.facts, batch, by=who)
    except (base.MalformedError, refusal.RefusedError):
        counted.facts.labels("refused").inc()
        raise
    service.contacts.note(who.subject)
    repeated = answer.repeated == len(batch.facts)
    counted.facts.labels("repeated" if repeated else "stored").inc()
    return answers.message(answer)


@router.post("/launch")
async def launch(request: fastapi.Request, who: Node, service: Service) -> fastapi.Response:
    """Store what a launch gate read, and say what is known by now."""
    asked = base.decode(await request.body(), directive.LaunchRequest)

    def store() -> directive.LaunchAnswer:
        service.ingest.launch(asked, by=who)
        return service.directives.launch(node=who.subject, launch_id=asked.launch.launch_id)

    answer = await concurrency.run_in_threadpool(store)
    service.contacts.note(who.subject)
    return answers.message(answer)


@router.get("/launch/{launch_id}")
async def launch_answer(
    launch_id: str, who: Node, service: Service, wait: WaitS = 0.0
) -> fastapi.Response:
    """The decision for a launch, or checks to run first; waits for one of them."""

    def ask() -> directive.LaunchAnswer:
        return service.directives.launch(node=who.subject, launch_id=launch_id)

    async def settled() -> bool | None:
        done = await concurrency.run_in_threadpool(service.directives.launch_settled, launch_id)
        return done or None

    service.contacts.note(who.subject)
    await concurrency.run_in_threadpool(ask)  # Refuses a launch that is not this node's.
    await service.waiters.until(
        book.launch_topic(launch_id), settled, timeout_s=_bounded(service, wait)
    )
    return answers.message(await concurrency.run_in_threadpool(ask))


@router.get("/directive")
async def wait_directive(
    who: Node,
    service: Service,
    generation: Generation = 0,
    incarnation: Incarnation = None,
    wait: WaitS = 0.0,
) -> fastapi.Response:
    """The node's directive once it is another than the one it holds; this is the heartbeat too."""
    told = service.directives
    told.ahead.discard(who.subject)
    if incarnation is not None and incarnation != service.folder.incarnation:
        service.contacts.note(who.subject)
        return await _of_another_log(service, who.subject, incarnation)
    # One above the log's is of what the log has lost, and says nothing about this log's decisions.
    known = 0 < generation <= told.generation(who.subject)
    service.contacts.note(who.subject, held_generation=generation if known else None)

    async def newer() -> bool | None:
        current = told.generation(who.subject)
        if current < generation:
            # It holds more than this process folded: the log went on, or it was restored.
            return (
                await concurrency.run_in_threadpool(told.newer_than, who.subject, generation)
                or None
            )
        return current > generation or None

    if not await service.waiters.until(
        book.node_topic(who.subject), newer, timeout_s=_bounded(service, wait)
    ):
        return await _with_baking(service, who.subject, fastapi.Response(status_code=NOTHING_NEW))
    return await _directive(service, who.subject)


async def _of_another_log(
    service: services.Service, node: str, incarnation: str
) -> fastapi.Response:
    """The node follows a log that this one was restored from: first it says what that told it."""
    told = service.directives
    if not await concurrency.run_in_threadpool(told.may_be_told, node, incarnation):
        message = directive.LogRestored(restored_as=service.folder.incarnation)
        return answers.message(message, status=fastapi.status.HTTP_409_CONFLICT)
    return await _directive(service, node)


async def _directive(service: services.Service, node: str) -> fastapi.Response:
    built = await concurrency.run_in_threadpool(service.directives.build, node)
    return await _with_baking(service, node, answers.message(built))


async def _with_baking(
    service: services.Service, node: str, answer: fastapi.Response
) -> fastapi.Response:
    baking = await concurrency.run_in_threadpool(service.directives.baking, node)
    answer.headers[directive.BAKING_HEADER] = ",".join(baking)
    return answer


def _bounded(service: services.Service, wait_s: float) -> float:
    assert math.isfinite(wait_s), "the query parameter admits no infinity"
    return min(wait_s, service.settings.wait_s_max)
