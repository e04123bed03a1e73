"""Owns enrolment: a machine with a join token becomes a node with a credential of its own."""

from __future__ import annotations

from typing import Final

from smgate.clock import Clock
from smgate.domain import rulings
from smgate.domain.state import Fleet
from smgate.log import port
from smgate.service import appender, contacts, credentials, directives, fold, records, refusal
from smgate.wire import directive as wire

TRIES_MAX: Final = 50
"""Every other enrolment and command of that moment can win the stream once."""


class Enrolment:
    """The way in for nodes."""

    def __init__(
        self,
        log: appender.Appender,
        *,
        folder: fold.Folder,
        tokens: credentials.Credentials,
        heard: contacts.Contacts,
        told: directives.Directives,
        clock: Clock,
    ) -> None:
        self._log: Final = log
        self._folder: Final = folder
        self._tokens: Final = tokens
        self._heard: Final = heard
        self._told: Final = told
        self._clock: Final = clock

    def enrol(
        self, request: wire.EnrollRequest, *, by: credentials.Credential
    ) -> wire.EnrollAnswer:
        """Give a node its credential; its earlier ones end.

        Raises:
            RefusedError: `node_name_in_use`.
        """
        for _ in range(TRIES_MAX):
            with self._folder.at_head() as fleet:
                needed = self._needed(fleet, request)
            if not needed or self._append(request, by=by):
                break
        else:
            raise refusal.RefusedError(
                503,
                "busy",
                "Too many enrolments at once.",
                next_step="Try again.",
                retry_after_s=2,
            )
        # The fact comes first: a node that has a credential is always in the log.
        issued = self._tokens.issue(
            kind="node", subject=request.node, public_key=self._told.public_key
        )
        self._tokens.revoke_nodes(request.node, except_id=issued.credential.id)
        self._heard.note(request.node)
        return wire.EnrollAnswer(
            node=request.node,
            credential=issued.token,
            public_key=self._told.public_key,
            incarnation=self._folder.incarnation,
        )

    def _needed(self, fleet: Fleet, request: wire.EnrollRequest) -> bool:
        node = fleet.nodes.get(request.node)
        if node is None or node.machine_id is None or node.retired:
            return True
        if node.machine_id == request.machine_id:
            return False
        heard = self._heard.read().get(request.node)
        last_us = max(node.last_contact_us, 0 if heard is None else heard.last_seen_us)
        if self._clock.now_us() - last_us < fleet.policy.silent_after_s * 1_000_000:
            raise refusal.RefusedError(
                409,
                "node_name_in_use",
                f"Another machine is node {request.node!r} and was heard a moment ago.",
                next_step="Give this machine a name of its own, or stop the other one's agent "
                f"for {fleet.policy.silent_after_s} s if this one replaces it.",
            )
        return True

    def _append(self, request: wire.EnrollRequest, *, by: credentials.Credential) -> bool:
        made = records.of_events(
            [
                rulings.NodeEnrolled(
                    node=request.node,
                    machine_id=request.machine_id,
                    agent_version=request.agent_version,
                )
            ],
            stream=records.OPERATORS,
            first_version=self._log.store.stream_version(records.OPERATORS) + 1,
            actor=records.operator_actor(f"join/{by.id}"),
            at_us=self._clock.now_us(),
        )
        try:
            self._log.append(made)
        except port.ConflictError:
            return False
        return True
