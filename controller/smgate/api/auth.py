"""Owns who sends a request: the bearer token, its kind and role, and how often it may ask."""

from __future__ import annotations

from typing import Final

import fastapi
from starlette import concurrency

from smgate.service import credentials, refusal, service as services

SCHEME: Final = "bearer "


def service_of(request: fastapi.Request) -> services.Service:
    """The process's parts."""
    found: services.Service = request.app.state.service
    return found


async def node(request: fastapi.Request) -> credentials.Credential:
    """A node, by its own credential."""
    return await _of_kind(request, "node")


async def joining(request: fastapi.Request) -> credentials.Credential:
    """A machine with a join token."""
    return await _of_kind(request, "join")


async def viewer(request: fastapi.Request) -> credentials.Credential:
    """A person who may look."""
    return await _with_role(request, "viewer")


async def commander(request: fastapi.Request) -> credentials.Credential:
    """A person who may give commands; which ones, the domain says."""
    return await _with_role(request, "operator")


async def admin(request: fastapi.Request) -> credentials.Credential:
    """A person who may issue and revoke tokens."""
    return await _with_role(request, "admin")


async def _with_role(request: fastapi.Request, role: credentials.Role) -> credentials.Credential:
    who = await _of_kind(request, "operator")
    if not who.may(role):
        raise refusal.RefusedError(
            403,
            "forbidden",
            f"This needs the role {role}; this token has {who.role}.",
            next_step="Ask somebody who has the role, or an admin for another token.",
        )
    return who


async def _of_kind(request: fastapi.Request, kind: credentials.Kind) -> credentials.Credential:
    service = service_of(request)
    try:
        who = await concurrency.run_in_threadpool(service.credentials.authenticate, _token(request))
    except refusal.RefusedError:
        address = request.client.host if request.client else "unknown"
        service.limiter.admit_unknown(address)
        raise
    service.limiter.admit(who)
    if who.kind != kind:
        raise refusal.RefusedError(
            403,
            "wrong_kind_of_token",
            f"This is the token of a {_KINDS[who.kind]}; this path is for a {_KINDS[kind]}.",
            next_step="Use another token.",
        )
    return who


_KINDS: Final[dict[credentials.Kind, str]] = {
    "node": "node",
    "operator": "person",
    "join": "machine that enrols",
}


def _token(request: fastapi.Request) -> str:
    given = request.headers.get("authorization", "")
    if given[: len(SCHEME)].lower() != SCHEME:
        raise refusal.RefusedError(
            401,
            "token_missing",
            "There is no bearer token.",
            next_step="Send `Authorization: Bearer TOKEN`.",
        )
    return given[len(SCHEME) :].strip()
