"""The real core on a clock of its own: log in memory, fold, command handling, leader.

The caller alone moves the clock. On the way it stops at every moment at which the planner or the
silence of a node asks for it, so waits and timers end when they would.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Final

from smgate.clock import ManualClock
from smgate.domain import commands, decisions, rules, unit_commands
from smgate.domain.events import Event
from smgate.domain.policy import Policy
from smgate.domain.waits import SECOND_US
from smgate.log import memory, port
from smgate.scenario import before, document, restored
from smgate.service import appender, contacts, credentials, fold, handle, ingest, leader, records
from smgate.wire import facts

LEASE_S: Final = 2 * document.LATEST_S
"""The leader leads until it is told to go away."""

STOPS_MAX: Final = 100_000
"""Moments at which the clock stops on one way. More is a fault of the planner."""


class Heard:
    """Heartbeats: a connected node is heard all the time, another no more."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock: Final = clock
        self._last_us: Final[dict[str, int]] = {}
        self._connected: Final[set[str]] = set()

    def connect(self, node: str) -> None:
        """The node holds its long-poll from now on."""
        self._connected.add(node)
        self._last_us[node] = self._clock.now_us()

    def disconnect(self, node: str) -> None:
        """The node was heard now for the last time."""
        self._last_us[node] = self._clock.now_us()
        self._connected.discard(node)

    def connected(self, node: str) -> bool:
        """True while the node holds its long-poll."""
        return node in self._connected

    def last_us(self, node: str) -> int:
        """When the node was heard last."""
        return self._clock.now_us() if node in self._connected else self._last_us.get(node, 0)

    def nodes(self) -> list[str]:
        """Every node that was ever heard."""
        return sorted(self._last_us)

    def read(self) -> dict[str, contacts.Contact]:
        """As the service's own."""
        return {
            node: contacts.Contact(last_seen_us=self.last_us(node), held_generation=None)
            for node in sorted(self._last_us)
        }


