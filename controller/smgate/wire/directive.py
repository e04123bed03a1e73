"""Enrolment, the launch question and its answer, and the signed directive.

Paths: `POST /v1/agent/enroll`, `POST /v1/agent/launch`, `GET /v1/agent/launch/{launch_id}?wait=S`,
`GET /v1/agent/directive?generation=G&incarnation=I&wait=S`: I is of the log that is followed.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from smgate.wire.base import (
    WIRE_VERSION,
    Code,
    Count,
    Digest,
    Message,
    Micros,
    Name,
    Positive,
    Runner,
    Sm,
    Version,
)
from smgate.wire.facts import LaunchPlanned

BAKING_HEADER: Final = "Smgate-Baking"
"""With every answer to the question for a directive, also the one that says nothing new: the node's
instances of which a `bake_interval` counts now, between commas; empty if of none.

A header, because it orders nothing and changes without a decision: readers from before it pass it
over, and a controller from before it sends none, which asks of every instance."""


class EnrollRequest(Message, frozen=True, kw_only=True):
    """Bearer token: a join token. `machine_id` tells a renewed enrolment from a cloned machine."""

    wire_version: Literal[1] = WIRE_VERSION
    node: Name
    machine_id: Name
    agent_version: Version


class EnrollAnswer(Message, frozen=True, kw_only=True):
    """The node's own credential, shown once, and the key its directives are signed with (Ed25519)."""

    wire_version: Literal[1] = WIRE_VERSION
    node: Name
    credential: str
    public_key: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$(?!\n)")]
    incarnation: Name


class GivenFor(Message, frozen=True, kw_only=True):
    """What a decision was made for; it holds for nothing else."""

    architecture: Name | None = None
    model_digest: Digest | None = None
    a2a: Runner = "none"
    sm: Sm | None = None
    kernel_key: Digest | None = None


class UnitOverride(Message, frozen=True, kw_only=True):
    """The decision for one unit, as the log has it.

    `append`: append `--moe-runner-backend value`. `untouched`: append nothing. `keep`: the gate
    changes nothing from last time; `value` is then what the controller worked out from the
    `override_applied` facts: the value last appended for this unit if model, a2a, SM and kernel
    key are the same, the safe value if only the key differs, None (append nothing) if nothing
    ever was. A gate that acts on a directive of an earlier launch works this out by itself.
    """

    unit: Name
    form: Literal["append", "untouched", "keep"]
    value: Runner | None = None
    code: Code
    sentence: str
    launch_ids: tuple[Name, ...] = ()
    given_for: GivenFor = GivenFor()
    decided_at: Count
    lease_s: Positive | msgspec.UnsetType = msgspec.UNSET
    """The target has not baked: a gate that hears nobody takes it only this long after the node's
    last contact. Not sent where there is none, so that agents without leases read the rest."""


class DrainOrder(Message, frozen=True, kw_only=True):
    """Restart this unit onto the safe value, once: all its nodes are told, the first rank's acts.

    Only while one of these servers of this node is there, not started again since, of no other
    launch and on the target; never after the deadline by the node's own clock. `instances` has their
    counts of restarts. `order` is a log position, never given twice.
    """

    order: Count
    unit: Name
    launch_ids: tuple[Name, ...]
    instances: dict[Name, Count]
    deadline_us: Micros


class Directive(Message, frozen=True, kw_only=True):
    """Everything the controller wants of one node. `generation` is a log position, never reused."""

    wire_version: Literal[1] = WIRE_VERSION
    incarnation: Name
    generation: Count
    node: Name
    issued_at_us: Micros
    units: tuple[UnitOverride, ...] = ()
    modes: dict[Sm, Literal["observe", "enforce"]] = msgspec.field(default_factory=dict)
    drains: tuple[DrainOrder, ...] | msgspec.UnsetType = msgspec.UNSET
    """Absent while nothing is ordered of this node: a reader from before it can read all others."""


class SignedDirective(Message, frozen=True, kw_only=True):
    """`signed` is the canonical JSON of a `Directive`; `signature` covers its UTF-8 bytes, in hex."""

    signed: str
    signature: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{128}$(?!\n)")]


class LogRestored(Message, frozen=True, kw_only=True):
    """Answer 409 to the question for a directive: say what you hold (`directive_held`), ask again."""

    wire_version: Literal[1] = WIRE_VERSION
    restored_as: Name


class LaunchRequest(Message, frozen=True, kw_only=True):
    """The launch gate asks. The launch id is also its outbox id; this is its sequence 1."""

    wire_version: Literal[1] = WIRE_VERSION
    node: Name
    occurred_at_us: Micros
    launch: LaunchPlanned


class LaunchAnswer(Message, frozen=True, kw_only=True):
    """The decision if there is one yet, and the checks wanted of this launch."""

    wire_version: Literal[1] = WIRE_VERSION
    unit: Name
    kernel_key: Digest | None
    directive: SignedDirective | None = None
    checks_wanted: tuple[Name, ...] = ()
    retry_after_s: Positive = 1
