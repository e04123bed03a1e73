"""Owns turning events into records of the log: which stream, which actor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from smgate.domain import rulings
from smgate.domain.events import Event
from smgate.domain.state import Fleet
from smgate.log import codec, port

OPERATORS: Final = "operators"
"""Stream of what people decided without an idempotency key, and of what join tokens did."""
COMMANDS: Final = "command/"
"""What the stream of a command with a key begins with: each has its own, so that it is done once."""
CONTROLLER: Final = "controller"
"""Stream and actor of what the leader decided."""


def outbox_stream(outbox_id: str) -> str:
    """Stream of one outbox; its versions are the agent's sequence numbers."""
    return f"outbox/{outbox_id}"


def of_people(stream: str) -> bool:
    """True for a stream of what people decided."""
    return stream == OPERATORS or stream.startswith(COMMANDS)


def node_actor(node: str) -> str:
    """The actor of a node's facts."""
    return f"node:{node}"


def operator_actor(name: str) -> str:
    """The actor of a person's rulings."""
    return f"operator:{name}"


def of_events(
    events: Sequence[Event], *, stream: str, first_version: int, actor: str, at_us: int
) -> list[port.NewRecord]:
    """Records of one stream with rising versions."""
    return [
        port.NewRecord(
            stream=stream,
            version=version,
            type=codec.name_of(event),
            schema_version=codec.version_of(event),
            occurred_at_us=at_us,
            actor=actor,
            data=codec.encode(event),
        )
        for version, event in enumerate(events, start=first_version)
    ]


def of_ruling(
    event: Event, *, fleet: Fleet, stream: str, version: int, actor: str, at_us: int
) -> port.NewRecord:
    """One ruling. Who agrees names who asked, so that the database itself keeps them apart."""
    counter = None
    if isinstance(event, rulings.RolloutApproved):
        counter = operator_actor(fleet.rollouts[event.rollout].author)
    elif isinstance(event, rulings.ChangeAccepted):
        counter = CONTROLLER if event.author is None else operator_actor(event.author)
    return port.NewRecord(
        stream=stream,
        version=version,
        type=codec.name_of(event),
        schema_version=codec.version_of(event),
        occurred_at_us=at_us,
        actor=actor,
        counter_actor=counter,
        data=codec.encode(event),
    )