class Core:
    """One controller whose time is the caller's."""

    def __init__(self, start_us: int, *, name: str, first_policy: Policy | None = None) -> None:
        """`first_policy`: what the log begins with; None is the shipped one."""
        self.clock: Final = ManualClock(start_us)
        self.heard: Final = Heard(self.clock)
        self._name: Final = name
        self._first_policy: Final = first_policy
        self._open(memory.MemoryStore(clock_us=self.clock.now_us, incarnation=name))
        self._sequences: Final[dict[str, int]] = {}
        self._held_before: dict[str, facts.DirectiveHeld] = {}
        self._sent: Final[dict[str, list[port.NewRecord]]] = {}
        self._told: Final[dict[str, int]] = {}
        self.away_since_us: int | None = None

    def _open(self, store: memory.MemoryStore) -> None:
        """A controller starts on a log."""
        self.store = store
        self.folder = fold.Folder(store)
        self._log = appender.Appender(store, writer=self._name)
        self._commands = handle.Commands(self._log, folder=self.folder, clock=self.clock)
        self._leader = leader.Leader(
            store,
            folder=self.folder,
            heard=self.heard,
            clock=self.clock,
            holder=self._name,
            lease_ttl_s=LEASE_S,
            tick_s=LEASE_S,
            sense_s=0.0,
            first_policy=self._first_policy,
        )

    def report(self, node: str, told: Sequence[facts.Payload]) -> None:
        """A node reports facts at once; it is connected from then on."""
        self.heard.connect(node)
        self.send_again(node)
        made = []
        for fact in told:
            # Launches are the launch gate's own to tell: they come from another outbox.
            gate = isinstance(fact, facts.LaunchPlanned)
            outbox = f"{self._name}-{node}{'-gate' if gate else ''}"
            self._sequences[outbox] = self._sequences.get(outbox, 0) + 1
            made.append(
                ingest.record(
                    outbox,
                    self._sequences[outbox],
                    ingest.to_domain(fact),
                    node=node,
                    occurred_at_us=self.clock.now_us(),
                )
            )
        self._log.append(made)
        self._sent.setdefault(node, []).extend(made)

    def restore(self, age_us: int) -> list[str]:
        """A backup of that age is put back; the connected nodes, which are heard again from now on."""
        self._leader.hand_over()
        before, held = self.store, self.folder.book
        self.folder.catch_up()
        self._open(restored.copy(before, until_us=self.clock.now_us() - age_us, clock=self.clock))
        at = self.store.head()
        event = decisions.LogRestored(
            before=before.head().incarnation, incarnation=at.incarnation, reason="A scenario."
        )
        self._record([event])
        self._told.clear()
        connected = [node for node in sorted(self._sent) if self.heard.connected(node)]
        self._held_before = {node: restored.held(held, node, before, at) for node in self._sent}
        return connected

    def send_again(self, node: str) -> None:
        """After a restore: a node sends what it kept, and then says what it was told before."""
        said = self._held_before.pop(node, None)
        if said is not None:
            self._log.append(restored.kept(self._sent[node]))
            self.report(node, [said])

    def held(self, position: int) -> dict[str, int]:
        """Up to which position each node was told: a connected one all, another what it had heard then."""
        for node in self.heard.nodes():
            if self.heard.connected(node):
                self._told[node] = position
        return dict(self._told)

    def _record(self, events: Sequence[Event]) -> None:
        made = records.of_events(
            events,
            stream=records.CONTROLLER,
            first_version=self.store.stream_version(records.CONTROLLER) + 1,
            actor=records.CONTROLLER,
            at_us=self.clock.now_us(),
        )
        self._log.append(made)

    def command(
        self,
        command: commands.Command,
        *,
        by: str,
        role: document.Role,
        break_glass_s: int | None = None,
    ) -> str | None:
        """A person gives a command, or does alone for a time what needs another.

        Returns:
            The id of the change that waits for another person now, if this is one.

        Raises:
            RefusedError: as the service refuses it.
        """
        credential = credentials.Credential(
            id=by,
            kind="operator",
            subject=by,
            role=role,
            created_at_us=0,
            expires_at_us=None,
            revoked_at_us=None,
        )
        request = handle.Request(
            name=self._name,
            command=command,
            expected_position=None,
            idempotency_key=None,
            dry_run=False,
            break_glass_s=break_glass_s,
        )
        waits = self._commands.handle(request, by=credential).waits
        return None if waits is None else waits.change

    def go_away(self) -> None:
        """Nobody leads from now on."""
        if self.away_since_us is None:
            self._leader.hand_over()
            self.away_since_us = self.clock.now_us()

    def come_back(self) -> None:
        """Somebody leads again, from the next `settle`."""
        self.away_since_us = None

    def led_before(self, former: before.RulesBefore) -> None:
        """A release with other rules led until now, and had told this; then it went.

        Raises:
            RejectedError: `unknown_unit`, `ambiguous_unit`.
        """
        with self.folder.at_head() as fleet:
            now_us = self.clock.now_us()
            events: list[Event] = [
                decisions.LeadershipTaken(
                    epoch=fleet.epoch, holder=self._name, away_us=0, rules_version=former.version
                )
            ]
            for told in former.told:
                unit = unit_commands.find_unit(fleet, told.unit)
                events.append(
                    dataclasses.replace(
                        rules.decide_unit(fleet, unit.id, now_us).event,
                        form="untouched" if told.value is None else "append",
                        value=told.value,
                        code=told.code,
                        sentence=f"Rules {former.version} said so.",
                        also=(),
                        would=None,
                        launch_ids=(),
                        rules_version=former.version,
                    )
                )
        self._leader.hand_over()
        self._record(events)

    def settle(self) -> None:
        """Let the leader do all that is to be done now."""
        if self.away_since_us is not None:
            return
        position = -1
        while position != self.store.head().position:
            position = self.store.head().position
            self._leader.step()
            if self._leader.status.failures:
                raise RuntimeError("The leader failed; its log says why.")

    def run_until(self, end_us: int, on_stop: Callable[[], None]) -> None:
        """Move the clock to a moment, stopping wherever the leader has something to do.

        Args:
            end_us: where to.
            on_stop: called at every moment before it at which the leader recorded something.
        """
        for _ in range(STOPS_MAX):
            due_us = self._due_us()
            if due_us is None or due_us >= end_us:
                break
            self.clock.advance_to(due_us)
            before = self.store.head().position
            self.settle()
            if self.store.head().position != before:
                on_stop()
        else:
            raise RuntimeError("The planner asks for the clock again and again.")
        self.clock.advance_to(end_us)
        self.settle()

    def _due_us(self) -> int | None:
        """The next moment at which the leader would do something by itself."""
        if self.away_since_us is not None:
            return None
        now_us = self.clock.now_us()
        due = self._leader.status.next_due_us
        found = [] if due is None else [due]
        with self.folder.now() as fleet:
            limit_us = fleet.policy.silent_after_s * SECOND_US
            found += [
                max(node.last_contact_us, self.heard.last_us(node.name)) + limit_us
                for node in fleet.nodes.values()
                if not (node.silent or node.retired or self.heard.connected(node.name))
            ]
        return min((moment for moment in found if moment > now_us), default=None)
