"""Owns taking facts in: from the wire to the log, whole or not at all, acknowledged when durable."""

from __future__ import annotations

import threading
from typing import Final

import msgspec
import sqlalchemy as sa

from smgate.domain import facts as domain_facts
from smgate.log import codec, database, port, tables
from smgate.service import appender, credentials, records, refusal
from smgate.wire import directive as wire_directive, facts as wire_facts

OWNERS_CACHED_MAX: Final = 200_000

_OWNER = tables.OUTBOX_OWNER.c
_CLAIM: Final = sa.text(
    "INSERT INTO outbox_owner (outbox_id, node) VALUES (:outbox_id, :node) "
    "ON CONFLICT (outbox_id) DO NOTHING"
)

DOMAIN_OF: Final[dict[type, type]] = {
    wire_facts.NodeReported: domain_facts.NodeReported,
    wire_facts.LaunchPlanned: domain_facts.LaunchPlanned,
    wire_facts.CheckFinished: domain_facts.CheckFinished,
    wire_facts.InstanceChanged: domain_facts.InstanceChanged,
    wire_facts.EffectiveSeen: domain_facts.EffectiveSeen,
    wire_facts.WeightsSeen: domain_facts.WeightsSeen,
    wire_facts.MemoryFallbackSeen: domain_facts.MemoryFallbackSeen,
    wire_facts.MemoryFallbackCleared: domain_facts.MemoryFallbackCleared,
    wire_facts.GpuFaultSeen: domain_facts.GpuFaultSeen,
    wire_facts.BakeInterval: domain_facts.BakeInterval,
    wire_facts.OverrideApplied: domain_facts.OverrideApplied,
    wire_facts.GapNoticed: domain_facts.GapNoticed,
    wire_facts.DrainHookEnded: domain_facts.DrainHookEnded,
    wire_facts.GoldenFinished: domain_facts.GoldenFinished,
    wire_facts.DirectiveHeld: domain_facts.DirectiveHeld,
}
"""What is sent, and what is stored of it. Two classes, so that wire and store can change apart."""


def to_domain(payload: wire_facts.Payload) -> domain_facts.Fact:
    """A fact of the wire as the domain's."""
    kind = DOMAIN_OF[type(payload)]
    if isinstance(payload, wire_facts.LaunchPlanned | wire_facts.CheckFinished):
        # By way of plain values: a field of its layout that an older agent does not send is left out.
        read: domain_facts.Fact = msgspec.convert(msgspec.to_builtins(payload), kind)
        return read
    fact: domain_facts.Fact = msgspec.convert(payload, kind, from_attributes=True)
    return fact


