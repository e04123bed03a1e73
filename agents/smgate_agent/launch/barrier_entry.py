"""From a launch to its barrier: what SGLang would make of the command, and what the guard is told."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from smgate_agent.launch import (
    agreement,
    barrier,
    barrier_rule,
    dry_resolve,
    flags,
    kernel_key,
    local_rule,
    server,
    telling,
)

if TYPE_CHECKING:
    from smgate_agent.launch.children import Children
    from smgate_agent.launch.command import Command
    from smgate_agent.launch.state import Store

Json = dict[str, Any]


@dataclass(frozen=True)
class Asked:
    """A launch whose ranks were asked to wait for each other, once its value is known."""

    launch: Json
    command: Command
    more: tuple[str, ...]
    """What this launch is given behind the command."""
    store: Store
    children: Children
    timeout_s: float
    until: float


def is_remembered(store: Store, launch: Json) -> bool:
    """Whether a launch of this unit and kernel key was ended because its ranks disagreed."""
    kept = store.disagreed(kernel_key.unit_id("", launch))
    return kept is not None and kept.get("kernel_key") == local_rule.launch_key(launch)


def wait(asked: Asked, *, quiet: bool) -> list[str]:
    """What the command is given for it; nothing for a server of one node. Never raises."""
    launch = asked.launch
    if launch["nnodes"] <= 1 or not launch["rendezvous"]:
        return []
    if local_rule.hard_rule(launch) in agreement.NOT_OURS:
        return []
    attempt = barrier.Barrier(
        read=lambda: _rank(asked), timeout_s=asked.timeout_s, until=asked.until
    )
    given = list(attempt.wait())
    if not quiet:
        waits = (
            "waits at SGLang's launch gate" if given else "does not wait at SGLang's launch gate"
        )
        telling.say(f"{waits} ({attempt.code})")
    return given


def _rank(asked: Asked) -> barrier.Rank:
    launch = asked.launch
    tried = (*asked.more, barrier_rule.FLAG, str(barrier_rule.PORT_TRIED))
    command = dataclasses.replace(asked.command, tokens=(*asked.command.tokens, *tried))
    use = flags.config_use(command.tokens)
    resolved = dry_resolve.resolve(
        launch,
        command,
        config_path=use.paths[0] if len(use.paths) == 1 else None,
        children=asked.children,
        store=asked.store,
        until=asked.until,
    )
    remembers = is_remembered(asked.store, launch)
    hindrance = barrier_rule.hindrance(launch["build"].get("sglang_version"), resolved)
    word = {
        "unit": kernel_key.unit_id("", launch),
        "nnodes": launch["nnodes"],
        "rank": launch["node_rank"],
        "launch_id": launch["launch_id"],
        "able": hindrance is None,
        "flagged": False,
        "remembers": remembers,
        "pair": barrier_rule.pair_of(resolved),
    }
    told = {
        "word": {**word, "flagged": True},
        "rendezvous": launch["rendezvous"],
        "timeout_s": asked.timeout_s,
        "pid": os.getpid(),
        "started": server.started(os.getpid()),
        "state_dir": str(asked.store.folder.absolute()),
        "kernel_key": local_rule.launch_key(launch),
    }
    return barrier.Rank(
        word=word,
        rendezvous=launch["rendezvous"],
        hindrance=hindrance,
        door=None if resolved is None else barrier_rule.door(resolved),
        told=told,
    )
