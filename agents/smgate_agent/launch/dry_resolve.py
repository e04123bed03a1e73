"""What SGLang itself would make of this launch, before anything starts.

A child in SGLang's interpreter asks its parser and its resolution. That takes the import of SGLang,
so the answer is kept in the state folder for the same runtime, arguments, files and GPUs. Without
an answer the launch goes on: nothing is known then, and nothing is guessed.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smgate_agent.launch import kernel_key, local_rule, shapes, sources

if TYPE_CHECKING:
    from smgate_agent.launch.children import Children
    from smgate_agent.launch.command import Command
    from smgate_agent.launch.state import Store

Json = dict[str, Any]

SCRIPT = "resolve_child.py"
FIELDS = ("runner", "a2a")
FILE_BYTES_MAX = 1 << 20
TIME_MIN_S = 1.0


def pair(
    launch: Json,
    command: Command | None,
    *,
    config_path: str | None,
    children: Children,
    store: Store,
    until: float,
) -> Json | None:
    """The (runner, a2a) pair, or None if it could not be told in time.

    Only a launch that a rule could steer is worth that time; `until` is on the monotonic clock.
    """
    found = resolve(
        launch, command, config_path=config_path, children=children, store=store, until=until
    )
    return _pair(found)


def resolve(
    launch: Json,
    command: Command | None,
    *,
    config_path: str | None,
    children: Children,
    store: Store,
    until: float,
) -> Json | None:
    """All that SGLang says of it; None as for `pair`."""
    if command is None or command.interpreter is None or not local_rule.could_be_steered(launch):
        return None
    name = _name(launch, command, config_path)
    kept = _whole(store.dry_resolved(name))
    left = until - time.monotonic()
    if kept is not None or left < TIME_MIN_S:
        return kept
    argv = [command.interpreter, *command.interpreter_flags, "-c", sources.script(SCRIPT)]
    found = _whole(children.run([*argv, json.dumps(command.tokens)], timeout_s=left).result())
    if found is not None:
        store.save_dry_resolved(name, found)
    return found


def _whole(answer: Json | None) -> Json | None:
    return None if _pair(answer) is None else answer


def _pair(answer: Json | None) -> Json | None:
    if answer is None or not all(shapes.fits(shapes.RUNNER, answer.get(name)) for name in FIELDS):
        return None
    return {name: answer[name] for name in FIELDS}


def _name(launch: Json, command: Command, config_path: str | None) -> str:
    """Names what an answer depends on; the arguments themselves are not kept."""
    return kernel_key.canonical_digest(
        {
            "interpreter": command.interpreter,
            "arguments": [
                token.encode("utf-8", "surrogateescape").hex() for token in command.tokens
            ],
            "config": None if config_path is None else _content(config_path),
            "build": launch["build"],
            "sms": local_rule.sms_of(launch),
            "model": [launch["model"], launch["layout"]],
        }
    )


def _content(path: str) -> str | None:
    try:
        with Path(path).open("rb") as stream:
            return stream.read(FILE_BYTES_MAX).hex()
    except (OSError, ValueError):
        return None