class Ingest:
    """The way in for facts."""

    def __init__(self, log: appender.Appender, opened: database.Database) -> None:
        self._log: Final = log
        self._database: Final = opened
        self._lock: Final = threading.Lock()
        self._owners: dict[str, str] = {}

    def facts(
        self, batch: wire_facts.FactsBatch, *, by: credentials.Credential
    ) -> wire_facts.Acknowledgement:
        """Store one batch.

        Raises:
            RefusedError: `not_your_node`, `not_your_outbox`, `not_your_launch`, `sequence_order`,
                `sequence_gap`, `conflict`.
        """
        _check_node(batch.node, by)
        first = batch.facts[0].sequence
        for offset, fact in enumerate(batch.facts):
            if fact.sequence != first + offset:
                raise refusal.RefusedError(
                    422,
                    "sequence_order",
                    f"Sequence {fact.sequence} follows {first + offset - 1} in one batch.",
                    next_step="Send facts in order, without a hole.",
                )
            if isinstance(fact.payload, wire_facts.LaunchPlanned):
                self._check_launch(fact.payload.launch_id, batch.node)
        return self._append(
            [
                record(
                    batch.outbox_id,
                    fact.sequence,
                    to_domain(fact.payload),
                    node=batch.node,
                    occurred_at_us=fact.occurred_at_us,
                )
                for fact in batch.facts
            ],
            outbox_id=batch.outbox_id,
            node=batch.node,
        )

    def launch(
        self, request: wire_directive.LaunchRequest, *, by: credentials.Credential
    ) -> wire_facts.Acknowledgement:
        """Store one launch: sequence 1 of the outbox that has the launch's id.

        Raises:
            RefusedError: as `facts`.
        """
        _check_node(request.node, by)
        launch_id = request.launch.launch_id
        made = record(
            launch_id,
            1,
            to_domain(request.launch),
            node=request.node,
            occurred_at_us=request.occurred_at_us,
        )
        return self._append([made], outbox_id=launch_id, node=request.node)

    def _append(
        self, made: list[port.NewRecord], *, outbox_id: str, node: str
    ) -> wire_facts.Acknowledgement:
        self._check_owner(outbox_id, node, first=made[0].version)
        try:
            appended = self._log.append(made, gapless=True)
        except port.GapError as error:
            stored = self._log.store.stream_version(error.stream)
            raise _gap(made[0].version, stored + 1) from error
        except port.ConflictError as error:
            raise refusal.RefusedError(
                409,
                "conflict",
                f"Sequence {error.version} of this outbox is stored with other content.",
                next_step="Begin a new outbox: this one was restored from a copy or written twice.",
            ) from error
        return wire_facts.Acknowledgement(
            acknowledged_through=made[-1].version,
            repeated=len(appended.already),
            head=wire_facts.ChainHead(
                position=appended.head.position, chain=appended.head.chain.hex()
            ),
        )

    def _check_owner(self, outbox_id: str, node: str, *, first: int) -> None:
        owner = self._owners.get(outbox_id) or self._owner(outbox_id)
        if owner is None:
            if first != 1:
                raise _gap(first, 1)  # Refused before it is claimed: nothing is written.
            with self._database.writing() as connection:
                connection.execute(_CLAIM, {"outbox_id": outbox_id, "node": node})
            owner = self._owner(outbox_id)
            assert owner is not None, "an owner is never removed"
        with self._lock:
            if len(self._owners) >= OWNERS_CACHED_MAX:
                self._owners = {}
            self._owners[outbox_id] = owner
        if owner != node:
            raise refusal.RefusedError(
                403,
                "not_your_outbox",
                "This outbox belongs to another node.",
                next_step="Every node makes its own outbox id; do not copy one between machines.",
            )

    def _check_launch(self, launch_id: str, node: str) -> None:
        """A launch id is an outbox id too: nobody reports a launch under another node's."""
        owner = self._owners.get(launch_id) or self._owner(launch_id)
        if owner not in (None, node):
            raise refusal.RefusedError(
                403,
                "not_your_launch",
                "This launch is of another node.",
                next_step="Every launch has a random id of its own; do not copy one.",
            )

    def _owner(self, outbox_id: str) -> str | None:
        with self._database.statement() as connection:
            found = connection.execute(
                sa.select(_OWNER.node).where(_OWNER.outbox_id == outbox_id)
            ).scalar()
        return None if found is None else str(found)


def _check_node(node: str, by: credentials.Credential) -> None:
    if node != by.subject:
        raise refusal.RefusedError(
            403,
            "not_your_node",
            f"This credential is not of node {node!r}.",
            next_step="A node writes facts only about itself; use its own credential.",
        )


def record(
    outbox_id: str, sequence: int, fact: domain_facts.Fact, *, node: str, occurred_at_us: int
) -> port.NewRecord:
    """One fact as a record of its outbox."""
    return port.NewRecord(
        stream=records.outbox_stream(outbox_id),
        version=sequence,
        type=codec.name_of(fact),
        schema_version=codec.version_of(fact),
        occurred_at_us=occurred_at_us,
        actor=records.node_actor(node),
        data=codec.encode(fact),
    )


def _gap(given: int, expected: int) -> refusal.RefusedError:
    return refusal.RefusedError(
        409,
        "sequence_gap",
        f"Sequence {given} cannot be stored: {expected} is expected.",
        next_step=f"Send the facts from sequence {expected} on.",
    )
