"""Whom the gate speaks for and to: the node's enrolment, the agent's socket, the controller."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smgate_agent.launch import contact, link, shapes, state

if TYPE_CHECKING:
    from smgate_agent.launch.options import Options

Json = dict[str, Any]

SELF_PATH = "/v1/agent/identity"
SELF_S = 2.0


@dataclass(frozen=True)
class Peers:
    """What was found. Without an identity nothing can be verified, so nobody is asked."""

    identity: state.Identity | None
    held: Json | None
    heard: Json | None
    """When this node heard the controller last, by `contact.now`."""
    endpoints: tuple[link.Endpoint, ...]


def find(options: Options, store: state.Store) -> Peers:
    """Look for the enrolment in the state folder, else ask the resident agent who it is.

    A container may have nothing but the agent's socket: who may open it may speak for the node, and
    the agent also hands on the directive that it holds.
    """
    socket_path = _socket(options.agent_socket)
    identity = store.identity(options.credential)
    told = _told(socket_path) if socket_path is not None else None
    if identity is None:
        identity = state.identity_of(told)
    if identity is None:
        return Peers(identity=None, held=None, heard=None, endpoints=())
    held = _newest(store.held(identity), _verified((told or {}).get("directive"), identity))
    return Peers(
        identity=identity,
        held=held,
        heard=_latest(store.heard(), (told or {}).get("heard"), held),
        endpoints=_endpoints(options, identity, socket_path),
    )


def _socket(path: str | None) -> str | None:
    return path if path and Path(path).is_socket() else None


def _told(socket_path: str) -> Json | None:
    endpoint = link.Endpoint(socket_path=socket_path)
    try:
        value = shapes.parse(link.exchange(endpoint, "GET", SELF_PATH, None, timeout_s=SELF_S))
    except (link.ExchangeError, shapes.MalformedError):
        return None
    return value if isinstance(value, dict) else None


def _verified(signed: object, identity: state.Identity) -> Json | None:
    try:
        return state.verified(signed, identity)
    except shapes.MalformedError:
        return None


def _latest(noted: Json | None, told: object, held: Json | None) -> Json | None:
    """Of what the gate and the agent noted, the one that is less long ago."""
    at = contact.now()
    found = [one for one in (noted, told) if isinstance(one, dict)]
    return min(found, key=lambda one: contact.unheard_s(one, held, at) or 0.0, default=None)


def _newest(saved: Json | None, told: Json | None) -> Json | None:
    if saved is None or told is None:
        return saved or told
    return saved if state.is_older(told, saved) else told


def _endpoints(
    options: Options, identity: state.Identity, socket_path: str | None
) -> tuple[link.Endpoint, ...]:
    """The socket first; the controller itself where this process has the credential."""
    found: list[link.Endpoint] = []
    if socket_path is not None:
        found.append(link.Endpoint(socket_path=socket_path))
    url = options.controller or identity.controller_url
    if url and identity.credential:
        found.append(
            link.Endpoint(url=url, credential=identity.credential, ca_file=options.ca_file)
        )
    return tuple(found)
