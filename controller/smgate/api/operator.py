"""Owns the routes for people: commands, lists, reasons, the log, tokens."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import fastapi
from starlette import concurrency

from smgate.api import answers, auth
from smgate.domain import policy as policies
from smgate.domain.events import Event
from smgate.log import codec
from smgate.service import credentials, handle, preview, refusal, service as services, strict
from smgate.views import shape

router: Final = fastapi.APIRouter(prefix="/v1")

Viewer = Annotated[credentials.Credential, fastapi.Depends(auth.viewer)]
Commander = Annotated[credentials.Credential, fastapi.Depends(auth.commander)]
Admin = Annotated[credentials.Credential, fastapi.Depends(auth.admin)]
Service = Annotated[services.Service, fastapi.Depends(auth.service_of)]
At = Annotated[str | None, fastapi.Query(max_length=64)]
Filter = Annotated[str | None, fastapi.Query(max_length=120)]
OfType = Annotated[str | None, fastapi.Query(max_length=80, alias="type")]
After = Annotated[int, fastapi.Query(ge=0, le=1 << 53)]
Limit = Annotated[int, fastapi.Query(ge=1, le=1000)]

_LISTS: Final = ("nodes", "units", "rollouts", "alarms", "gates", "issues", "freezes", "expected")
_ITEMS: Final = {"nodes": "node", "units": "unit", "builds": "build", "rollouts": "rollout"}


async def _answer(call: Callable[[], dict[str, Any]]) -> fastapi.Response:
    return answers.json(await concurrency.run_in_threadpool(call))


@router.post("/commands")
async def command(request: fastapi.Request, who: Commander, service: Service) -> fastapi.Response:
    """Give one command, or with `dry_run` ask what it would do."""
    asked = handle.parse(await request.body())
    outcome = await concurrency.run_in_threadpool(service.commands.handle, asked, by=who)
    body: dict[str, Any] = {
        "apiVersion": "v1",
        "position": outcome.position,
        "events": [event_row(event) for event in outcome.events],
        "changed": outcome.changed and not asked.dry_run,
        "dry_run": asked.dry_run,
        "repeated": outcome.repeated,
        "waits": None if outcome.waits is None else dataclasses.asdict(outcome.waits),
    }
    if outcome.preview is not None:
        body["preview"] = outcome.preview
    return answers.json(body)


def event_row(event: Event) -> dict[str, Any]:
    """An event as people read it."""
    fields: dict[str, Any] = shape.plain(event)
    return {"type": codec.name_of(event)} | fields


@router.get("/units/{unit:path}/why")
async def why_unit(unit: str, _: Viewer, service: Service, at: At = None) -> fastapi.Response:
    """Why a unit gets what it gets."""
    return await _answer(lambda: service.queries.why_unit(unit, at=at))


@router.get("/units/{unit:path}/history")
async def history_unit(
    unit: str, _: Viewer, service: Service, since: At = None, limit: Limit = 100
) -> fastapi.Response:
    """What happened to a unit."""
    return await _answer(lambda: service.queries.history_unit(unit, since=since, limit=limit))


@router.get("/builds/{key:path}/why")
async def why_build(key: str, _: Viewer, service: Service, at: At = None) -> fastapi.Response:
    """Why a kernel key stands where it stands."""
    return await _answer(lambda: service.queries.why_build(key, at=at))


@router.get("/rollouts/{rollout:path}/why")
async def why_rollout(rollout: str, _: Viewer, service: Service, at: At = None) -> fastapi.Response:
    """What a rollout waits for."""
    return await _answer(lambda: service.queries.why_rollout(rollout, at=at))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """The body of `POST /v1/rollouts/plan`."""

    plan: policies.RolloutPlan


@router.post("/rollouts/plan")
async def plan_ahead(request: fastapi.Request, _: Viewer, service: Service) -> fastapi.Response:
    """What a rollout plan would do if it were proposed now. Appends nothing."""
    asked = strict.convert(strict.parse(await request.body()), PlanRequest, code="bad_plan")
    return await _answer(
        lambda: service.queries.foreseen(
            lambda taken, now_us: preview.of_plan(taken, asked.plan, now_us=now_us)
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffRequest:
    """The body of `POST /v1/rollouts/diff`: a rollout, and another one or a plan."""

    before: str
    after: str | None = None
    plan: policies.RolloutPlan | None = None


@router.post("/rollouts/diff")
async def diff(request: fastapi.Request, _: Viewer, service: Service) -> fastapi.Response:
    """Two rollouts, or a rollout and a plan, beside each other. Appends nothing."""
    asked = strict.convert(strict.parse(await request.body()), DiffRequest, code="bad_plan")
    after = asked.after or asked.plan
    if after is None or (asked.after is not None and asked.plan is not None):
        raise refusal.RefusedError(
            422, "bad_plan", "Give `after` or `plan`.", next_step="Exactly one of them."
        )
    return await _answer(
        lambda: service.queries.foreseen(
            lambda taken, now_us: preview.of_two(taken, asked.before, after, now_us=now_us)
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfRequest:
    """The body of `POST /v1/policy/whatif`."""

    policy: policies.Policy
    since: str


@router.post("/policy/whatif")
async def whatif(request: fastapi.Request, _: Viewer, service: Service) -> fastapi.Response:
    """What another policy would have decided since then. Appends nothing."""
    asked = strict.convert(strict.parse(await request.body()), WhatIfRequest, code="bad_policy")
    return await _answer(lambda: service.queries.whatif(asked.policy, since=asked.since))


@router.get("/builds")
async def builds(_: Viewer, service: Service) -> fastapi.Response:
    """Kernel keys and announced images."""
    return await _answer(service.queries.builds)


@router.get("/policy")
async def policy(_: Viewer, service: Service) -> fastapi.Response:
    """The policy in force."""
    return await _answer(lambda: service.queries.row("policy", "policy", kind="policy"))


@router.get("/breaker")
async def breaker(_: Viewer, service: Service) -> fastapi.Response:
    """The breaker."""
    return await _answer(lambda: service.queries.row("breaker", "breaker", kind="breaker"))


@router.get("/drains")
async def drains(_: Viewer, service: Service) -> fastapi.Response:
    """Units that are taken back from the target, and how far that has come."""
    return await _answer(service.queries.drains)


@router.get("/waits")
async def waits(_: Viewer, service: Service) -> fastapi.Response:
    """Everything that waits."""
    return await _answer(service.queries.waits)


@router.get("/changes")
async def changes(_: Viewer, service: Service) -> fastapi.Response:
    """The changes that wait for a person."""
    return await _answer(service.queries.changes)


@router.get("/changes/{name}")
async def change(name: str, _: Viewer, service: Service) -> fastapi.Response:
    """One change."""
    return await _answer(lambda: service.queries.change(name))


@router.get("/events")
async def events(
    _: Viewer, service: Service, after: After = 0, limit: Limit = 100
) -> fastapi.Response:
    """The log from a position on."""
    return await _answer(lambda: service.queries.events(after=after, limit=limit))


@router.get("/log/rulings")
async def rulings(
    _: Viewer,
    service: Service,
    by: Filter = None,
    kind: OfType = None,
    since: At = None,
    limit: Limit = 100,
) -> fastapi.Response:
    """What people ordered: by whom, of which type, since when."""
    queries = service.queries
    return await _answer(lambda: queries.rulings(by=by, kind=kind, since=since, limit=limit))


@router.get("/log/head")
async def head(_: Viewer, service: Service) -> fastapi.Response:
    """The end of the log."""
    return await _answer(service.queries.head)


@router.get("/log/verify")
async def verify(_: Viewer, service: Service) -> fastapi.Response:
    """Recompute every hash."""
    return await _answer(service.queries.verify)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRequest:
    """The body of `POST /v1/tokens`."""

    kind: Literal["join", "operator"]
    subject: str
    role: Literal["viewer", "operator", "approver", "admin"] | None = None
    ttl_s: float | None = None


@router.post("/tokens")
async def issue(request: fastapi.Request, _: Admin, service: Service) -> fastapi.Response:
    """Make a token. It is shown in this answer and never again."""
    asked = strict.convert(
        strict.parse(await request.body()), TokenRequest, code="bad_token_request"
    )
    issued = await concurrency.run_in_threadpool(
        lambda: service.credentials.issue(
            kind=asked.kind, subject=asked.subject, role=asked.role, ttl_s=asked.ttl_s
        )
    )
    row = credentials.row(issued.credential) | {"apiVersion": "v1", "token": issued.token}
    return answers.json(row, status=fastapi.status.HTTP_201_CREATED)


@router.get("/tokens")
async def tokens(_: Admin, service: Service) -> fastapi.Response:
    """All tokens, without anything that would help to use one."""

    def listing() -> dict[str, Any]:
        listed = service.credentials.list()
        position = service.folder.position
        return {
            "apiVersion": "v1",
            "items": [credentials.row(one) for one in listed],
            "position": position,
        }

    return await _answer(listing)


@router.delete("/tokens/{token_id}")
async def revoke(token_id: str, _: Admin, service: Service) -> fastapi.Response:
    """End a token."""
    ended = await concurrency.run_in_threadpool(service.credentials.revoke, token_id)
    return answers.json({"apiVersion": "v1", "id": token_id, "changed": ended})


def _add_list(view: str) -> None:
    @router.get(f"/{view}", name=view)
    async def listed(_: Viewer, service: Service) -> fastapi.Response:
        return await _answer(lambda: service.queries.rows(view))


def _add_item(view: str, kind: str) -> None:
    # After the routes that end in /why: a name may hold slashes.
    @router.get(f"/{view}/{{name:path}}", name=kind)
    async def item(name: str, _: Viewer, service: Service) -> fastapi.Response:
        return await _answer(lambda: service.queries.row(view, name, kind=kind))


for _view in _LISTS:
    _add_list(_view)
for _view, _kind in _ITEMS.items():
    _add_item(_view, _kind)
