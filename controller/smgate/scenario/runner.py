"""Runs a scenario through the real core: memory log, fold, command handling, leader.

The scenario's times alone move the clock. Between two steps the clock stops at every moment at
which the planner or the silence of a node asks for it, so waits and timers end when they would.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from smgate.clock import ManualClock
from smgate.domain.waits import SECOND_US
from smgate.domain.why import iso
from smgate.log import memory, port, verify
from smgate.scenario import document, snapshot
from smgate.scenario.document import Planned, Scenario, ScenarioError
from smgate.service import appender, contacts, credentials, fold, handle, ingest, leader
from smgate.service.refusal import RefusedError

LEASE_S: Final = 2 * document.LATEST_S
"""The leader of a scenario leads until the scenario says it is away."""

STOPS_MAX: Final = 100_000
"""Moments between two steps at which the clock stops. More is a fault of the planner."""


class Heard:
    """Heartbeats of the scenario: a connected node is heard all the time, another no more."""

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


class Run:
    """One run of one scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario: Final = scenario
        self.clock: Final = ManualClock(scenario.start_us)
        self.store: Final = memory.MemoryStore(clock_us=self.clock.now_us, incarnation="scenario")
        self.folder: Final = fold.Folder(self.store)
        self.heard: Final = Heard(self.clock)
        self.log: Final = appender.Appender(self.store, writer="scenario")
        self.commands: Final = handle.Commands(self.log, folder=self.folder, clock=self.clock)
        self.leader: Final = leader.Leader(
            self.store,
            folder=self.folder,
            heard=self.heard,
            clock=self.clock,
            holder="scenario",
            lease_ttl_s=LEASE_S,
            tick_s=LEASE_S,
            sense_s=0.0,
        )
        self.sequences: Final[dict[str, int]] = {}
        self.away_since_us: int | None = None
        self.snapshots: Final = snapshot.Snapshots()
        self.moments: Final[list[dict[str, Any]]] = []
        self.shown_position = 0

    def run(self) -> dict[str, Any]:
        """Run all steps and return what the controller made of them."""
        self._settle()
        index = 0
        if not self.scenario.steps or self.scenario.steps[0].at_us > 0:
            self._show(lines=[], refused=[])
        while index < len(self.scenario.steps):
            at_us = self.scenario.steps[index].at_us
            self._run_until(self.scenario.start_us + at_us)
            refused, lines = [], []
            while index < len(self.scenario.steps) and self.scenario.steps[index].at_us == at_us:
                planned = self.scenario.steps[index]
                lines.append(planned.line)
                refusal = self._do(planned)
                if refusal is not None:
                    refused.append(refusal)
                self._settle()
                index += 1
            self._show(lines=lines, refused=refused)
        report = verify.verify(self.store)
        return {
            "scenario": document.FORMAT,
            "name": self.scenario.name,
            "times": self.moments,
            "log_events": report.positions,
            "chain_ok": report.ok,
        }

    def _do(self, planned: Planned) -> dict[str, Any] | None:
        match planned.step:
            case document.FactStep(node=node) | document.FactsStep(node=node):
                self._take_facts(planned, node)
            case document.CommandStep(by=by, role=role):
                return self._command(planned, by=by, role=role)
            case document.ConnectStep(connect=node):
                self.heard.connect(node)
            case document.DisconnectStep(disconnect=node):
                self.heard.disconnect(node)
            case document.ControllerStep(controller="away"):
                if self.away_since_us is None:
                    self.leader.hand_over()
                    self.away_since_us = self.clock.now_us()
            case document.ControllerStep():
                self.away_since_us = None
            case _:  # a look
                pass
        return None

    def _take_facts(self, planned: Planned, node: str) -> None:
        outbox = f"scenario-{node}"
        self.heard.connect(node)
        made = []
        for fact in planned.facts:
            self.sequences[outbox] = self.sequences.get(outbox, 0) + 1
            made.append(
                ingest.record(
                    outbox,
                    self.sequences[outbox],
                    ingest.to_domain(fact),
                    node=node,
                    occurred_at_us=self.clock.now_us(),
                )
            )
        self.log.append(made, gapless=True)

    def _command(self, planned: Planned, *, by: str, role: document.Role) -> dict[str, Any] | None:
        assert planned.command is not None
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
            name="scenario",
            command=planned.command,
            expected_position=None,
            idempotency_key=None,
            dry_run=False,
        )
        try:
            self.commands.handle(request, by=credential)
        except RefusedError as error:
            return {
                "line": planned.line,
                "code": error.code,
                "message": error.message,
                "next_step": error.next_step,
            }
        return None

    def _settle(self) -> None:
        """Let the leader do all that is to be done now."""
        if self.away_since_us is not None:
            return
        position = -1
        while position != self.store.head().position:
            position = self.store.head().position
            self.leader.step()
            if self.leader.status.failures:
                raise RuntimeError("The leader failed; its log says why.")

    def _due_us(self) -> int | None:
        """The next moment at which the leader would do something by itself."""
        if self.away_since_us is not None:
            return None
        now_us = self.clock.now_us()
        due = self.leader.status.next_due_us
        found = [] if due is None else [due]
        with self.folder.now() as fleet:
            limit_us = fleet.policy.silent_after_s * SECOND_US
            found += [
                max(node.last_contact_us, self.heard.last_us(node.name)) + limit_us
                for node in fleet.nodes.values()
                if not (node.silent or node.retired or self.heard.connected(node.name))
            ]
        return min((moment for moment in found if moment > now_us), default=None)

    def _run_until(self, end_us: int) -> None:
        """Move the clock to a moment, stopping wherever the leader has something to do."""
        for _ in range(STOPS_MAX):
            due_us = self._due_us()
            if due_us is None or due_us >= end_us:
                break
            self.clock.advance_to(due_us)
            before = self.store.head().position
            self._settle()
            if self.store.head().position != before:
                self._show(lines=[], refused=[])
        else:
            raise RuntimeError("The planner asks for the clock again and again.")
        self.clock.advance_to(end_us)
        self._settle()

    def _show(self, *, lines: list[int], refused: list[dict[str, Any]]) -> None:
        now_us = self.clock.now_us()
        # While nobody leads no timer runs: waits stand as they were when the leader left.
        led_until_us = now_us if self.away_since_us is None else self.away_since_us
        with self.folder.at_head() as fleet:
            events = [_event(record) for record in self._new_records()]
            self.moments.append(
                {
                    "at_s": (now_us - self.scenario.start_us) / SECOND_US,
                    "time": iso(now_us),
                    "lines": lines,
                    "refused": refused,
                    "events": events,
                    "controller": "leads" if self.away_since_us is None else "away",
                    **self.snapshots.take(fleet, led_until_us),
                }
            )

    def _new_records(self) -> list[port.StoredRecord]:
        found: list[port.StoredRecord] = []
        while page := self.store.read(after=self.shown_position):
            found.extend(page)
            self.shown_position = page[-1].position
        return found


def _event(record: port.StoredRecord) -> dict[str, Any]:
    payload: dict[str, Any] = msgspec.json.decode(record.data)
    return {
        "position": record.position,
        "type": record.type,
        "actor": record.actor,
        "event": payload,
    }


def run_text(text: str) -> dict[str, Any]:
    """Run a scenario given as text.

    Raises:
        ScenarioError: the text is not of the format; names the line.
    """
    return Run(document.parse(text)).run()


def run_file(path: Path) -> dict[str, Any]:
    """Run a scenario file.

    Raises:
        ScenarioError: unreadable, or not of the format.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{path} cannot be read: {error}", line=0) from error
    return run_text(text)
