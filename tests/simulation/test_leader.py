"""A scenario and a leader on a SQL store decide the same, given the same at the same times."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from smgate.clock import ManualClock
from smgate.domain.policy import Policy
from smgate.log import open as log_open, port, sql
from smgate.scenario import document, runner
from smgate.service import (
    appender,
    contacts,
    credentials,
    fold,
    handle,
    ingest,
    leader,
    records,
    refusal,
)
from smgate.wire import facts as wire_facts

INCIDENTS = Path(__file__).parent / "scenarios"
TOLD = [
    "first_canary",
    "node_fault_that_is_not_the_builds",
    "wrong_kernel",
    "late_rank",
    "gather_deadline",
    "controller_away_for_a_weekend",
    "breaker",
    "adopted",
]
SECOND_US: Final = 1_000_000
DECADES_S: Final = 1e9


class Heard:
    """Heartbeats: who is connected is heard now, who left was heard then."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._left_us: dict[str, int | None] = {}

    def note(self, node: str, *, connected: bool) -> None:
        self._left_us[node] = None if connected else self._clock.now_us()

    def read(self) -> Mapping[str, contacts.Contact]:
        now_us = self._clock.now_us()
        return {
            node: contacts.Contact(
                last_seen_us=now_us if left_us is None else left_us, held_generation=None
            )
            for node, left_us in self._left_us.items()
        }


class Service:
    """The parts of a controller on one SQLite file, driven by hand."""

    def __init__(self, store: sql.SqlStore, clock: ManualClock) -> None:
        """As a scenario of version 1 expects it."""
        self.clock = clock
        self.store = store
        folder = fold.Folder(store)
        log = appender.Appender(store, writer="api")
        self.heard = Heard(clock)
        self.ingest = ingest.Ingest(log, store.database)
        self.commands = handle.Commands(log, folder=folder, clock=clock)
        self.leader = leader.Leader(
            store,
            folder=folder,
            heard=self.heard,
            clock=clock,
            holder="controller-7",
            lease_ttl_s=DECADES_S,
            tick_s=1.0,
            first_policy=document.of_version_1(Policy()),
        )
        self.leading = True
        self.sequences: dict[str, int] = {}

    def decide(self, at_us: int | None = None) -> None:
        if at_us is not None:
            self.clock.advance_to(at_us)
        position = -1
        while self.leading and position != self.store.head().position:
            position = self.store.head().position
            self.leader.step()
            assert self.leader.status.failures == 0

    def take(self, planned: document.Planned) -> None:
        match planned.step:
            case document.FactStep(node=node) | document.FactsStep(node=node):
                self._facts(node, planned.facts)
            case document.CommandStep(by=by, role=role):
                self._command(by, role, planned)
            case document.ConnectStep(connect=node):
                self.heard.note(node, connected=True)
            case document.DisconnectStep(disconnect=node):
                self.heard.note(node, connected=False)
            case document.ControllerStep(controller=word):
                self.leading = word == "back"
                if word == "away":
                    self.leader.hand_over()
            case _:
                assert isinstance(planned.step, document.LookStep)
        self.decide()

    def _facts(self, node: str, payloads: tuple[wire_facts.Payload, ...]) -> None:
        self.heard.note(node, connected=True)
        first = self.sequences.get(node, 0) + 1
        self.sequences[node] = first + len(payloads) - 1
        batch = wire_facts.FactsBatch(
            node=node,
            outbox_id=f"scenario-{node}",
            facts=tuple(
                wire_facts.Fact(
                    sequence=first + offset, occurred_at_us=self.clock.now_us(), payload=payload
                )
                for offset, payload in enumerate(payloads)
            ),
        )
        self.ingest.facts(batch, by=_credential("node", node, None))

    def _command(self, by: str, role: document.Role, planned: document.Planned) -> None:
        assert planned.command is not None
        request = handle.Request(
            name="a test",
            command=planned.command,
            expected_position=None,
            idempotency_key=None,
            dry_run=False,
        )
        # The scenario has a refusal in its output; here only decisions are compared.
        with contextlib.suppress(refusal.RefusedError):
            self.commands.handle(request, by=_credential("operator", by, role))


def _credential(kind: Any, subject: str, role: Any) -> credentials.Credential:
    return credentials.Credential(
        id=subject,
        kind=kind,
        subject=subject,
        role=role,
        created_at_us=0,
        expires_at_us=None,
        revoked_at_us=None,
    )


@pytest.fixture
def url(tmp_path: Path) -> str:
    found = f"sqlite:///{tmp_path / 'log.db'}"
    log_open.upgrade(found)
    return found


def _decisions(found: list[port.StoredRecord]) -> list[tuple[object, ...]]:
    shown: list[tuple[object, ...]] = []
    for record in found:
        payload = msgspec.json.decode(record.data)
        for own in ("epoch", "holder"):
            payload.pop(own, None)
        shown.append((record.position, record.type, record.recorded_at_us, payload))
    return shown


def _stream(store: port.Store) -> Iterator[port.StoredRecord]:
    after = 0
    while page := store.read_stream(records.CONTROLLER, after_version=after):
        yield from page
        after = page[-1].version


@pytest.mark.parametrize("name", TOLD)
def test_the_leader_on_sqlite_decides_what_the_scenario_shows(name: str, url: str) -> None:
    text = (INCIDENTS / f"{name}.yaml").read_text(encoding="utf-8")
    scenario = document.parse(text)
    assert scenario.version == 1
    run = runner.Run(scenario)
    moments_us = [
        scenario.start_us + round(moment["at_s"] * SECOND_US) for moment in run.run()["times"]
    ]
    clock = ManualClock(scenario.start_us)
    store = log_open.open_sql_store(url, clock_us=clock.now_us)
    try:
        service = Service(store, clock)
        service.decide()
        steps = list(scenario.steps)
        for moment_us in moments_us:
            service.decide(moment_us)
            while steps and scenario.start_us + steps[0].at_us == moment_us:
                service.take(steps.pop(0))
        assert steps == []
        assert any(record.type == "override_set" for record in _stream(store))
        assert _decisions(list(_stream(store))) == _decisions(list(_stream(run.core.store)))
    finally:
        store.close()
