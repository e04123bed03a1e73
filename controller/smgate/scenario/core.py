"""The real core on a clock of its own: log in memory, fold, command handling, leader.

The caller alone moves the clock. On the way it stops at every moment at which the planner or the
silence of a node asks for it, so waits and timers end when they would.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from smgate.clock import ManualClock
from smgate.domain import commands
from smgate.domain.policy import Policy
from smgate.domain.waits import SECOND_US
from smgate.log import memory
from smgate.scenario import document
from smgate.service import appender, contacts, credentials, fold, handle, ingest, leader
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
        self.store: Final = memory.MemoryStore(clock_us=self.clock.now_us, incarnation=name)
        self.folder: Final = fold.Folder(self.store)
        self.heard: Final = Heard(self.clock)
        self._name: Final = name
        self._log: Final = appender.Appender(self.store, writer=name)
        self._commands: Final = handle.Commands(self._log, folder=self.folder, clock=self.clock)
        self._leader: Final = leader.Leader(
            self.store,
            folder=self.folder,
            heard=self.heard,
            clock=self.clock,
            holder=name,
            lease_ttl_s=LEASE_S,
            tick_s=LEASE_S,
            sense_s=0.0,
            first_policy=first_policy,
        )
        self._sequences: Final[dict[str, int]] = {}
        self.away_since_us: int | None = None

    def report(self, node: str, told: Sequence[facts.Payload]) -> None:
        """A node reports facts at once; it is connected from then on."""
        outbox = f"{self._name}-{node}"
        self.heard.connect(node)
        made = []
        for fact in told:
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
        self._log.append(made, gapless=True)

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
