"""Who may start behind SGLang's own launch gate, and what the ranks' pairs say there. Pure.

With `--gated-launch-port` every rank waits, after the ranks have found each other and before any
weights, for a `POST` to rank 0; the others learn of it by a broadcast that rank 0 repeats. A rank
without the flag goes on to another collective, and all of them hang. So all have it or none.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Any

from smgate_agent.launch import shapes

if TYPE_CHECKING:
    from collections.abc import Iterable

Json = dict[str, Any]

FLAG = "--gated-launch-port"
PORT_TRIED = 31900
"""Stands for the port while SGLang is asked what it makes of the flag."""
GATED_VERSIONS = ("0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23")
"""Versions whose gate was read. Another one gets no flag: it may wait where nobody can open."""
ANY_HOST = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Where to knock at a server that listens everywhere."""
UNKNOWN, AGREE, DISAGREE = "unknown", "agree", "disagree"


def hindrance(sglang_version: object, resolved: Json | None) -> str | None:
    """Why this rank cannot start behind the gate, or None if it can.

    Args:
        sglang_version: of this launch.
        resolved: what SGLang itself made of the command with the flag; None if it did not say.
    """
    if sglang_version not in GATED_VERSIONS:
        return "sglang_has_no_gate"
    if resolved is None:
        return "not_resolved"
    reasons = {
        "gate_is_taken": resolved.get("gated_launch_port") != PORT_TRIED,
        # Each data-parallel replica is a world of its own with a rank 0 of its own, and all would
        # listen at the one port: SGLang does not see that it could not, and waits for ever.
        "several_worlds": resolved.get("dp_size") != 1 and not resolved.get("enable_dp_attention"),
        "ranks_come_and_go": bool(resolved.get("elastic_ep_backend") or resolved.get("use_ray")),
        "host_is_a_name": door(resolved) is None,
    }
    return next((code for code, holds in reasons.items() if holds), None)


def door(resolved: Json) -> str | None:
    """The address SGLang listens at, if it is one; a name could mean several, or another one."""
    host = resolved.get("host")
    try:
        return None if host is None else str(ipaddress.ip_address(host))
    except ValueError:
        return None


def pair_of(resolved: Json | None) -> Json | None:
    """The (runner, a2a) pair in it."""
    if resolved is None:
        return None
    pair = {name: resolved.get(name) for name in ("runner", "a2a")}
    return pair if all(shapes.fits(shapes.RUNNER, one) for one in pair.values()) else None


def compare(pairs: Iterable[tuple[int, Json | None]], nnodes: int) -> str:
    """What the ranks' pairs say: only two that are there and differ are a disagreement."""
    known = [(rank, pair) for rank, pair in pairs if pair is not None]
    if len({(pair["runner"], pair["a2a"]) for _, pair in known}) > 1:
        return DISAGREE
    return AGREE if {rank for rank, _ in known} == set(range(nnodes)) else UNKNOWN


def is_word(value: object, unit: str, nnodes: int) -> bool:
    """Whether this is what a rank of this unit says of itself, or rank 0 of another launch."""
    return (
        isinstance(value, dict)
        and value.get("unit") == unit
        and value.get("nnodes") == nnodes
        and shapes.is_count(value.get("rank"))
        and value["rank"] < nnodes
        and shapes.fits(shapes.NAME, value.get("launch_id"))
        and value.get("able") in (True, False)
        and value.get("flagged") in (True, False)
        and value.get("remembers") in (True, False)
        and (value.get("pair") is None or value["pair"] == pair_of(_dict(value["pair"])))
    )


def _dict(value: object) -> Json:
    return value if isinstance(value, dict) else {}


def who(words: Iterable[Json]) -> tuple[bool, list[int]]:
    """Whether all who are here can have the flag, and their ranks, in order."""
    here = list(words)
    return all(one["able"] or one["flagged"] for one in here), sorted(one["rank"] for one in here)
